"""The engine's arguments after parsing, and what resolving them changes. No torch here."""

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

from backend.reference.flags import parser
from backend.thresholds import CONTEXT_LENGTH_MAX_TOKENS

DEFAULT_DRAFT_STEPS = 3


@dataclass(frozen=True)
class ServerArgs:
    """One field per flag (see flags.py for their meaning), with the values that are in effect."""

    model_path: str
    tokenizer_path: str
    host: str
    port: int
    served_model_name: str
    api_key: str | None
    random_seed: int
    dtype: str
    context_length: int | None
    mem_fraction_static: float
    max_running_requests: int
    max_total_tokens: int | None
    chunked_prefill_size: int
    disable_radix_cache: bool
    stream_interval: int
    incremental_streaming_output: bool
    enable_metrics: bool
    decode_log_interval: int
    log_level: str
    skip_server_warmup: bool
    watchdog_timeout: float
    moe_runner_backend: str
    fp4_gemm_backend: str
    mamba_ssm_dtype: str
    speculative_algorithm: str | None
    speculative_draft_model_path: str | None
    speculative_num_steps: int | None
    speculative_eagle_topk: int | None
    speculative_num_draft_tokens: int | None
    speculative_moe_runner_backend: str | None

    @property
    def draft_steps(self) -> int:
        """Tokens drafted per verification; 0 without MTP."""
        return (self.speculative_num_steps or 0) if self.speculative_algorithm else 0

    def public(self) -> dict[str, object]:
        """All fields with the API key hidden."""
        return asdict(replace(self, api_key="***" if self.api_key else None))

    def __str__(self) -> str:
        return f"ServerArgs({', '.join(f'{name}={value!r}' for name, value in self.public().items())})"


def parse(argv: Sequence[str]) -> tuple[ServerArgs, list[str]]:
    """Arguments from the command line, and a line for each value that was changed. Exits with status 2 on bad ones."""
    command = parser()
    values = command.parse_args(argv)
    _check(command, values)
    values.tokenizer_path = values.tokenizer_path or values.model_path
    values.served_model_name = values.served_model_name or values.model_path
    if values.random_seed is None:
        values.random_seed = secrets.randbelow(1 << 30)
    if values.dtype == "auto":
        values.dtype = "float32"
    changes = _resolve_speculation(values)
    return ServerArgs(**{field.name: getattr(values, field.name) for field in fields(ServerArgs)}), changes


def _check(command: argparse.ArgumentParser, values: argparse.Namespace) -> None:
    if not 0 < values.mem_fraction_static <= 1:
        command.error(f"argument --mem-fraction-static: {values.mem_fraction_static} is not in (0, 1]")
    if values.chunked_prefill_size == 0 or values.chunked_prefill_size < -1:
        command.error(f"argument --chunked-prefill-size: {values.chunked_prefill_size} is neither positive nor -1")
    if not values.watchdog_timeout > 0:
        command.error(f"argument --watchdog-timeout: {values.watchdog_timeout} is not positive")
    if not 1 <= values.port <= 65535:
        command.error(f"argument --port: {values.port} is not in 1 to 65535")
    if values.random_seed is not None and not 0 <= values.random_seed < 1 << 63:
        command.error(f"argument --random-seed: {values.random_seed} is not in 0 to 2**63 - 1")
    if (values.context_length or 0) > CONTEXT_LENGTH_MAX_TOKENS:
        command.error(f"argument --context-length: {values.context_length} is above {CONTEXT_LENGTH_MAX_TOKENS}")
    for flag in (
        "max_running_requests",
        "stream_interval",
        "decode_log_interval",
        "max_total_tokens",
        "context_length",
        "speculative_num_draft_tokens",
    ):
        value = getattr(values, flag)
        if value is not None and value < 1:
            command.error(f"argument --{flag.replace('_', '-')}: {value} is not positive")


def _resolve_speculation(values: argparse.Namespace) -> list[str]:
    """Fill the three numbers of speculation in `values`; returns a line per change of what was given."""
    given = (
        values.speculative_num_steps,
        values.speculative_eagle_topk,
        values.speculative_num_draft_tokens,
        values.speculative_moe_runner_backend,
        values.speculative_draft_model_path,
    )
    if values.speculative_algorithm is None:
        if any(value is not None for value in given):
            return ["Speculative arguments have no effect without --speculative-algorithm."]
        return []
    values.speculative_algorithm = "EAGLE"
    values.speculative_moe_runner_backend = values.speculative_moe_runner_backend or values.moe_runner_backend
    changes = []
    if any(value is not None for value in given[:3]):
        for field, value in (("speculative_num_steps", DEFAULT_DRAFT_STEPS), ("speculative_eagle_topk", 1)):
            if getattr(values, field) is None:
                changes.append(f"{field} is not set: {value} is used.")
    values.speculative_num_steps = values.speculative_num_steps or DEFAULT_DRAFT_STEPS
    values.speculative_eagle_topk = 1
    needed = values.speculative_num_steps + 1
    if values.speculative_num_draft_tokens not in (None, needed):
        changes.append(
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
        )
    values.speculative_num_draft_tokens = needed
    return changes
