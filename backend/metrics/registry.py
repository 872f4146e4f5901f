"""Every metric, declared once. Tables, charts, exports, the glossary and the comparison read this and nothing else.

The definitions are made for streams whose chunks carry several tokens: tokens are the server's counts, and one chunk
with a gap of 30 ms and three tokens is three tokens of 10 ms, so a figure means the same with and without speculation.
"""

from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", "neither"]
Place = Literal["metrics", "acceptance", "client"]


@dataclass(frozen=True)
class MetricSpec:
    """One metric.

    name          key in the level's `place` (`metrics.ttft_ms`)
    distribution  whether the value is a distribution over requests or tokens, or one number
    formula       how it is computed, in words
    needs         what must have been observed; without it the value is absent, with a reason
    """

    name: str
    label: str
    unit: str
    better: Better
    formula: str
    needs: str
    place: Place = "metrics"
    distribution: bool = False


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "output_tok_s",
        "Output",
        "tok/s",
        "higher",
        "Output tokens inside the steady window ÷ its length. The window is the longest time with at least 90 % of the "
        "requested concurrency in flight; cumulative counts are interpolated linearly at its two borders.",
        "token counts in every event of the stream",
    ),
    MetricSpec(
        "output_tok_s_whole",
        "Output, whole level",
        "tok/s",
        "higher",
        "All output tokens of the level ÷ time from the first request sent to the last one ended.",
        "token counts",
    ),
    MetricSpec(
        "tok_s_user",
        "Output per user",
        "tok/s",
        "higher",
        "1 ÷ TPOT of each request: the pace one user sees once the answer has begun. TTFT is not part of it.",
        "token counts in every event of the stream",
        distribution=True,
    ),
    MetricSpec(
        "ttft_ms",
        "TTFT",
        "ms",
        "lower",
        "Time from writing the request to the first event that adds a token: answer, reasoning or tool call.",
        "one token",
        distribution=True,
    ),
    MetricSpec(
        "ttfa_ms",
        "TTFA",
        "ms",
        "lower",
        "Time from writing the request to the first token of the answer proper, after any reasoning.",
        "an endpoint that separates reasoning from the answer (chat)",
        distribution=True,
    ),
    MetricSpec(
        "tpot_ms",
        "TPOT",
        "ms",
        "lower",
        "(arrival of the last token − arrival of the first) ÷ (tokens − tokens of the first event), per request. "
        "Absent for an answer that came in one event.",
        "token counts in every event of the stream",
        distribution=True,
    ),
    MetricSpec(
        "itl_ms",
        "ITL",
        "ms",
        "lower",
        "Latency per token: an event that comes Δ after the one before and adds m tokens gives m samples of Δ ÷ m.",
        "token counts in every event of the stream",
        distribution=True,
    ),
    MetricSpec(
        "icl_ms",
        "Chunk gap",
        "ms",
        "lower",
        "Time between two events that add tokens, however many they add: the stutter that a reader sees. Speculation "
        "raises it by design, so it does not compare servers with and without.",
        "two events that add tokens",
        distribution=True,
    ),
    MetricSpec(
        "e2e_ms",
        "End to end",
        "ms",
        "lower",
        "Time from writing the request to the end of its response.",
        "one request that succeeded",
        distribution=True,
    ),
    MetricSpec(
        "request_s",
        "Requests",
        "1/s",
        "higher",
        "Requests that succeeded ÷ time from the first request sent to the last one ended.",
        "one request that succeeded",
    ),
    MetricSpec(
        "goodput_s",
        "Goodput",
        "1/s",
        "higher",
        "Requests per second that met every service-level objective; failed ones count as not met.",
        "a service-level objective",
    ),
    MetricSpec(
        "accept_length",
        "Accept length",
        "tokens/step",
        "higher",
        "1 + correct drafts ÷ verify steps, each summed over the requests: tokens that one pass of the target yields.",
        "speculation counters per request (/generate)",
        place="acceptance",
    ),
    MetricSpec(
        "engine_accept_length",
        "Accept length by the engine",
        "tokens/step",
        "higher",
        "Output tokens ÷ verify steps, each summed over the requests. Counts the token that prefill yields as well, so "
        "it reads higher for short answers.",
        "speculation counters per request (/generate)",
        place="acceptance",
    ),
    MetricSpec(
        "accept_rate",
        "Accept rate",
        "ratio",
        "higher",
        "Correct drafts ÷ proposed drafts, each summed over the requests. The bonus token is in neither.",
        "speculation counters per request (/generate)",
        place="acceptance",
    ),
    MetricSpec(
        "per_position",
        "Acceptance by position",
        "ratio",
        "higher",
        "Share of all verify steps in which draft i was accepted: steps with at least i correct drafts ÷ steps.",
        "the histogram of correct drafts per request (/generate)",
        place="acceptance",
    ),
    MetricSpec(
        "cpu_pct",
        "Load client CPU",
        "% of a core",
        "lower",
        "Processor time of the load client's process ÷ time, over the counted part of the level.",
        "a level that the client measured to its end",
        place="client",
    ),
    MetricSpec(
        "us_per_chunk",
        "Load client cost",
        "µs/chunk",
        "lower",
        "Processor time of the load client's process ÷ events that added tokens.",
        "one event that added tokens",
        place="client",
    ),
    MetricSpec(
        "loop_lag_p99_ms",
        "Load client lag",
        "ms",
        "lower",
        "99th percentile of how late the client's event loop served a timer, every missed deadline counted.",
        "a level that the client measured to its end",
        place="client",
    ),
    MetricSpec(
        "in_flight_achieved",
        "In flight",
        "requests",
        "neither",
        "Requests on the way, as a mean over the time in which there was work to hand out.",
        "more requests than slots",
        place="client",
    ),
)

_BY_NAME = {spec.name: spec for spec in METRICS}


def metric(name: str) -> MetricSpec:
    """The declaration of this metric. KeyError when there is none."""
    return _BY_NAME[name]
