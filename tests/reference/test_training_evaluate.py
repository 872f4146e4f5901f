"""Held-out evaluation (replayed verify cycles, 3-grams, drafts from every position) and short training runs."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from backend.reference.export import read_weights
from backend.reference.training.checkpoint import as_stored
from backend.reference.training.corpus import Corpus
from backend.reference.training.evaluate import Generation, accept_length, distinct_share, draft_matches, generate
from backend.reference.training.model import TextModel
from backend.reference.training.own_text import AllAnswers, Rounds
from backend.reference.training.random_checkpoint import TINY, random_weights, small_tokenizer
from backend.reference.training.trainer import Plan, Trainer, schedule

# More threads only wait for each other on a busy machine.
torch.set_num_threads(1)


NO_PROMPTS = np.zeros((0, 20), dtype=np.uint16), np.zeros(0, dtype=np.int64)


def test_accept_length_replays_the_verify_cycles():
    # Ten tokens, 0…9, at most 2 drafts. From 0 both are right: 3 tokens, now at 3. There none: 1 token, now at 4.
    # There one: 2 tokens, now at 6. There two: 3 tokens, now at 9, the end. 9 tokens in 4 cycles.
    generation = Generation("", list(range(10)), [5, 9, 9, 0, 1, 9, 2, 9, 9, 9], 1.0)
    assert accept_length([generation], 2) == pytest.approx(9 / 4)
    # With 1 draft: 2, at 2; 2, at 4; 2, at 6; 2, at 8 where a cycle no longer fits: 8 tokens in 4 cycles.
    assert accept_length([dataclasses.replace(generation, matches=[1] * 10)], 1) == pytest.approx(2.0)
    assert accept_length([dataclasses.replace(generation, tokens=[1, 2])], 3) is None


def test_distinct_share_counts_first_occurrences():
    # 1 2 1 2 1 2: the 3-grams 121, 212, 121, 212 are two different ones of four.
    assert distinct_share([1, 2, 1, 2, 1, 2]) == pytest.approx(0.5)
    assert distinct_share([1, 2]) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def model():
    model = TextModel(TINY)
    model.load_state_dict(random_weights(TINY))
    return model


@torch.no_grad()
def test_generation_in_a_padded_batch_equals_generation_alone(model):
    prompts = [[9, 50, 300], [8, 7, 100, 200, 31, 77, 12]]
    together = generate(model, prompts, 5)
    assert together == [generate(model, [prompt], 5)[0] for prompt in prompts]
    for line, prompt in zip(together, prompts, strict=True):
        assert line[: len(prompt)] == prompt
        for end in range(len(prompt), len(line)):
            assert line[end] == model.logits(model.hidden(torch.tensor([line[:end]]))[0])[0, -1].argmax()


@torch.no_grad()
def test_drafts_from_every_position_at_once_equal_drafts_from_one(model):
    tokens = torch.randint(7, 384, (1, 14), generator=torch.Generator().manual_seed(5))
    # Make the true text what the drafts from token 6 say, so that they all match.
    for step in range(4):
        hidden = model.hidden(tokens[:, :7])[0][:, :6]
        guess, chain = tokens[:, 1:7], []
        for _ in range(step + 1):
            hidden, _ = model.mtp(hidden, model.embed(guess), chain)
            guess = model.logits(hidden).argmax(-1)
        tokens[0, 7 + step] = guess[0, -1]
    assert draft_matches(model, tokens, steps=4)[0, 6] == 4
    tokens[0, 9] = (tokens[0, 9] + 1) % 384  # the third draft is wrong now
    assert draft_matches(model, tokens, steps=4)[0, 6] == 2


def test_the_schedule_warms_up_holds_and_falls():
    assert schedule(0.0, 0) == pytest.approx(0.01)  # first of 100 warm-up steps
    assert schedule(0.3, 500) == pytest.approx(1.0)
    assert schedule(0.7, 500) == pytest.approx(0.5)  # half of the falling 60 % is over
    assert schedule(1.0, 500) == pytest.approx(0.02)


def test_a_short_run_writes_rounded_weights_and_a_record_and_can_be_resumed(tmp_path):
    generator = np.random.default_rng(0)
    stream = generator.integers(0, TINY.vocab_size, 5000).astype(np.uint16)
    tokenizer = small_tokenizer(TINY.vocab_size)
    corpus = Corpus(stream, np.array([0, 700, 1500]), *NO_PROMPTS, stream[:500], stream[500:1000], tokenizer)
    plan = Plan(tokens=4 * 7 * 200, minutes=5, batch=7, length=200)
    Trainer(TINY, corpus, plan, torch.device("cpu"), tmp_path).run()
    record = json.loads((tmp_path / "training.json").read_text())
    assert [entry["phase"] for entry in record["holdout"]] == ["joint", "steady", "mtp"]
    assert record["tokens"] == 4 * 7 * 200
    first = read_weights(tmp_path)
    assert first.keys() == random_weights(TINY).keys()
    resumed = Trainer(TINY, corpus, plan, torch.device("cpu"), tmp_path).run(first)
    assert [entry["phase"] for entry in resumed.holdout] == ["steady", "mtp"]


def test_a_run_with_chat_learns_from_its_own_text_too(tmp_path, monkeypatch):
    monkeypatch.setattr("backend.reference.training.trainer.LOOP_ROUNDS", Rounds(rows=2, per_step=1, uses=1))
    for name, value in {"ROW_TOKENS": 40, "ANSWERS_AT_ONCE": 2, "ANSWERS_PER_STEP": 1}.items():
        monkeypatch.setattr(f"backend.reference.training.own_text.{name}", value)
    tokenizer = small_tokenizer(TINY.vocab_size)
    stream = np.random.default_rng(0).integers(0, TINY.vocab_size, 5000).astype(np.uint16)
    prompts = stream[:60].reshape(3, 20)
    lengths = np.array([20, 12, 16])
    corpus = Corpus(stream, np.array([0, 700]), prompts, lengths, stream[:400], stream[:400], tokenizer)
    plan = Plan(tokens=6 * 7 * 170, minutes=5, batch=7, length=170)
    record = Trainer(TINY, corpus, plan, torch.device("cpu"), tmp_path).run()
    assert [entry["phase"] for entry in record.holdout] == ["joint", "steady", "own", "mtp"]
    assert record.repeated
    weights = read_weights(tmp_path)
    again = Trainer(TINY, corpus, plan, torch.device("cpu"), tmp_path).run_drafts(weights)
    assert [entry["phase"] for entry in again.holdout] == ["mtp"]
    changed = {name for name, tensor in read_weights(tmp_path).items() if not torch.equal(tensor, weights[name])}
    assert changed
    assert all(name.startswith("mtp.") for name in changed)


def test_all_answers_are_the_greedy_continuations_of_all_prompts(monkeypatch):
    for name, value in {"ROW_TOKENS": 24, "ANSWERS_AT_ONCE": 2, "ANSWERS_PER_STEP": 64}.items():
        monkeypatch.setattr(f"backend.reference.training.own_text.{name}", value)
    model = TextModel(TINY)
    model.load_state_dict(random_weights(TINY))
    prompts = torch.randint(10, TINY.vocab_size, (3, 12), generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor([12, 8, 10])
    expected = {
        tuple(generate(model, [prompt[:length].tolist()], 24 - int(length))[0])
        for prompt, length in zip(prompts, lengths, strict=True)
    }
    (rows,) = AllAnswers(model, prompts, lengths, seed=0).batch()
    assert rows.shape == (64, 24)
    assert {tuple(row) for row in rows.tolist()} == expected


def test_the_mtp_phase_leaves_the_main_model_alone(tmp_path):
    generator = np.random.default_rng(0)
    stream = generator.integers(0, TINY.vocab_size, 3000).astype(np.uint16)
    corpus = Corpus(
        stream, np.array([0, 700]), *NO_PROMPTS, stream[:1000], stream[:1000], small_tokenizer(TINY.vocab_size)
    )
    plan = Plan(tokens=2 * 2 * 64, minutes=5, batch=2, length=64)
    trainer = Trainer(TINY, corpus, plan, torch.device("cpu"), tmp_path)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.train_drafts(start=0.0)
    after = trainer.model.state_dict()
    shipped = as_stored(before)
    changed = {name for name in before if not torch.equal(shipped[name], after[name])}
    assert changed
    assert all(name.startswith("mtp.") for name in changed)
