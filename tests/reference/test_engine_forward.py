"""The engine's forwards against the model written plainly, on a random checkpoint."""

import pytest
import torch
from plain_model import PlainModel

from backend.reference.attention import Rotary, Span
from backend.reference.cache import KvPool, StatePool
from backend.reference.config import TextConfig
from backend.reference.model import MtpModel, TargetModel
from backend.reference.moe import grouped, loop
from backend.reference.training.random_checkpoint import write_random_checkpoint
from backend.reference.weights import Checkpoint, load_mtp, load_target, nbytes

DRAFTED = 4
TOLERANCE = 2e-4  # logits are of order 1; sums of float32 in another order


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    write_random_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def plain(directory):
    return PlainModel(directory, TextConfig.from_dir(directory))


def engine(directory, moe="auto", slots=2, ssm_dtype=torch.float32, dtype=torch.float32):
    config = TextConfig.from_dir(directory)
    full = sum(config.is_full_attention(n) for n in range(config.num_hidden_layers))
    with Checkpoint(directory, config, dtype) as checkpoint:
        weights, mtp_weights = load_target(checkpoint), load_mtp(checkpoint)
    states = StatePool.allocate(config, slots, DRAFTED, ssm_dtype)
    target = TargetModel(config, weights, KvPool.allocate(config, full, 512), states, Rotary(config, 256), moe)
    return target, MtpModel(target, mtp_weights, KvPool.allocate(config, 1, 512), moe)


def tokens(count, seed):
    return torch.randint(0, 384, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
@pytest.mark.parametrize("moe", ["auto", "loop", "grouped"])
def test_prefill_verify_ragged_rollback_and_single_steps_agree_with_the_plain_model(directory, plain, moe):
    first, second = tokens(90, 1), tokens(60, 2)  # 70 tokens cross the boundary of a delta-net chunk (64)
    expected = [plain.run(first)[1], plain.run(second)[1]]
    target, _ = engine(directory, moe)
    a = target.prefill(torch.tensor(first[:40]), Span(0, 0, 40), 0)
    assert torch.allclose(target.logits(a), expected[0][:40], atol=TOLERANCE)
    a = target.prefill(torch.tensor(first[40:70]), Span(0, 40, 30), 0)  # second chunk of the same prompt
    assert torch.allclose(target.logits(a), expected[0][40:70], atol=TOLERANCE)
    b = target.prefill(torch.tensor(second[:30]), Span(200, 0, 30), 1)
    assert torch.allclose(target.logits(b), expected[1][:30], atol=TOLERANCE)

    # Two sequences of different length verify 4 tokens each; of the second only the first is right.
    wrong = [(t + 1) % 384 for t in second[31:34]]
    block = [*first[70:74], second[30], *wrong]
    hidden = target.verify(torch.tensor(block), [Span(0, 70, 4), Span(200, 30, 4)])
    logits = target.logits(hidden)
    assert torch.allclose(logits[:4], expected[0][70:74], atol=TOLERANCE)
    assert torch.allclose(logits[4], expected[1][30], atol=TOLERANCE)
    target.accept([3, 1])  # ragged: the fourth of the first and the wrong three of the second are forgotten

    block = [*first[73:77], *second[31:35]]
    logits = target.logits(target.verify(torch.tensor(block), [Span(0, 73, 4), Span(200, 31, 4)]))
    assert torch.allclose(logits[:4], expected[0][73:77], atol=TOLERANCE)
    assert torch.allclose(logits[4:], expected[1][31:35], atol=TOLERANCE)
    target.accept([4, 2])

    for n in range(3):
        pair = torch.tensor([first[77 + n], second[33 + n]])
        logits = target.logits(target.decode(pair, [Span(0, 77 + n, 1), Span(200, 33 + n, 1)]))
        assert torch.allclose(logits[0], expected[0][77 + n], atol=TOLERANCE)
        assert torch.allclose(logits[1], expected[1][33 + n], atol=TOLERANCE)


@torch.inference_mode()
def test_mtp_drafts_and_their_rewriting_agree_with_the_plain_model(directory, plain):
    text = tokens(40, 3)
    hidden, _ = plain.run(text)
    target, mtp = engine(directory)
    true_hidden = target.prefill(torch.tensor(text[:20]), Span(0, 0, 20), 0)

    # Entries 0…19, each with the token after it; then a chain of three drafts.
    past = []
    expected = plain.mtp([(hidden[t], text[t + 1], t) for t in range(20)], past)
    out = mtp.extend(true_hidden, torch.tensor(text[1:21]), [Span(0, 0, 20)])
    assert torch.allclose(out[0], expected[-1], atol=TOLERANCE)
    head = plain.w["lm_head.weight"]
    chain, last, drafts = list(past), expected[-1], []
    for n in range(3):
        drafts.append(int((head @ last).argmax()))
        last = plain.mtp([(last, drafts[-1], 20 + n)], chain)[0]
    assert mtp.draft(out, [Span(0, 20, 0)], 3).tolist() == [drafts]

    # The verified tokens' true hidden states replace what the drafts wrote, ragged over two sequences.
    target.prefill(torch.tensor(text[:20]), Span(100, 0, 20), 1)
    mtp.extend(true_hidden, torch.tensor(text[1:21]), [Span(100, 0, 20)])
    more = target.verify(torch.tensor([*text[20:24], *text[20:24]]), [Span(0, 20, 4), Span(100, 20, 4)])
    expected = plain.mtp([(hidden[t], text[t + 1], t) for t in range(20, 23)], past)
    rows = torch.cat([more[:3], more[4:5]])
    out = mtp.extend(rows, torch.tensor([*text[21:24], text[21]]), [Span(0, 20, 3), Span(100, 20, 1)])
    assert out.shape[0] == 2
    assert torch.allclose(out[0], expected[2], atol=TOLERANCE)
    assert torch.allclose(out[1], expected[0], atol=TOLERANCE)


@torch.inference_mode()
@pytest.mark.parametrize("count", [1, 2, 7, 33, 200])
def test_both_moe_runners_give_the_same_sum(directory, count):
    target, _ = engine(directory)
    x = torch.randn(count, target.config.hidden_size, generator=torch.Generator().manual_seed(count))
    layer = target.weights.layers[0].moe
    assert torch.allclose(loop(target.config, layer, x, x), grouped(target.config, layer, x, x), atol=1e-5)


@torch.inference_mode()
def test_a_bfloat16_state_is_rounded_but_close(directory, plain):
    text = tokens(30, 4)
    target, _ = engine(directory, ssm_dtype=torch.bfloat16)
    target.prefill(torch.tensor(text[:20]), Span(0, 0, 20), 0)
    logits = target.logits(target.verify(torch.tensor(text[20:24]), [Span(0, 20, 4)]))
    target.accept([4])
    expected = plain.run(text[:24])[1][20:]
    difference = (logits - expected).abs().max()
    assert 1e-6 < difference < 0.2
    assert target.states.ssm.dtype == torch.bfloat16


@torch.inference_mode()
def test_bfloat16_weights_take_half_the_memory_and_stay_close(directory, plain):
    text = tokens(50, 5)
    target, _ = engine(directory, dtype=torch.bfloat16)
    logits = target.logits(target.prefill(torch.tensor(text), Span(0, 0, 50), 0))
    # Rounding may send a token to another expert, so single logits say little; their mean does (they are of order 1).
    assert 1e-4 < (logits - plain.run(text)[1]).abs().mean() < 0.05
    wide, _ = engine(directory)
    # All but norms, taps, rates and routers is held in half the bytes.
    assert 0.5 < nbytes(target.weights) / nbytes(wide.weights) < 0.55
