"""Failure classes: one row per class and pattern. The cause that came first beats the wrappers that report it.

Rows are tried on one message at a time, without its time stamp. Wrapper rows (`is_wrapper`) only say that something died
elsewhere; they count when no cause was found.
"""

import re
from dataclasses import dataclass, field

from backend.schema.engine import Failure, PhaseName
from backend.thresholds import FAILURE_CAUSE_SHOWN_CHARS


@dataclass(frozen=True)
class FailureRow:
    """What a message looks like, what it means, and what to do. `phases` None: in any phase."""

    failure_class: str
    pattern: re.Pattern[str]
    advice: str
    phases: frozenset[PhaseName] | None = None
    is_wrapper: bool = False


def _row(failure_class: str, pattern: str, advice: str, *, is_wrapper: bool = False) -> FailureRow:
    return FailureRow(failure_class, re.compile(pattern), advice, None, is_wrapper)


_LESS_MEMORY = (
    "lower --mem-fraction-static or --max-running-requests, capture fewer graph sizes (--cuda-graph-max-bs), "
    "shorten the context, or turn speculation off"
)

FAILURES: tuple[FailureRow, ...] = (
    # --- our command line, in the words of argparse
    _row("unknown_flag", r"error: unrecognized arguments: |error: ambiguous option: ", "this engine has no such flag; `scan` lists the ones it has"),
    _row("invalid_choice", r"error: argument .*: invalid choice: ", "pick one of the values that the message lists"),
    _row("config_rejected", r"^\S.*: error: (?:argument |the following arguments are required)", "correct the value that the message names"),
    # --- memory
    _row("kv_pool_too_small", r"Not enough memory\. Please try to increase --mem-fraction-static|leave no GPU memory for the KV cache",
         "raise --mem-fraction-static; if a higher one then runs out of memory, make the part beside the pool smaller: fewer running "
         "requests, fewer graph sizes, a shorter context, or speculation off"),
    _row("kernel_smem_limit", r"out of resource: shared memory|OutOfResources: .*shared memory|too much shared data",
         "a kernel needs more shared memory than this GPU has: choose another backend for it (--attention-backend, --moe-runner-backend)"),
    _row("oom_device", r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|(?:Prefill|Decode) out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
         "the GPU is full: " + _LESS_MEMORY),
    _row("host_memory", r"DefaultCPUAllocator: (?:not enough|can't allocate) memory|^MemoryError\b|Cannot allocate memory|std::bad_alloc",
         "host memory, not GPU memory, ran out: free some, or load fewer files at once"),
    _row("killed_by_os", r"crashed with exit code -9\b|scheduler is dead.*exit code:? -9\b|^Exit code: -9\b|oom-kill",
         "a process was ended by SIGKILL from outside, mostly the kernel when host memory runs out: look at `dmesg`, free host "
         "memory; the draft model needs host memory of its own while it loads"),
    # --- the machine
    _row("port_in_use", r"[Aa]ddress already in use|EADDRINUSE", "another process listens there: choose another --port"),
    _row("missing_kernel_for_arch", r"no kernel image is available for execution|cudaErrorNoKernelImageForDevice|invalid device function",
         "the engine was built without code for this GPU's architecture: install a build for it, or choose another backend"),
    _row("driver_or_library", r"driver version is insufficient|Found no NVIDIA driver|No CUDA GPUs are available|Error 803: |cannot open shared object file|undefined symbol: ",
         "driver and libraries do not fit together: `doctor` shows the driver; reinstall the engine's environment for it"),
    _row("nccl_init_stall", r"NCCL.*(?:timed out|[Tt]imeout)|Watchdog caught collective operation timeout",
         "the GPUs cannot talk to each other: try NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce"),
    # --- the checkpoint
    _row("model_not_found", r"is not a local folder and is not a valid model identifier|does not appear to have a file named|Repository Not Found|RepositoryNotFoundError|LocalEntryNotFoundError|Can't load the configuration of|(?:checkpoint|model path) .* does not exist",
         "give an existing checkpoint directory; nothing is downloaded"),
    _row("missing_weights", r"Cannot find any model weights|Missing key\(s\) in state_dict|[Ww]eights? .*\b(?:is|are) missing|MissingWeight",
         "the checkpoint is incomplete: compare its index with its files (`inspect`)"),
    _row("shape_mismatch", r"size mismatch for |[Ss]hape mismatch|sizes? of tensors? must match|The size of tensor a \(",
         "tensors do not have the shape that the model expects: is this checkpoint made for this engine and these parallel sizes?"),
    # --- backends and kernels
    _row("moe_backend_unsupported", r"moe[_ -](?:runner[_ -])?backend.*(?:not support|only support|unsupported|requires)|(?:not support|unsupported).*moe[_ -](?:runner[_ -])?backend",
         "choose another --moe-runner-backend (and --speculative-moe-runner-backend)"),
    _row("backend_unsupported", r"(?:attention|gemm|sampling|linear)[_ -]?(?:attn )?backend.*(?:not support|only support|unsupported)|[Bb]ackend .* is not supported",
         "choose another backend for this part; `auto` lets the engine decide"),
    _row("compile_failed", r"ninja: build stopped|Error building extension|nvcc fatal|ptxas fatal|NVCC compilation failed|CompilationError",
         "a kernel could not be compiled: the compiler's own message stands above; check that its CUDA version fits the engine's"),
    # --- ends that the engine itself reports
    _row("watchdog_timeout", r"watchdog timeout \(.*self\.soft=False", "one step took longer than the engine's watchdog allows: look at the stack above it"),
    _row("warmup_failed", r"Initialization failed\. warmup error", "the engine's own first request failed; the error above says why"),
    # --- wrappers
    _row("scheduler_died", r"Subprocess \S+ \(pid=\d+\) crashed|Rank \d+ scheduler is dead|Scheduler hit an exception", "the scheduler process ended; the lines above say why", is_wrapper=True),
    _row("scheduler_died", r"(?i)(?:received sigquit|sigquit received)", "the scheduler process ended; the lines above say why", is_wrapper=True),
)  # fmt: skip

ADVICE = {row.failure_class: row.advice for row in reversed(FAILURES)}
ADVICE |= {
    "config_rejected": "change the setting that the message names",
    "unknown": "read the last lines of the log",
    "server_lost": "the engine ended without a word: read the last lines of its log and `dmesg`",
    "warmup_failed": "the engine said that it is ready and did not answer the first request; read the last lines of its log",
    "watchdog_timeout": "nothing was written for too long: look at what the process waits for, or launch again",
}

_EXCEPTION = re.compile(r"^(?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
_REFUSAL = re.compile(
    r"^(?:\w+\.)*(?:ValueError|AssertionError|NotImplementedError|TypeError|KeyError|ValidationError)\b"
)
# Lines that quote settings or other programs' words would match by accident; decode lines come by the million.
_NEVER = ("server_args=", "Decode batch", "Prefill batch", "INFO: ", "Ignore import error", "kill_process_tree called")


def failure(failure_class: str, cause: str, line: int | None = None) -> Failure:
    """A failure of this class with its usual advice."""
    return Failure(failure_class=failure_class, cause=cause, line=line, advice=ADVICE[failure_class])


@dataclass(frozen=True)
class _Found:
    row: FailureRow
    message: str
    line: int


@dataclass
class FailureReader:
    """Finds the cause of a failure in messages given one after the other."""

    _cause: _Found | None = None
    _wrapper: _Found | None = None
    _exception: tuple[str, int, PhaseName | None] | None = None
    _lines: int = field(default=0)

    def feed(self, message: str, line: int, phase: PhaseName | None) -> None:
        if message.startswith(_NEVER):
            return
        if _EXCEPTION.match(message):
            self._exception = (_cut(message), line, phase)
        if self._cause is not None:
            return
        for row in FAILURES:
            if (row.phases is None or phase in row.phases) and row.pattern.search(message):
                self._note(_Found(row, _cut(message), line))
                return

    def found(self) -> Failure | None:
        """The failure that the messages so far show, or None."""
        if self._cause is not None:
            return _failure(self._cause)
        if self._exception is not None:
            return self._from_exception(*self._exception)
        return _failure(self._wrapper) if self._wrapper else None

    def _note(self, found: _Found) -> None:
        if not found.row.is_wrapper:
            self._cause = found
        elif self._wrapper is None:
            self._wrapper = found

    def _from_exception(self, message: str, line: int, phase: PhaseName | None) -> Failure:
        """Nothing in the table matched: the last exception is the cause, and where it stood gives the class."""
        if phase in {None, "init"} and _REFUSAL.match(message):
            return failure("config_rejected", message, line)
        failure_class = self._wrapper.row.failure_class if self._wrapper else "unknown"
        return failure(failure_class, message, line)


def _failure(found: _Found) -> Failure:
    return Failure(failure_class=found.row.failure_class, cause=found.message, line=found.line, advice=found.row.advice)


def _cut(message: str) -> str:
    return message.strip()[:FAILURE_CAUSE_SHOWN_CHARS]
