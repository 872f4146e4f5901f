"""The training form: delta rule, whole model, drafts and losses, against plain computations."""

import dataclasses

import pytest
import torch
from plain_model import PlainModel
from torch.nn import functional

from backend.reference.config import TextConfig
from backend.reference.export import read_weights
from backend.reference.training.decode import GreedyDecoder
from backend.reference.training.delta_rule import chunked_delta_rule, invert_unit_lower, sequential_delta_rule
from backend.reference.training.model import TextModel, initial_weights, set_compute
from backend.reference.training.optimizer import Optimizer, orthogonalise
from backend.reference.training.own_text import answer_repeats, before_end, unlikely
from backend.reference.training.random_checkpoint import TINY, write_random_checkpoint
from backend.reference.training.repetition import (
    CONTEXT_TOKENS,
    PERIODS,
    repeated_grams,
    repetition_loss,
    with_loops,
)

# More threads only wait for each other on a busy machine.
torch.set_num_threads(1)


def delta_inputs(length, decay_scale):
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.nn.functional.normalize(torch.randn(2, 3, length, 8, generator=generator), dim=-1) for _ in "qk")
    v = torch.randn(2, 3, length, 12, generator=generator)
    log_decay = -decay_scale * torch.rand(2, 3, length, generator=generator)
    return q, k, v, log_decay, torch.rand(2, 3, length, generator=generator)


# 30 nat per token is e^-1900 over a chunk: exp of the masked half would be infinite.
@pytest.mark.parametrize(("length", "decay_scale"), [(1, 0.1), (64, 0.1), (65, 0.1), (150, 0.01), (150, 30.0)])
def test_the_chunked_delta_rule_equals_the_recurrence(length, decay_scale):
    inputs = delta_inputs(length, decay_scale)
    assert torch.allclose(chunked_delta_rule(*inputs), sequential_delta_rule(*inputs), atol=1e-4)


def test_the_inverse_survives_keys_that_are_all_the_same():
    # One key repeated with full strength: A is all ones below the diagonal. Its inverse is 1 on the diagonal and -1
    # just below, while the powers of A reach C(63, 31), about 9e17, which no float could subtract away.
    inverse = invert_unit_lower(torch.ones(64, 64).tril(-1))
    assert torch.equal(inverse, torch.eye(64) - torch.diag(torch.ones(63), -1))


def test_gradients_of_the_chunked_delta_rule_equal_those_of_the_recurrence():
    gradients = []
    for rule in (chunked_delta_rule, sequential_delta_rule):
        inputs = [tensor.requires_grad_() for tensor in delta_inputs(70, 0.1)]
        rule(*inputs).square().sum().backward()
        gradients.append([tensor.grad for tensor in inputs])
    for ours, plain in zip(*gradients, strict=True):
        assert torch.allclose(ours, plain, atol=1e-3)


def test_the_delta_rule_replaces_what_a_key_held():
    # One head, dk = 2, dv = 1, no decay. Token 0 writes 5 under key (1,0) fully; token 1 writes 7 under the same key
    # with strength 1/2: 5 + (7 - 5) / 2 = 6. The query reads that key.
    key = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).view(1, 1, 2, 2)
    value = torch.tensor([5.0, 7.0]).view(1, 1, 2, 1)
    beta = torch.tensor([1.0, 0.5]).view(1, 1, 2)
    for rule in (sequential_delta_rule, chunked_delta_rule):
        out = rule(key, key, value, torch.zeros(1, 1, 2), beta)
        assert torch.allclose(out.flatten(), torch.tensor([5.0, 6.0]))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    write_random_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def model(directory):
    model = TextModel(TextConfig.from_dir(directory))
    model.load_state_dict({name: tensor.float() for name, tensor in read_weights(directory).items()})
    return model


@torch.no_grad()
def test_the_main_model_agrees_with_the_plain_one(directory, model):
    tokens = torch.randint(7, 384, (70,), generator=torch.Generator().manual_seed(1)).tolist()
    hidden, logits = PlainModel(directory, model.config).run(tokens)
    ours = model.hidden(torch.tensor([tokens]))[0]
    assert torch.allclose(ours[0], hidden, atol=2e-4)
    assert torch.allclose(model.logits(ours)[0], logits, atol=2e-4)


@torch.no_grad()
def test_three_draft_steps_from_every_position_agree_with_drafting_from_each_alone(directory, model):
    tokens = torch.randint(7, 384, (12,), generator=torch.Generator().manual_seed(2)).tolist()
    plain = PlainModel(directory, model.config)
    hidden, _ = plain.run(tokens)
    batch, chain = torch.tensor([tokens]), []
    ours, step_hidden = [], model.hidden(batch)[0][:, :8]
    for step in range(3):
        step_hidden, _ = model.mtp(step_hidden, model.embed(batch[:, 1 + step : 9 + step]), chain)
        ours.append(step_hidden[0])
    for start in range(8):
        past = []
        last = plain.mtp([(hidden[t], tokens[t + 1], t) for t in range(start + 1)], past)[-1]
        assert torch.allclose(ours[0][start], last, atol=2e-4)
        for step in (1, 2):
            last = plain.mtp([(last, tokens[start + 1 + step], start + step)], past)[0]
            assert torch.allclose(ours[step][start], last, atol=2e-4)


class CountingHead(torch.nn.Module):
    """Stands for an MTP layer that always says: the token after the one I was given is that plus one."""

    def forward(self, hidden, embedding, chain):
        chain.append((hidden, hidden))
        return embedding.roll(1, -1), torch.zeros(())


class CountingModel(TextModel):
    """Tokens are one-hot, the main model and the drafts predict token + 1 (modulo the vocabulary)."""

    def __init__(self, config):
        super().__init__(config)
        self.mtp = CountingHead()

    def embed(self, tokens):
        return torch.nn.functional.one_hot(tokens, self.config.vocab_size).float()

    def hidden(self, tokens):
        return self.embed(tokens).roll(1, -1), torch.zeros(())

    def logits(self, hidden):
        return 50.0 * hidden


def test_drafts_are_compared_with_the_token_two_places_on():
    # 1 2 3 … counts up, so token + 1 is right everywhere: loss 0 and full agreement. With every second token wrong,
    # step 0 at position t holds token t+1 and says tokens[t+1] + 1, which the text contradicts at every position.
    model = CountingModel(dataclasses.replace(TINY, vocab_size=16))
    up = model.losses(torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]]), steps=2, hard=1.0)
    assert up.main.item() == pytest.approx(0.0, abs=1e-6)
    assert up.mtp.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert up.agreement.tolist() == [1.0, 1.0]
    flat = model.losses(torch.tensor([[3, 9, 3, 9, 3, 9, 3, 9]]), steps=2, hard=1.0)
    assert flat.mtp.tolist() == pytest.approx([50.0, 50.0], abs=1e-3)  # the logit gap of the wrong token
    assert flat.agreement.tolist() == [1.0, 1.0]  # the main model says the same wrong token


def test_in_the_last_phase_a_draft_is_to_be_what_the_main_model_would_choose(model):
    tokens = torch.randint(10, model.config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(5))
    losses = model.draft_loss(tokens, 1)
    with torch.no_grad():
        hidden, _ = model.hidden(tokens[:, :7])
        choice = model.logits(hidden).argmax(-1)
        drafted = model.logits(model.mtp(hidden, model.embed(tokens[:, 1:8]), [])[0])
    # The draft from token t is the one after next, which the main model says at t + 1.
    expected = functional.cross_entropy(drafted[:, :6].flatten(0, 1), choice[:, 1:].flatten())
    assert losses.mtp.tolist() == pytest.approx([expected.item()], rel=1e-5)


def test_looping_rows_go_round_their_end():
    tokens = torch.arange(300).expand(len(PERIODS) + 1, -1).clone()
    looped = with_loops(tokens)
    # Period 5 after 160 true tokens: 155…159 again and again.
    assert looped[0, 150:171].tolist() == [*range(150, 160), *range(155, 160), *range(155, 160), 155]
    assert looped[5, 158:243].tolist() == [158, 159, *range(80, 160), 80, 81, 82]
    assert looped[-1].tolist() == list(range(300))


def test_a_fading_loop_costs_nothing_and_a_steady_one_does():
    length = CONTEXT_TOKENS + 3 * max(PERIODS)
    rows = len(PERIODS)
    targets = torch.zeros(rows, length, dtype=torch.long)
    place = torch.arange(length)
    times = [((place - (CONTEXT_TOKENS - 1)) // period + 1).clamp(min=0) for period in PERIODS]
    fading = torch.stack([0.5 ** count.clamp(max=20) for count in times]) * 0.8
    steady = torch.full((rows, length), 0.8)
    losses = []
    for wanted in (fading, steady):
        logits = torch.stack([wanted.log(), (1 - wanted).log()], -1)
        losses.append(repetition_loss(logits, targets).item())
    assert losses[0] == pytest.approx(0.0, abs=1e-5)
    assert losses[1] == pytest.approx(0.5108, abs=1e-3)  # -ln(1 - |0.8 - 0.4|) = -ln 0.6


def test_a_repeated_gram_is_one_that_was_said_before():
    # 1 2 3 4 | 1 2 3 4 5: only the second "1 2 3 4" repeats a 4-gram, complete with its last token.
    row = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4, 5]])
    assert repeated_grams(row).tolist() == [[False] * 7 + [True, False]]


def test_what_follows_an_end_token_does_not_count():
    # 2 and 0 end an answer.
    assert before_end(torch.tensor([[9, 8, 2, 9], [9, 9, 9, 0]]), TINY).tolist() == [
        [True, True, False, False],
        [True, True, True, False],
    ]


@torch.no_grad()
def test_decoding_from_states_is_greedy_decoding_of_whole_sequences(model):
    prompts = torch.randint(7, 384, (2, 30), generator=torch.Generator().manual_seed(3))
    decode = GreedyDecoder(model, rows=2, width=36)
    decode(prompts.flip(0), torch.tensor([30, 30]))  # leaves no trace
    whole = decode(prompts, torch.tensor([30, 27]))
    for row, length in enumerate((30, 27)):
        assert torch.equal(whole[row, :length], prompts[row, :length])
        for place in range(length, 36):
            logits = model.logits(model.hidden(whole[row : row + 1, :place])[0][:, -1])
            assert logits.argmax(-1).item() == whole[row, place]


def test_a_repetition_counts_within_the_answer_alone():
    # The answer begins at place 4 with what the prompt said: no repetition. 4 5 6 7 comes again at places 8 to 11.
    tokens = torch.tensor([[4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 2, 7]])
    counted, repeated = answer_repeats(tokens, torch.tensor([4]), TINY)
    assert counted.nonzero()[:, 1].tolist() == list(range(4, 12))  # 2 ends the answer
    assert repeated.nonzero()[:, 1].tolist() == [11]


def test_saying_the_same_again_costs_and_saying_new_things_does_not():
    # CountingModel is sure of token + 1. An answer 4 5 6 7 4 5 6 7 … follows it but for each return to 4. From the
    # second round on each token completes a known 4-gram; p is 1 (clamped to 1 - 1e-5: a loss of 11.51) for three in
    # four and 0 for the fourth. Of 16 tokens 5 to 16 repeat from place 7 on (the 8th), so 9: places 7…15 are
    # 7 4 5 6 7 4 5 6 7, of which the two 4s cost nothing: 7 * 11.51 / 16.
    model = CountingModel(dataclasses.replace(TINY, vocab_size=16))
    prompt, length = torch.full((1, 5), 3), torch.tensor([5])
    looping = torch.cat([prompt, torch.tensor([[4, 5, 6, 7] * 4])], 1)
    assert unlikely(model, looping, length, model.config).item() == pytest.approx(7 * 11.513 / 16, rel=1e-3)
    new = torch.cat([prompt, torch.arange(4, 16).unsqueeze(0)], 1)
    assert unlikely(model, new, length, model.config).item() == 0.0


def test_orthogonalised_matrices_have_singular_values_near_one():
    matrices = torch.randn(3, 40, 24, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.5
    assert values.max() < 1.4


def test_the_losses_fall_within_a_few_steps():
    config = dataclasses.replace(TINY, vocab_size=64)
    model = TextModel(config)
    model.load_state_dict(initial_weights(config, seed=0))
    set_compute(model, torch.bfloat16)
    optimizer = Optimizer(model.named_parameters())
    tokens = torch.randint(0, 64, (4, 68), generator=torch.Generator().manual_seed(0))
    history = []
    for _ in range(12):
        model.zero_grad(set_to_none=True)
        losses = model.losses(tokens, steps=3, hard=0.5)
        losses.total.backward()
        optimizer.step(1.0)
        history.append((losses.main.item(), losses.mtp.mean().item()))
    assert history[0][0] == pytest.approx(4.16, abs=0.1)  # ln 64: an untrained model knows nothing
    assert history[-1][0] < history[0][0] - 0.5
    assert history[-1][1] < history[0][1] - 0.2
