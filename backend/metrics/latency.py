"""Latencies of requests, from the arrivals and the server's token counts in their records.

Notation: t0 request written; tF first event that added tokens, k1 tokens in it; tL last such event; n output tokens.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from backend.schema.load import RequestRecord

_NS_PER_MS = 1e6


def ttft_ms(records: Sequence[RequestRecord]) -> list[float]:
    """tF − t0 of each request that got a token."""
    return [(r.first_ns - r.sent_ns) / _NS_PER_MS for r in records if r.first_ns is not None]


def ttfa_ms(records: Sequence[RequestRecord]) -> list[float]:
    """First token of the answer proper − t0, where reasoning and answer are told apart."""
    return [(r.first_answer_ns - r.sent_ns) / _NS_PER_MS for r in records if r.first_answer_ns is not None]


def e2e_ms(records: Sequence[RequestRecord]) -> list[float]:
    """End of the response − t0."""
    return [(r.end_ns - r.sent_ns) / _NS_PER_MS for r in records]


def request_tpot_ms(record: RequestRecord) -> float | None:
    """(tL − tF) ÷ (n − k1); None when n ≤ k1 or the events carry no counts: nothing was timed then, which is not 0."""
    if len(record.chunk_ns) < 2 or not record.chunk_tokens:
        return None
    later = (record.output_tokens or record.chunk_tokens[-1]) - record.chunk_tokens[0]
    if later <= 0:
        return None
    return (record.chunk_ns[-1] - record.chunk_ns[0]) / later / _NS_PER_MS


def tpot_ms(records: Sequence[RequestRecord]) -> list[float]:
    """TPOT of each request that has one."""
    return [value for record in records if (value := request_tpot_ms(record)) is not None]


def itl_ms(records: Sequence[RequestRecord]) -> NDArray[np.float64]:
    """Token-weighted: an event that comes Δ after the one before and adds m tokens gives m samples Δ ÷ m."""
    return _joined([_token_gaps(record) for record in records if record.chunk_tokens])


def icl_ms(records: Sequence[RequestRecord]) -> NDArray[np.float64]:
    """Raw gaps between events that added tokens."""
    return _joined([_steps(record.chunk_ns) / _NS_PER_MS for record in records])


def _token_gaps(record: RequestRecord) -> NDArray[np.float64]:
    gaps, tokens = _steps(record.chunk_ns) / _NS_PER_MS, _steps(record.chunk_tokens)
    return np.repeat(gaps / tokens, tokens)


def _steps(values: Sequence[int]) -> NDArray[np.int64]:
    """Differences of neighbours."""
    array = np.asarray(values, dtype=np.int64)
    return array[1:] - array[:-1]


def _joined(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(parts) if parts else np.empty(0)
