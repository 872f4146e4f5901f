"""Acceptance of drafts over a level: ratios of sums over its requests, never means of ratios."""

from collections.abc import Sequence
from itertools import zip_longest

from backend.schema.load import Acceptance, RequestRecord, SpecCounts

ABSENT_NO_COUNTS = (
    "the server gave no speculation counters: speculation is off, or the endpoint does not carry them (/generate does)"
)
ABSENT_NO_STEPS = "no verify step was made: the answers were too short to speculate"


def acceptance(records: Sequence[RequestRecord]) -> tuple[Acceptance | None, str | None]:
    """(acceptance, None), or (None, why there is none)."""
    counted = [(record, record.spec) for record in records if record.spec is not None]
    if not counted:
        return None, ABSENT_NO_COUNTS
    steps = sum(spec.verify_ct for _, spec in counted)
    if steps == 0:
        return None, ABSENT_NO_STEPS
    correct = sum(spec.correct_drafts for _, spec in counted)
    proposed = sum(spec.proposed_drafts for _, spec in counted)
    completion = sum(record.output_tokens or 0 for record, _ in counted)
    return (
        Acceptance(
            accept_length=1 + correct / steps,
            engine_accept_length=completion / steps if completion else None,
            accept_rate=correct / proposed if proposed else None,
            per_position=per_position([spec for _, spec in counted]),
            verify_steps=steps,
            source=f"counters in meta_info of {len(counted)} of {len(records)} requests",
        ),
        None,
    )


def per_position(specs: Sequence[SpecCounts]) -> list[float]:
    """p_i = Σ_{j≥i} steps with j correct drafts ÷ all steps, for i = 1 to the number of drafts per step."""
    with_histogram = [spec for spec in specs if spec.histogram]
    histogram = [sum(column) for column in zip_longest(*(spec.histogram or [] for spec in with_histogram), fillvalue=0)]
    steps = sum(histogram)
    if steps == 0:
        return []
    verify_ct = sum(spec.verify_ct for spec in with_histogram)
    drafts = round(sum(spec.proposed_drafts for spec in with_histogram) / verify_ct) if verify_ct else 0
    positions = max(drafts, len(histogram) - 1)
    return [sum(histogram[position:]) / steps for position in range(1, positions + 1)]
