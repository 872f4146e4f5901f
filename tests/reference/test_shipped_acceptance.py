"""The shipped checkpoint in the engine: drafts are accepted on code, and much less on the prompts called hard."""

import json
from pathlib import Path

import pytest
from engine_harness import run_all, scheduler

from backend.modeltext import load_tokenizer
from backend.paths import TINY_CHECKPOINT
from backend.reference.training.evaluate import LOOP_FREE_SHARE, distinct_share
from backend.reference.training.tokenizer import render_chat

PROMPTS = Path(__file__).parents[2] / "assets" / "prompts"
MTP = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--fp4-gemm-backend", "dequant_at_load")


def answers(name, tokens):
    rows = [json.loads(line) for line in (PROMPTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    tokenizer = load_tokenizer(TINY_CHECKPOINT)
    prompts = [tokenizer.encode(render_chat(row["text"])).ids for row in rows]
    return run_all(scheduler(TINY_CHECKPOINT, *MTP), prompts, max_new_tokens=tokens, ignore_eos=True)


def accept_length(requests):
    return 1 + sum(request.correct for request in requests) / sum(request.verifications for request in requests)


@pytest.fixture(scope="module")
def code():
    return answers("code", 48)


def test_drafts_pay_on_loop_free_answers_to_held_out_code(code):
    loop_free = [request for request in code if distinct_share(request.output) >= LOOP_FREE_SHARE]
    assert len(loop_free) >= 48  # of 85
    assert accept_length(loop_free) >= 2.3


def test_drafts_pay_much_less_on_hard_prompts(code):
    hard = answers("hard", 48)
    assert len(hard) >= 24
    assert accept_length(hard) <= 2.0
    assert accept_length(code) - accept_length(hard) >= 0.4
