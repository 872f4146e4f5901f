"""/metrics: the names of SGLang that this engine can measure, in Prometheus' text format."""

from backend.reference.server_args import ServerArgs
from backend.reference.stats import Histogram, Stats


def render(stats: Stats, args: ServerArgs, kv_tokens: int) -> str:
    """The whole page. Acceptance appears with MTP only; its gauges describe the last log interval."""
    scheduler = (
        f'engine_type="unified",model_name="{_escape(args.served_model_name)}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    )
    tokenizer = f'engine_type="unified",model_name="{_escape(args.served_model_name)}"'
    gauges = {
        "num_running_reqs": stats.running,
        "num_queue_reqs": stats.queued,
        "num_used_tokens": stats.used_tokens,
        "token_usage": stats.used_tokens / kv_tokens,
        "full_token_usage": stats.used_tokens / kv_tokens,
        "mamba_usage": stats.running / args.max_running_requests,
        "max_total_num_tokens": kv_tokens,
        "gen_throughput": stats.gen_throughput,
    }
    counters = {
        "prompt_tokens_total": stats.prompt_tokens,
        "cached_tokens_total": stats.prefill_cached,
        "generation_tokens_total": stats.generation_tokens,
        "num_requests_total": stats.requests,
        "num_aborted_requests_total": stats.aborted,
    }
    if args.draft_steps:
        gauges |= {
            "spec_accept_length": stats.last_interval.length or 0.0,
            "spec_accept_rate": stats.last_interval.rate or 0.0,
        }
        counters["spec_verify_calls_total"] = stats.verify_calls
    lines: list[str] = []
    for name, value in gauges.items():
        lines += [f"# TYPE sglang:{name} gauge", f"sglang:{name}{{{scheduler}}} {float(value)}"]
    for name, value in counters.items():
        lines += [f"# TYPE sglang:{name} counter", f"sglang:{name}{{{tokenizer}}} {float(value)}"]
    lines.append("# TYPE sglang:realtime_tokens_total counter")
    for mode, value in (
        ("prefill_compute", stats.prefill_computed),
        ("prefill_cache", stats.prefill_cached),
        ("decode", stats.decoded),
    ):
        lines.append(f'sglang:realtime_tokens_total{{{scheduler},mode="{mode}"}} {float(value)}')
    for name, histogram in (
        ("time_to_first_token_seconds", stats.first_token),
        ("e2e_request_latency_seconds", stats.latency),
        ("queue_time_seconds", stats.queue_time),
    ):
        lines += _histogram(name, tokenizer, histogram)
    return "\n".join(lines) + "\n"


def _histogram(name: str, labels: str, histogram: Histogram) -> list[str]:
    lines = [f"# TYPE sglang:{name} histogram", f"sglang:{name}_sum{{{labels}}} {histogram.total}"]
    running = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        running += count
        lines.append(f'sglang:{name}_bucket{{{labels},le="{bound}"}} {float(running)}')
    return [*lines, f"sglang:{name}_count{{{labels}}} {float(running)}"]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
