"""Failure classes, one row each: what a message looks like, what it means, what to do.

Rows are tried in this order on one message at a time, without its time stamp. Wrapper rows only say that something died
elsewhere; they count when no cause was found.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class FailureRow:
    """One failure class. `pattern` None: no message says so, the supervisor concludes it."""

    failure_class: str
    pattern: re.Pattern[str] | None
    advice: str
    is_wrapper: bool = False


def _row(failure_class: str, *patterns: str, advice: str, is_wrapper: bool = False) -> FailureRow:
    return FailureRow(failure_class, re.compile("|".join(patterns)) if patterns else None, advice, is_wrapper)


_NOT_SUPPORTED = r"(?:not support|only support|unsupported|incompatible)"

FAILURES: tuple[FailureRow, ...] = (
    # ---- the command line, in the words of argparse
    _row(
        "unknown_flag",
        r"error: unrecognized arguments: ",
        r"error: ambiguous option: ",
        advice="this engine has no such flag; `scan` lists the ones it has",
    ),
    _row(
        "invalid_choice",
        r"error: argument .*: invalid choice: ",
        advice="pick one of the values that the message lists",
    ),
    _row(
        "config_rejected",
        r"^\S.*: error: (?:argument |the following arguments are required|.*requires)",
        r"^UsageError: ",  # the reference engine's word for settings that cannot be used
        advice="change the setting that the message names",
    ),
    # ---- memory
    _row(
        "kv_pool_too_small",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        r"leave no GPU memory for the KV cache",
        advice="raise --mem-fraction-static; if a higher one then runs out of memory, shrink what stands beside the "
        "pool: fewer running requests, fewer graph sizes, a shorter context, or speculation off",
    ),
    _row(
        "kernel_smem_limit",
        r"out of resource: shared memory",
        r"OutOfResources: .*shared memory",
        r"uses too much shared data",
        advice="a kernel needs more shared memory than this GPU has: choose another backend for it "
        "(--attention-backend, --moe-runner-backend)",
    ),
    _row(
        "oom_device",
        r"CUDA out of memory",
        r"torch\.(?:cuda\.)?OutOfMemoryError",
        r"^(?:Prefill|Decode) out of memory",
        r"CUDA_ERROR_OUT_OF_MEMORY",
        r"cudaErrorMemoryAllocation",
        advice="the GPU is full: lower --mem-fraction-static or --max-running-requests, capture fewer graph sizes "
        "(--cuda-graph-max-bs), shorten the context, or turn speculation off",
    ),
    _row(
        "host_memory",
        r"DefaultCPUAllocator: (?:not enough|can't allocate) memory",
        r"^MemoryError\b",
        r"Cannot allocate memory",
        r"std::bad_alloc",
        advice="host memory, not GPU memory, ran out: free some, or load fewer files at once",
    ),
    _row(
        "killed_by_os",
        r"crashed with exit code -9\b",
        r"^Exit code: -9\b",
        r"scheduler is dead.*exit code:? -9\b",
        advice="a process was ended by SIGKILL from outside, mostly by the kernel when host memory (not GPU "
        "memory) runs out: look at `dmesg` and free some; a draft model needs host memory of its own while it loads",
    ),
    # ---- the machine
    _row(
        "port_in_use",
        r"[Aa]ddress already in use",
        r"EADDRINUSE",
        advice="another process listens there: start again without a port and a free one is picked, or choose another "
        "--port",
    ),
    _row(
        "missing_kernel_for_arch",
        r"no kernel image is available for execution",
        r"cudaErrorNoKernelImageForDevice",
        r"invalid device function",
        r"not supported on \.target",
        advice="the engine was built without code for this GPU's architecture: install a build for it, or choose "
        "another backend",
    ),
    _row(
        "driver_or_library",
        # Not anywhere in a line: engines also list optional modules that they go on without.
        r"^ModuleNotFoundError: No module named ",
        r"^\S*python[\d.]*: No module named ",
        r"^\S*python[\d.]*: Error while finding module specification",
        advice="the interpreter lacks a module that the engine needs: give the interpreter of the environment that the "
        "engine is installed in (--engine ENV/bin/python), or install the module there",
    ),
    _row(
        "driver_or_library",
        r"driver version is insufficient",
        r"Found no NVIDIA driver",
        r"No CUDA GPUs are available",
        r"cannot open shared object file",
        r"undefined symbol: ",
        advice="driver and libraries do not fit together: `doctor` shows the driver; reinstall the engine's "
        "environment for it",
    ),
    _row(
        "nccl_init_stall",
        r"Watchdog caught collective operation timeout",
        r"DistBackendError.*(?:[Tt]imeout|timed out)",
        advice="the GPUs cannot talk to each other: try NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce, and look "
        "at IOMMU/ACS settings of the host",
    ),
    # ---- the checkpoint
    _row(
        "model_not_found",
        r"is not a local folder and is not a valid model identifier",
        r"does not appear to have a file named",
        r"Repository ?Not ?Found",
        r"LocalEntryNotFoundError",
        r"Can't load the configuration of",
        advice="give an existing checkpoint directory; Slipstream downloads nothing",
    ),
    _row(
        "missing_weights",
        r"Cannot find any model weights",
        r"Missing key\(s\) in state_dict",
        r"[Ww]eights? .*\b(?:is|are) missing",
        advice="the checkpoint is incomplete: compare its index with its files (`inspect`)",
    ),
    _row(
        "shape_mismatch",
        r"size mismatch for ",
        r"[Ss]hape mismatch",
        r"[Ss]izes of tensors must match",
        r"The size of tensor a \(",
        advice="tensors have another shape than the model expects: was this checkpoint made for this engine and these "
        "parallel sizes?",
    ),
    _row(
        "checkpoint_damaged",
        r"SafetensorError: ",
        r"^InputError: ",  # the reference engine's word for a file that cannot be used
        advice="a file of the checkpoint is cut off or not what belongs there: copy it anew from where it came from",
    ),
    # ---- backends and kernels
    _row(
        "moe_backend_unsupported",
        rf"(?i)moe[_ -](?:runner[_ -]|a2a[_ -])?backend.*{_NOT_SUPPORTED}",
        r"No \S+ MoE backend supports",
        r"does not support MoEActivation",
        rf"{_NOT_SUPPORTED}.*moe[_ -](?:runner[_ -]|a2a[_ -])?backend",
        advice="choose another --moe-runner-backend (and --speculative-moe-runner-backend)",
    ),
    _row(
        "backend_unsupported",
        rf"(?i)(?:attention|gemm|sampling|linear)[_ -](?:attn[_ -])?backend.*{_NOT_SUPPORTED}",
        r"backend .* is not supported",
        advice="choose another backend for this part; `auto` lets the engine decide",
    ),
    _row(
        "compile_failed",
        r"ninja: build stopped",
        r"Error building extension",
        r"nvcc fatal",
        r"ptxas fatal",
        r"NVCC compilation failed",
        r"CompilationError",
        advice="a kernel could not be compiled: the compiler's own message stands above; does its CUDA version fit the "
        "engine's?",
    ),
    # ---- ends that the engine itself reports
    _row(
        "watchdog_timeout",
        r"watchdog timeout \(.*self\.soft=False",
        advice="nothing moved for too long: look at the stack in the log for what it waited for, then launch again",
    ),
    _row(
        "warmup_failed",
        r"Initialization failed\. warmup error",
        advice="the engine started and its first request failed: the lines above say why",
    ),
    # ---- wrappers
    _row(
        "scheduler_died",
        r"Subprocess \S+ \(pid=\d+\) crashed",
        r"Rank \d+ scheduler is dead",
        r"Scheduler hit an exception",
        r"Received sigquit from a child",
        r"SIGQUIT received",
        advice="the scheduler process ended: the lines above say why",
        is_wrapper=True,
    ),
    # ---- concluded without a message
    _row("server_lost", advice="the engine ended without a word: read the last lines of its log, and `dmesg`"),
    _row("unknown", advice="read the last lines of the log"),
)

ADVICE = {row.failure_class: row.advice for row in FAILURES}
