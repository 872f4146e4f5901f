"""Queueing, stopping, counting, and that MTP changes nothing but the speed."""

import json
from pathlib import Path

import pytest
import torch
from engine_harness import ROOT, run_all, scheduler

from backend.modeltext import load_tokenizer
from backend.reference.attention import Span
from backend.reference.request import Request, SamplingParams
from backend.reference.training.random_checkpoint import write_random_checkpoint

SHIPPED = ROOT / "assets" / "tiny-qwen3.5-moe"
MTP = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    write_random_checkpoint(path)
    return path


def random_prompts(count, seed=0, low=3, high=80):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high, (count,), generator=generator).tolist()
    return [torch.randint(5, 384, (length,), generator=generator).tolist() for length in lengths]


def python_prompts(count):
    """Pieces of 200 characters out of the json package's source, as token ids of the shipped tokenizer."""
    tokenizer = load_tokenizer(SHIPPED)
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(Path(json.__file__).parent.glob("*.py")))
    return [tokenizer.encode(text[n * 600 : n * 600 + 200]).ids for n in range(count)]


def top_two_margin(engine, tokens):
    """How far apart the two best logits after `tokens` are."""
    worker = engine._worker
    start = worker.extents.take(len(tokens))
    worker.states.clear(0)
    with torch.inference_mode():
        hidden = worker.target.prefill(torch.tensor(tokens), Span(start, 0, len(tokens)), 0)
        best = worker.target.logits(hidden[-1:]).topk(2).values[0]
    worker.extents.give_back(start)
    return float(best[0] - best[1])


def assert_same_outputs(off, with_mtp, plain, prompts):
    different = [n for n, (a, b) in enumerate(zip(off, with_mtp, strict=True)) if a.output != b.output]
    for n in different:
        a, b = off[n].output, with_mtp[n].output
        place = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        assert top_two_margin(plain, prompts[n] + a[:place]) < 1e-4, f"prompt {n} differs at {place}"
    assert len(different) <= 1


def test_text_of_50_prompts_is_the_same_with_and_without_mtp_and_drafts_are_accepted():
    prompts = python_prompts(50)
    plain = scheduler(SHIPPED)
    off = run_all(plain, prompts, max_new_tokens=64, ignore_eos=True)
    on = run_all(scheduler(SHIPPED, *MTP), prompts, max_new_tokens=64, ignore_eos=True)
    assert_same_outputs(off, on, plain, prompts)
    # The trained MTP layer is worth having: the product promises 1.8 tokens per verification on held-out prompts.
    accepted = 1 + sum(r.correct for r in on) / sum(r.verifications for r in on)
    assert accepted > 1.8


@pytest.mark.parametrize("steps", ["1", "2", "5"])
def test_random_weights_give_the_same_tokens_with_any_number_of_draft_steps(directory, steps):
    prompts = random_prompts(10)
    plain = scheduler(directory)
    off = run_all(plain, prompts, max_new_tokens=24, ignore_eos=True)
    on = run_all(scheduler(directory, *MTP[:3], steps), prompts, max_new_tokens=24, ignore_eos=True)
    assert_same_outputs(off, on, plain, prompts)


def test_a_prompt_prefilled_in_chunks_gives_the_same_tokens(directory):
    prompts = random_prompts(4, low=100, high=150)
    whole = run_all(scheduler(directory, *MTP), prompts, max_new_tokens=12)
    chunked = run_all(scheduler(directory, *MTP, "--chunked-prefill-size", "37"), prompts, max_new_tokens=12)
    assert [r.output for r in chunked] == [r.output for r in whole]


def test_counts_of_a_request_fit_together(directory):
    requests = run_all(scheduler(directory, *MTP), random_prompts(6), max_new_tokens=20, ignore_eos=True)
    for request in requests:
        assert len(request.output) == 20
        assert request.finish_reason == {"type": "length", "length": 20}
        assert sum(request.histogram) == request.verifications
        assert sum(n * count for n, count in enumerate(request.histogram)) == request.correct
        # The last verification may have accepted up to 3 drafts that the limit cut off.
        assert 0 <= 1 + request.verifications + request.correct - 20 <= 3


def test_a_perfect_drafter_counts_what_a_limit_cut_off(directory):
    """Drafts are replaced by what the model will say, so each verification accepts 3."""
    prompt = random_prompts(1)[0]
    truth = run_all(scheduler(directory), [prompt], max_new_tokens=30, ignore_eos=True)[0].output
    engine = scheduler(directory, *MTP)
    request = Request("r", prompt, SamplingParams(temperature=0, max_new_tokens=11, ignore_eos=True), stream=False)
    engine.submit(request)
    while not request.finished:
        engine.run_once()
        request.drafts = truth[len(request.output) : len(request.output) + 3]
    assert request.output == truth[:11]
    # 1 token of the prefill, then 4 per verification: 1, 5, 9, 13 of which 11 are wanted. All 9 drafts were right.
    assert (request.verifications, request.correct, request.histogram) == (3, 9, [0, 0, 0, 3])


def test_more_requests_than_slots_wait_their_turn_and_all_finish(directory):
    order = []
    engine = scheduler(
        directory, "--max-running-requests", "3", deliver=lambda outputs: order.extend(r.id for r, _ in outputs)
    )
    prompts = random_prompts(9, seed=3)
    alone = [run_all(scheduler(directory), [prompt], max_new_tokens=6, ignore_eos=True)[0].output for prompt in prompts]
    requests = run_all(engine, prompts, max_new_tokens=6, ignore_eos=True)
    assert [r.output for r in requests] == alone
    assert order == [f"r{n}" for n in range(9)]  # equal lengths: first come, first finished
    assert engine.stats.running == engine.stats.queued == engine.stats.used_tokens == 0


def test_requests_of_different_length_leave_and_the_others_keep_their_state(directory):
    prompts = random_prompts(5, seed=4)
    lengths = [3, 30, 9, 21, 14]
    alone = [
        run_all(scheduler(directory), [p], max_new_tokens=n, ignore_eos=True)[0].output
        for p, n in zip(prompts, lengths, strict=True)
    ]
    for flags in ((), MTP):
        engine = scheduler(directory, *flags)
        requests = [
            Request(f"r{n}", prompt, SamplingParams(temperature=0, max_new_tokens=length, ignore_eos=True), False)
            for n, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
        ]
        for request in requests:
            engine.submit(request)
        while not all(request.finished for request in requests):
            engine.run_once()
        assert [r.output for r in requests] == alone


def test_a_small_pool_makes_requests_wait_for_memory(directory):
    engine = scheduler(directory, "--max-total-tokens", "60", "--max-running-requests", "4")
    most = 0
    requests = [
        Request(f"r{n}", list(range(10, 30)), SamplingParams(temperature=0, max_new_tokens=10, ignore_eos=True), False)
        for n in range(5)
    ]
    for request in requests:
        engine.submit(request)
    while not all(request.finished for request in requests):
        engine.run_once()
        most = max(most, engine.stats.running)
    assert most == 2  # 30 tokens each of 60


def test_end_tokens_stop_strings_and_minimum_lengths(directory):
    prompt = random_prompts(1, seed=5)[0]
    free = run_all(scheduler(directory), [prompt], max_new_tokens=20, ignore_eos=True)[0].output
    end = free[7]
    first = free.index(end)
    for flags in ((), MTP):
        engine = scheduler(directory, *flags)
        stopped = run_all(engine, [prompt], max_new_tokens=20, stop_token_ids=frozenset([end]))[0]
        assert stopped.output == free[: first + 1]
        assert stopped.finish_reason == {"type": "stop", "matched": end}
        later = run_all(engine, [prompt], max_new_tokens=20, min_new_tokens=15, stop_token_ids=frozenset([end]))[0]
        assert end not in later.output[:14]
        assert len(later.output) >= 15
        text = engine._tokenizer.decode(free[4:6])
        if "\ufffd" not in text and text:
            matched = run_all(engine, [prompt], max_new_tokens=20, ignore_eos=True, stop=(text,))[0]
            assert matched.finish_reason == {"type": "stop", "matched": text}
            assert matched.output == free[: len(matched.output)]
            assert len(matched.output) <= 6


def test_not_a_number_ends_the_request_and_no_other(directory):
    engine = scheduler(directory, *MTP)
    embedding = engine._worker.target.weights.embedding
    embedding[200] = float("nan")
    good, bad = [10, 11, 12], [10, 200, 12]
    requests = run_all(engine, [good, bad], max_new_tokens=5, ignore_eos=True)
    assert requests[1].finish_reason["type"] == "abort"
    assert "NaN" in requests[1].finish_reason["message"]
    assert requests[0].finish_reason["type"] in ("length", "abort")
    assert requests[0].finish_reason["type"] == "length" or 200 in requests[0].output


def test_abort_reaches_waiting_and_running_requests_by_prefix(directory):
    ended = []
    engine = scheduler(
        directory,
        "--max-running-requests",
        "1",
        deliver=lambda out: ended.extend(r.id for r, o in out if o.finish_reason),
    )
    requests = [
        Request(name, [10, 11, 12], SamplingParams(temperature=0, max_new_tokens=400, ignore_eos=True), False)
        for name in ("job-1", "job-2", "other")
    ]
    for request in requests:
        engine.submit(request)
    engine.run_once()
    engine.abort(lambda name: name.startswith("job-"))
    engine.run_once()
    assert sorted(ended) == ["job-1", "job-2"]
    assert all(r.finish_reason["type"] == "abort" for r in requests[:2])
    flushed = engine.flush()
    engine.run_once()
    assert flushed.result(0) is False  # "other" runs
    engine.abort(lambda _: True)
    engine.run_once()
    assert requests[2].finished
    flushed = engine.flush()
    engine.run_once()
    assert flushed.result(0) is True
    assert engine._worker.extents.used == 0


def test_sampling_with_mtp_stays_possible_and_seeded(directory):
    prompts = random_prompts(6, seed=8)
    runs = [
        [r.output for r in run_all(scheduler(directory, *MTP), prompts, temperature=0.8, top_p=0.9, max_new_tokens=12)]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert all(0 < len(output) <= 12 for output in runs[0])


@pytest.mark.parametrize("flags", [(), MTP], ids=["off", "mtp"])
def test_a_long_prompt_holds_up_decoding_by_one_chunk_at_most_and_short_prompts_overtake_it(directory, flags):
    engine = scheduler(directory, *flags, "--chunked-prefill-size", "32")
    params = SamplingParams(temperature=0, max_new_tokens=60, ignore_eos=True)
    running, long, short = (
        Request(name, prompt, params, False)
        for name, prompt in (
            ("running", [10, 11, 12]),
            ("long", random_prompts(1, 1, 300, 301)[0]),
            ("short", [20, 21]),
        )
    )
    engine.submit(running)
    while len(running.output) < 3:
        engine.run_once()
    engine.submit(long)
    engine.submit(short)
    computed, waited = engine.stats.prefill_computed, 0
    while not long.output:
        had, chunk = len(running.output), engine.stats.prefill_computed
        engine.run_once()
        assert engine.stats.prefill_computed - chunk <= 32
        waited = waited + 1 if len(running.output) == had and not running.finished else 0
        assert waited <= 1
        assert short.output or engine.stats.prefill_computed - computed <= 32 + 2
    assert short.output


@pytest.mark.parametrize("flags", [(), MTP], ids=["off", "mtp"])
def test_twenty_requests_run_together_and_say_what_each_says_alone(directory, flags):
    prompts = random_prompts(20, seed=6)
    plain = scheduler(directory)
    alone = [run_all(plain, [prompt], max_new_tokens=8, ignore_eos=True)[0] for prompt in prompts]
    engine = scheduler(directory, *flags, "--max-running-requests", "20")
    together = run_all(engine, prompts, max_new_tokens=8, ignore_eos=True)
    assert_same_outputs(alone, together, plain, prompts)


def test_a_seed_gives_the_same_text_whatever_runs_beside_it(directory):
    prompt, other = random_prompts(2, seed=9)
    params = {"temperature": 1.0, "top_p": 0.9, "seed": 5, "max_new_tokens": 12, "ignore_eos": True}
    alone = run_all(scheduler(directory, *MTP), [prompt], **params)[0].output
    engine = scheduler(directory, *MTP)
    run_all(engine, [other], temperature=1.0, max_new_tokens=5)
    assert run_all(engine, [prompt, other, other], **params)[0].output == alone
    assert run_all(engine, [prompt], **{**params, "seed": 6})[0].output != alone
