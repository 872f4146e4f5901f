"""Speculation counters of one request, in every spelling that servers use.

`spec_num_correct_drafts` and `spec_num_proposed_drafts` are the current names, `spec_accepted_drafts` and
`spec_proposed_drafts` their aliases, `spec_accept_token_num` and `spec_draft_token_num` the oldest ones. All count
drafts without the bonus token. Rates and lengths that the server derived are not read, except its accept length, which
is shown beside ours.
"""

from collections.abc import Mapping
from typing import Any

CORRECT = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")


def spec_counts(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fields of `SpecCounts` from the last `meta_info` of a stream; None when the server gives no counts."""
    verify_ct = _count(meta, ("spec_verify_ct",))
    histogram = _histogram(meta)
    correct = _count(meta, CORRECT)
    if correct is None and histogram is not None:
        correct = sum(drafts * steps for drafts, steps in enumerate(histogram))
    if verify_ct is None or correct is None:
        return None
    length = meta.get("spec_accept_length")
    return {
        "verify_ct": verify_ct,
        "correct_drafts": correct,
        "proposed_drafts": _count(meta, PROPOSED) or 0,
        "histogram": histogram,
        "engine_accept_length": float(length) if isinstance(length, int | float) else None,
    }


def _count(meta: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((int(meta[name]) for name in names if isinstance(meta.get(name), int | float)), None)


def _histogram(meta: Mapping[str, Any]) -> list[int] | None:
    found = next((meta[name] for name in HISTOGRAM if isinstance(meta.get(name), list)), None)
    return [int(steps) for steps in found] if found is not None else None
