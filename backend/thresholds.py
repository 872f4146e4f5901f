"""Every threshold and time limit, with its unit in the name and its reason beside it."""

# ---- agent

# Importing the agent takes 1-2 s on two busy cores; a cold disk or a loaded host takes several times that.
AGENT_START_TIMEOUT_S = 30.0
# A page's request is a few KiB; an imported run is bounded separately. Larger bodies are refused before they are read.
AGENT_JSON_BODY_LIMIT_BYTES = 1 << 20
AGENT_IMPORT_BODY_LIMIT_BYTES = 512 << 20
# Telemetry of a running load is fetched from the sampler's ring into the run this often; the ring holds far more.
TELEMETRY_COLLECT_PERIOD_S = 5.0
# How soon a load test notices that its engine left the ready state: half of the 2 s that a dead server may go unseen.
ENGINE_WATCH_PERIOD_S = 1.0
# A dashboard that ends waits this long for its engine to stop: the engine's own grace plus the memory check.
CLOSE_SESSION_TIMEOUT_S = 20.0
# Load tests that ended stay listed in `status` for this many entries.
ENDED_LOADS_KEPT_COUNT = 20

# ---- telemetry

# Twice a second shows a pool being allocated during a launch; at rest one reading in 5 s keeps the agent below 1 % of a
# core (a reading with eight GPUs takes a few ms).
TELEMETRY_ACTIVE_PERIOD_S = 0.5
TELEMETRY_REST_PERIOD_S = 5.0
# Ten minutes at the active pace: about 3 MB of JSON with eight GPUs, below a browser message's 5 MB.
TELEMETRY_RING_SAMPLES = 1200
# Opening NVML again after a loss: soon at first (a driver reload takes seconds), then rarely (no driver at all).
NVML_RETRY_FIRST_S = 5.0
NVML_RETRY_LONGEST_S = 60.0
# Reading the PSS of an engine that maps hundreds of GB takes long; it may take this share of one core.
PSS_MAX_SHARE = 0.005

# ---- store

# A second process that writes (an agent just ending) holds the write lock for milliseconds; a stuck disk longer.
STORE_BUSY_TIMEOUT_S = 10.0
# Closing drains the queue: a big run's samples take a second or two, a hung network disk must not hang the agent.
STORE_CLOSE_TIMEOUT_S = 10.0
# A run that could not be stored (full disk) is tried again this often: soon after room was made, and hardly any work.
STORE_RETRY_PERIOD_S = 10.0
# An engine log in an export: head and tail are kept up to this size; a 397B launch and hours of decode lines exceed it.
EXPORT_LOG_MAX_BYTES = 8 << 20
# An import is refused beyond these: an hour at 256 users is about 100 MiB unpacked; what is larger is no run of ours.
IMPORT_MAX_BYTES = 512 << 20
IMPORT_MAX_UNPACKED_BYTES = 1 << 30
IMPORT_MAX_TABLE_BYTES = 1 << 30

# ---- doctor

# A run's samples take a few MB, an hour of decode lines tens; below the first a week of tests may not fit, below the
# second the next one may not.
DOCTOR_DISK_WARN_BYTES = 5 << 30
DOCTOR_DISK_FAIL_BYTES = 512 << 20
# Containers get 64 MiB of /dev/shm by default; NCCL and the engine's own rings want hundreds of MiB per GPU.
DOCTOR_SHM_WARN_BYTES = 1 << 30
# The load client opens one connection per user and allows 4096 users; double leaves room for all else.
DOCTOR_NOFILE_WARN_COUNT = 8192

# ---- load

# A level without a count or a time: enough requests per slot for a steady part between filling and draining.
LOAD_DEFAULT_PER_SLOT_REQUESTS = 4
LOAD_DEFAULT_MIN_REQUESTS = 8
# Live ticks twice a second: a chart with one point per second gets two of them, so a late one leaves no hole.
LOAD_TICK_PERIOD_S = 0.5
LOAD_POINT_PERIOD_S = 1.0
# The last point of a level may be shorter; a rate over less than this is noise of single events (20-50 ms each).
LOAD_RATE_SPAN_MIN_S = 0.25
# Timer of the client's own lateness: 50 samples per second give a p99 within two seconds.
LOAD_LAG_PERIOD_MS = 20.0
# A failed request frees its slot at once; without a pause a server that refuses all would be hammered.
LOAD_FAILURE_PAUSE_S = 0.1
# A SYN is answered at once or not at all; two losses on a bad link are made up for within 3 s.
LOAD_CONNECT_TIMEOUT_S = 5.0
# Connections that cannot be made for this long, without one success, end the test: the server is gone.
LOAD_SERVER_GONE_S = 5.0
# /flush_cache answers 400 while the server still works off cancelled requests: a second or two at most.
LOAD_FLUSH_ATTEMPTS = 5
LOAD_FLUSH_PAUSE_S = 0.5
LOAD_FLUSH_TIMEOUT_S = 10.0
# Bodies of refused requests are kept for the message; a traceback in JSON fits.
LOAD_ERROR_BODY_MAX_BYTES = 16384
LOAD_ERROR_MESSAGE_MAX_CHARS = 500
# A worker that was told to stop closes its sockets within milliseconds; a loaded host takes longer.
LOAD_STOP_TIMEOUT_S = 5.0
# Prompts written into one spec: an hour at 256 users of 30 s answers; 64 MiB of text is far above any real set of them.
LOAD_PROMPTS_MAX_COUNT = 30000
LOAD_PROMPT_FILE_MAX_BYTES = 512 << 20

# ---- supervisor

# A page asks for the log once a second; more lines than this are fetched in the next second.
LOG_CHUNK_LINES = 2000
# The line that lists all server arguments has about 20,000 characters; a screen shows a few hundred.
LOG_LINE_SHOWN_CHARS = 2000
# Progress bars and printed tensors reach 100 KB in one line; head and tail say all that is parsed.
LOG_PARSED_LINE_BYTES = 1 << 16
# What a message says stands at its beginning; patterns are tried on this much, which bounds their time.
LOG_MATCHED_CHARS = 4000
# One read of a log: about 2,000 lines, parsed in 40 ms. The rest comes in further turns; the agent answers meanwhile.
LOG_READ_BYTES = 1 << 18
# An exception's message with a list of allowed values fits; a page of shapes does not help anybody.
FAILURE_CAUSE_SHOWN_CHARS = 600
# While starting, phases should appear at once; at rest one stat() of the log and one look at the children must stay
# far below 1 % of a core.
STARTING_POLL_S = 0.2
READY_POLL_S = 2.0
STARTING_SCAN_S = 1.0
READY_SCAN_S = 5.0
# The first request compiles kernels on some backends; ten minutes is what silent compilation took in field reports.
SMOKE_TIMEOUT_S = 600.0
SERVER_INFO_TIMEOUT_S = 30.0
# A server asked to stop drains requests first: SGLang took 7 s in the recorded launches.
STOP_GRACE_S = 20.0
# After SIGKILL only the kernel's clean-up of a large process remains; longer means an uninterruptible wait.
KILL_WAIT_S = 20.0
# A driver gives memory back within a few seconds of the last process; the host's is back at once.
MEMORY_WAIT_S = 15.0
HOST_MEMORY_WAIT_S = 2.0
# Other processes of the machine move this much meanwhile.
MEMORY_TOLERANCE_BYTES = 512 << 20
PORT_WAIT_S = 10.0
# Silence: reading 397 B parameters from a slow disk or compiling kernels can be quiet for minutes. After the first
# limit an alarm is raised, after the second the launch is given up.
SILENCE_ALARM_S = 300.0
SILENCE_LIMIT_S = 1800.0
# The first collective takes under a second; with broken peer-to-peer access it never returns.
COLLECTIVE_SILENCE_ALARM_S = 60.0
COLLECTIVE_SILENCE_LIMIT_S = 300.0
# Ended engines stay listed in `status` for this many entries.
ENDED_ENGINES_KEPT_COUNT = 20

# Logs of launches are kept for whoever looks back at a run; one takes some MB (hours of decode lines), so a hundred are
# weeks of tuning in about a GB.
ENGINE_LOGS_KEPT_COUNT = 100

# ---- command line

# A launch takes seconds to minutes: five looks a second cost the agent nothing and delay no script noticeably.
CLI_POLL_PERIOD_S = 0.2
# A line of progress this often while a level runs: a log of an hour stays readable.
CLI_PROGRESS_PERIOD_S = 5.0

# ---- metrics

# Steady window: filling and draining are left out, a slot that changes over is not.
STEADY_WINDOW_MIN_RATIO = 0.9
# Client verdict. Above half a core the p99 gap was the client's own in every client measured (raw transports, 2 cores).
CLIENT_CPU_MAX_PCT = 50.0
# Timer lateness at the p99. A client that keeps up beside an engine on two shared cores was late by 4-15 ms, one that
# does not by 80 ms to seconds; below this the tails of TTFT and ITL are still the server's.
CLIENT_LAG_MAX_MS = 50.0
# Fewer requests on the way than asked for, by more than a tenth, is another load than the one that was asked for.
CLIENT_IN_FLIGHT_MIN_RATIO = 0.9

# ---- comparing two runs

# Enough for the 2.5th and 97.5th percentile to move by less than a tenth of the interval between seeds.
BOOTSTRAP_RESAMPLES_COUNT = 2000
# Resamples drawn at once hold at most this many values (32 MB of doubles), whatever the number of requests.
BOOTSTRAP_BATCH_VALUES_COUNT = 4_000_000
# With fewer requests (or waves of them) per side, the interval of two equal runs excluded 1 in over 5 % of 600 trials.
BOOTSTRAP_MIN_UNITS_COUNT = 5
# Records must give back the level's stored figure within this, else they and the figure are not of one measurement.
RECORDS_MATCH_TOLERANCE_RATIO = 1e-3
# Prefix-cache hits differing by more than one point of the input explain a gain by themselves (cache left warm).
CACHED_SHARE_DIFFERENCE_MAX_PCT = 1.0

# ---- ports

# SGLang's own default port, and enough room above it for one engine per GPU of a host and its neighbours.
FIRST_ENGINE_PORT = 30000
LAST_ENGINE_PORT = 30999

# ---- reference engine

# How often the interpreter lets another thread in. Its default of 5 ms would add up to that to every streamed chunk
# while the scheduler's thread computes.
THREAD_SWITCH_INTERVAL_S = 0.0005
# Above this many tokens, picking each expert's own costs less than passing all of them through all experts (measured on
# one core with 3 of 4 experts of 192: 160 tokens take 1.29 ms picked and 1.38 ms all, 64 take 0.59 and 0.57).
MOE_DENSE_LIMIT_TOKENS = 128
# Prompt tokens that a delta-net solves at once: the triangular system grows with the square of it.
DELTA_NET_CHUNK_TOKENS = 64
# Tokens of one page of the prefix cache: a delta-net's states are at hand after each of its chunks, and nowhere else.
PREFIX_PAGE_TOKENS = DELTA_NET_CHUNK_TOKENS
# Pages that the prefix cache holds: 4096 tokens, one context of the shipped checkpoint. A page is mostly states
# (0.8 MiB of about 1 MiB there), so more would soon outweigh the KV pool.
PREFIX_CACHE_PAGES_COUNT = 64
# The KV pool holds this many requests of full length. Real ones are shorter, and the others wait; a pool for all slots
# at full length would take four times as much memory.
KV_POOL_CONTEXTS_COUNT = 4
# A longer context is a slip of the pen: the published Qwen3.5 models reach 1,010,000 tokens at most.
CONTEXT_LENGTH_MAX_TOKENS = 1 << 20
# A request body. Token ids of the longest context take 8 bytes each as JSON; four times that is no prompt.
REFERENCE_BODY_LIMIT_BYTES = 32 << 20
# Unicode's NFC, which tokenizers begin with, makes one character of at most four.
TEXT_SHRINK_MAX_RATIO = 4
# A refusal repeats what was wrong: this much of a value, and so many of the problems, say what it was.
REFUSED_VALUE_SHOWN_CHARS = 200
REFUSED_PROBLEMS_SHOWN_COUNT = 5
# SGLang's own bound: below this temperature the division loses all precision, and the best token is taken.
GREEDY_BELOW_TEMPERATURE_RATIO = 1e-6

# ---- checkpoints

# The format's own limit (safetensors' MAX_HEADER_SIZE): a longer header is refused by every reader.
SAFETENSORS_HEADER_LIMIT_BYTES = 100_000_000

# ---- engines

# An interpreter that is asked where a package lies starts in well under a second; a cold network disk takes longer.
INTERPRETER_ANSWER_TIMEOUT_S = 20.0
