"""What the engine is for: MTP pays, by the product's own load test. Long, and wants a quiet machine."""

import pytest

from backend.paths import TINY_CHECKPOINT
from tests.bench.engine_table import loop_free, measured_pairs, own_home

# For one request at a time: where the experts are unpacked at every use, and where they never are.
TARGETS = {"dequant_at_use": 1.4, "dequant_at_load": 1.1}


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.timeout(400)
def test_three_draft_steps_pay_on_answers_without_loops():
    with own_home() as home:
        dataset = home / "loop-free.jsonl"
        assert loop_free(TINY_CHECKPOINT, 16, dataset) == 16
        measured = list(measured_pairs(TINY_CHECKPOINT, dataset, [1], rounds=5, requests=8))
    print(measured)
    assert {figures["path"] for figures in measured if figures["ratio"] < TARGETS[figures["path"]]} == set()
