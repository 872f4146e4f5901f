"""Packed experts: what is unpacked is what the checkpoint says, and both FP4 paths give the same model."""

import pytest
import torch
from engine_harness import run_all, scheduler
from safetensors.torch import load_file

from backend.reference.engine import Engine
from backend.reference.nvfp4 import dequantize
from backend.reference.server_args import parse
from backend.reference.training.random_checkpoint import TINY, write_random_checkpoint
from backend.reference.weights import nbytes

AT_LOAD = ("--fp4-gemm-backend", "dequant_at_load")
MTP = ("--speculative-algorithm", "NEXTN")
HIDDEN, INNER, EXPERTS, LAYERS = 48, 32, 6, 4  # of TINY
PROMPTS = [list(range(10 + n, 40 + 3 * n)) for n in range(4)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("nvfp4")
    write_random_checkpoint(path, nvfp4=True)
    assert (TINY.hidden_size, TINY.moe_intermediate_size, TINY.num_experts) == (HIDDEN, INNER, EXPERTS)
    return path


def experts(directory, layer, *flags):
    return scheduler(directory, *flags)._worker.target.weights.layers[layer].moe.experts


@pytest.mark.parametrize("flags", [(), AT_LOAD], ids=["at use", "at load"])
def test_each_expert_is_what_the_checkpoint_stores(directory, flags):
    stored = load_file(directory / "model.safetensors")
    found = experts(directory, 1, *flags)

    def matrix(expert, name):
        prefix = f"model.language_model.layers.1.mlp.experts.{expert}.{name}"
        parts = (stored[f"{prefix}.{part}"] for part in ("weight", "weight_scale", "weight_scale_2"))
        return dequantize(*parts).t()

    every = found.all()
    for expert in range(EXPERTS):
        up, down = found.up(expert).clone(), found.down(expert)
        wanted = torch.cat([matrix(expert, "gate_proj"), matrix(expert, "up_proj")], 1)
        assert torch.equal(up, wanted)
        assert torch.equal(down, matrix(expert, "down_proj"))
        assert torch.equal(every[0][expert], up)
        assert torch.equal(every[1][expert], down)


def test_some_experts_are_unpacked_in_the_order_asked_for(directory):
    found = experts(directory, 0)
    up, down = found.some(torch.tensor([4, 1]))
    assert torch.equal(up[0], found.up(4))
    assert torch.equal(down[1], found.down(1))


def test_packed_experts_take_the_bytes_worked_out_by_hand(directory):
    weights = EXPERTS * 3 * HIDDEN * INNER  # of one layer: gate, up and down
    # Half a byte per weight and a float32 scale per 16 of them, against four bytes.
    assert nbytes(experts(directory, 0)) == weights // 2 + weights // 16 * 4
    assert nbytes(experts(directory, 0, *AT_LOAD)) == weights * 4
    packed, expanded = scheduler(directory)._worker.ledger, scheduler(directory, *AT_LOAD)._worker.ledger
    assert expanded["target_weights"] - packed["target_weights"] == LAYERS * weights * 13 // 4
    # The MTP layer's experts are BF16 in the checkpoint and never packed.
    mtp = scheduler(directory, *MTP)._worker.ledger["mtp_weights"]
    assert mtp == scheduler(directory, *MTP, *AT_LOAD)._worker.ledger["mtp_weights"]


@pytest.mark.parametrize("runner", ["auto", "loop", "grouped"])
@pytest.mark.parametrize("speculation", [(), MTP], ids=["off", "mtp"])
def test_fp4_paths_and_moe_runners_give_the_same_tokens(directory, runner, speculation):
    flags = (*speculation, "--moe-runner-backend", runner)
    expected = run_all(scheduler(directory, *AT_LOAD), PROMPTS, max_new_tokens=12, ignore_eos=True)
    found = run_all(scheduler(directory, *flags), PROMPTS, max_new_tokens=12, ignore_eos=True)
    assert [r.output for r in found] == [r.output for r in expected]


def test_the_draft_runner_is_chosen_separately(directory):
    flags = (*MTP, "--moe-runner-backend", "loop", "--speculative-moe-runner-backend", "grouped")
    worker = scheduler(directory, *flags)._worker
    assert (worker.target.moe.__name__, worker.mtp.moe.__name__) == ("loop", "grouped")


@pytest.mark.parametrize(
    ("nvfp4", "flags", "effective", "warned"),
    [
        (True, (), "dequant_at_use", False),
        (True, AT_LOAD, "dequant_at_load", False),
        (False, (), "auto", False),
        (False, AT_LOAD, "dequant_at_load", True),
    ],
    ids=["packed", "packed, chosen", "plain", "plain, chosen"],
)
def test_an_fp4_path_is_settled_by_the_checkpoint_and_useless_on_a_plain_one(
    tmp_path, caplog, nvfp4, flags, effective, warned
):
    write_random_checkpoint(tmp_path, nvfp4=nvfp4)
    args, _ = parse(["--model-path", str(tmp_path), *flags])
    assert Engine(args).args.fp4_gemm_backend == effective
    assert ("fp4_gemm_backend has no effect" in caplog.text) is warned
