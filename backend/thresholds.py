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

# A second process that writes (an agent that is just ending) holds the write lock for milliseconds; a stuck disk longer.
STORE_BUSY_TIMEOUT_S = 10.0
# Closing drains the queue: a big run's samples take a second or two, a hung network disk must not hang the agent.
STORE_CLOSE_TIMEOUT_S = 10.0
# An engine log in an export: head and tail are kept up to this size; a 397B launch and hours of decode lines exceed it.
EXPORT_LOG_MAX_BYTES = 8 << 20
# An import is refused beyond these: an hour at 256 users is about 100 MiB unpacked; what is larger is no run of ours.
IMPORT_MAX_BYTES = 512 << 20
IMPORT_MAX_UNPACKED_BYTES = 1 << 30
IMPORT_MAX_TABLE_BYTES = 1 << 30
