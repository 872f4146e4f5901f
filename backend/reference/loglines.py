"""Log lines in SGLang's words, on stderr, so that one parser reads both engines.

They are told figures and know nothing of where those come from; no torch here. "GB" means 2**30 bytes, as there. Sizes
have six decimals instead of two: a tiny model would read 0.00.
"""

import logging
import sys
from dataclasses import dataclass
from typing import Any

from backend.reference.hostmemory import GIB, available_bytes
from backend.reference.server_args import ServerArgs
from backend.reference.stats import Stats

DATE_FORMAT = "%Y-%m-%d %H:%M:%S"
READY = "The server is fired up and ready to roll!"
logger = logging.getLogger("slipstream.reference")


def configure(level: str) -> None:
    """Everything to stderr with SGLang's prefix."""
    logging.basicConfig(
        level=level.upper(), format="[%(asctime)s] %(message)s", datefmt=DATE_FORMAT, stream=sys.stderr, force=True
    )


def uvicorn_config(level: str) -> dict[str, Any]:
    """uvicorn's own lines with the same prefix, also on stderr."""
    access = '[%(asctime)s] %(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s'
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "default": {
                "()": "uvicorn.logging.DefaultFormatter",
                "fmt": "[%(asctime)s] %(levelprefix)s %(message)s",
                "datefmt": DATE_FORMAT,
                "use_colors": False,
            },
            "access": {
                "()": "uvicorn.logging.AccessFormatter",
                "fmt": access,
                "datefmt": DATE_FORMAT,
                "use_colors": False,
            },
        },
        "handlers": {
            name: {"class": "logging.StreamHandler", "formatter": name, "stream": "ext://sys.stderr"}
            for name in ("default", "access")
        },
        "loggers": {
            "uvicorn": {"handlers": ["default"], "level": level.upper(), "propagate": False},
            "uvicorn.access": {"handlers": ["access"], "level": level.upper(), "propagate": False},
        },
    }


def gb(size: int) -> str:
    """Bytes as SGLang's GB."""
    return f"{size / GIB:.6f}"


def load_begin() -> None:
    """Before weights are read."""
    logger.info("Load weight begin. avail mem=%s GB", gb(available_bytes()))


def load_end(seconds: float, architecture: str, dtype: str, size: int) -> None:
    """After weights of `size` bytes were read."""
    logger.info(
        "Load weight end. elapsed=%.2f s, type=%s, dtype=torch.%s, avail mem=%s GB, mem usage=%s GB.",
        seconds,
        architecture,
        dtype,
        gb(available_bytes()),
        gb(size),
    )


def prefill(
    stats: Stats, args: ServerArgs, kv_tokens: int, tokens: int, cached: int, pending: int, seconds: float
) -> None:
    """After one prompt chunk of `tokens`, a batch of one request; `cached` more before it came from the prefix cache,
    and `pending` prompt tokens of all requests are still to be computed."""
    logger.info(
        "Prefill batch, #new-seq: 1, #new-token: %d, #cached-token: %d, full token usage: %.2f, mamba usage: %.2f, "
        "#running-req: %d, #queue-req: %d, #pending-token: %d, cpu graph: False, input throughput (token/s): %.2f",
        tokens,
        cached,
        stats.used_tokens / kv_tokens,
        stats.running / args.max_running_requests,
        stats.running,
        stats.queued,
        pending,
        tokens / max(seconds, 1e-9),
    )


def decode(stats: Stats, args: ServerArgs, kv_tokens: int) -> None:
    """Once per decode_log_interval steps."""
    accept = ""
    length, rate = stats.last_interval.length, stats.last_interval.rate
    if length is not None and rate is not None:
        accept = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
    logger.info(
        "Decode batch, #running-req: %d, #full token: %d, full token usage: %.2f, mamba num: %d, mamba usage: %.2f, "
        "%scpu graph: False, gen throughput (token/s): %.2f, #queue-req: %d",
        stats.running,
        stats.used_tokens,
        stats.used_tokens / kv_tokens,
        stats.running,
        stats.running / args.max_running_requests,
        accept,
        stats.gen_throughput,
        stats.queued,
    )


@dataclass(frozen=True)
class PoolBytes:
    """Sizes of the tensors that were allocated. `kv` has keys and values of the target and, with MTP, of the draft;
    `intermediate` is what a verification keeps of delta-net states and convolution windows, None without MTP."""

    conv: int
    ssm: int
    intermediate: tuple[int, int] | None
    kv: list[tuple[int, int]]


def pools(sizes: PoolBytes, args: ServerArgs, kv_tokens: int, context_length: int) -> None:
    """After the caches were allocated."""
    intermediate = ""
    if sizes.intermediate is not None:
        states, windows = sizes.intermediate
        intermediate = (
            f"intermediate_ssm_state_cache size: {gb(states)}GB intermediate_conv_window_cache size: {gb(windows)}GB "
        )
    logger.info(
        "Mamba Cache is allocated. max_mamba_cache_size: %d, conv_state size: %sGB, ssm_state size: %sGB %s",
        args.max_running_requests,
        gb(sizes.conv),
        gb(sizes.ssm),
        intermediate,
    )
    for keys, values in sizes.kv:
        logger.info(
            "KV Cache is allocated. dtype: torch.float32, #tokens: %d, K size: %s GB, V size: %s GB",
            kv_tokens,
            gb(keys),
            gb(values),
        )
        logger.info("Memory pool end. avail mem=%s GB", gb(available_bytes()))
    logger.info(
        "max_total_num_tokens=%d, chunked_prefill_size=%d, max_prefill_tokens=%d, max_running_requests=%d, "
        "context_len=%d, available_gpu_mem=%s GB",
        kv_tokens,
        args.chunked_prefill_size,
        context_length,
        args.max_running_requests,
        context_length,
        gb(available_bytes()),
    )
