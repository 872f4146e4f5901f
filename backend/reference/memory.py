"""How much of the host's memory the engine takes, planned before it is taken and counted after."""

from dataclasses import dataclass

import torch

from backend.errors import ConflictError
from backend.reference.cache import KvPool, StatePool
from backend.reference.config import TextConfig
from backend.reference.hostmemory import GIB
from backend.reference.prefix_cache import PrefixCache
from backend.reference.server_args import ServerArgs
from backend.thresholds import KV_POOL_CONTEXTS_COUNT, PREFIX_CACHE_PAGES_COUNT, PREFIX_PAGE_TOKENS

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class PoolPlan:
    """Sizes of the pools. `kv_tokens` is what requests may use; `kv_slack` more are there for unverified tokens."""

    kv_tokens: int
    kv_slack: int
    context_length: int
    prefix_pages: int


def plan_pools(config: TextConfig, args: ServerArgs, weight_bytes: int, available: int) -> tuple[PoolPlan, list[str]]:
    """Sizes that fit `mem_fraction_static` of `available` bytes together with the weights, and a line per change.

    Raises ConflictError in SGLang's words when not one token fits.
    """
    context = args.context_length or config.max_position_embeddings
    slots, drafted = args.max_running_requests, drafted_tokens(args)
    slack = slots * drafted
    with torch.device("meta"):
        states = StatePool.allocate(config, slots, drafted, TORCH_DTYPES[args.mamba_ssm_dtype])
    fixed = weight_bytes + states.state_nbytes + states.intermediate_ssm_nbytes + states.intermediate_conv_nbytes
    per_token = KvPool.bytes_per_token(config, full_attention_layers(config) + (1 if drafted else 0))
    pages = 0 if args.disable_radix_cache else min(PREFIX_CACHE_PAGES_COUNT, -(-context // PREFIX_PAGE_TOKENS))
    fixed += PrefixCache.nbytes(pages, per_token, states.state_nbytes // slots, config.hidden_size)
    fits = int((available * args.mem_fraction_static - fixed) // per_token) - slack
    if fits <= 0:
        share = available * args.mem_fraction_static
        raise ConflictError(
            "Not enough memory. Please try to increase --mem-fraction-static. Its share of the host's memory is "
            f"{share / GIB:.3f} GiB now, weights and states alone take {fixed / GIB:.3f} GiB; fewer "
            "--max-running-requests need less."
        )
    tokens = min(fits, min(slots, KV_POOL_CONTEXTS_COUNT) * context)
    changes = []
    if args.max_total_tokens is not None:
        if args.max_total_tokens > tokens:
            changes.append(
                f"max_total_tokens={args.max_total_tokens} is larger than the profiled value {tokens}. "
                "Use the profiled value instead."
            )
        tokens = min(tokens, args.max_total_tokens)
    return PoolPlan(tokens, slack, context, pages), changes


def drafted_tokens(args: ServerArgs) -> int:
    """Tokens of one verification per request; 0 without MTP."""
    return args.draft_steps + 1 if args.draft_steps else 0


def full_attention_layers(config: TextConfig) -> int:
    """Main layers that keep keys and values."""
    return sum(config.is_full_attention(n) for n in range(config.num_hidden_layers))
