"""Request records made from milliseconds."""

from collections.abc import Sequence
from typing import Any

from backend.schema.load import RequestRecord, SpecCounts

MS = 1_000_000


def record(
    sent_ms: float, arrivals_ms: Sequence[float] = (), tokens: Sequence[int] = (), **fields: Any
) -> RequestRecord:
    """A request of level 1; it ends with its last arrival unless `end_ms` says otherwise."""
    at = [int(ms * MS) for ms in arrivals_ms]
    end_ns = int(fields.pop("end_ms", arrivals_ms[-1] if arrivals_ms else sent_ms) * MS)
    due_ns = int(fields.pop("due_ms", sent_ms) * MS)
    values = {
        "run_id": "r",
        "level": 1,
        "index": 0,
        "phase": "measure",
        "prompt_id": "p",
        "intended_ns": due_ns,
        "sent_ns": int(sent_ms * MS),
        "first_ns": at[0] if at else None,
        "last_ns": at[-1] if at else None,
        "end_ns": end_ns,
        "chunk_ns": at,
        "chunk_tokens": list(tokens),
        "output_tokens": tokens[-1] if tokens else None,
        "ok": True,
        **fields,
    }
    return RequestRecord.model_validate(values)


def spec(verify_ct: int, correct: int, proposed: int, histogram: list[int] | None = None) -> SpecCounts:
    return SpecCounts(verify_ct=verify_ct, correct_drafts=correct, proposed_drafts=proposed, histogram=histogram)
