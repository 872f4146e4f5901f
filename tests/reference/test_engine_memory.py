"""The ledger against what the process really takes."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from engine_harness import ROOT

from backend.reference.config import TextConfig
from backend.reference.training.random_checkpoint import write_random_checkpoint

# Runs in a process of its own, so that nothing else allocates meanwhile. The first worker makes torch set up what it
# sets up once; the second one is measured. USS is what the process has for itself alone, pages of files excepted that
# are closed again.
PROGRAM = """
import gc, json, sys
import psutil, torch
from backend.reference import engine, server_args
torch.set_num_threads(1)
def build(*flags):
    args, _ = server_args.parse(["--model-path", sys.argv[1], *flags])
    return engine._build_worker(engine.read_config(args), args)[0]
def own():
    gc.collect()
    return psutil.Process().memory_full_info().uss
first = build("--max-running-requests", "1", "--context-length", "128", *sys.argv[2:])
before = own()
worker = build("--max-running-requests", "32", "--context-length", "16384", *sys.argv[2:])
print(json.dumps({"grown": own() - before, "ledger": worker.ledger}))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    write_random_checkpoint(path, replace(TextConfig(), max_position_embeddings=16_384), nvfp4=True)
    return path


def grow(directory, *flags):
    command = [sys.executable, "-c", PROGRAM, str(directory), *flags]
    return json.loads(subprocess.check_output(command, cwd=ROOT, text=True, stderr=subprocess.DEVNULL))


@pytest.mark.parametrize(
    "flags",
    [
        ("--speculative-algorithm", "NEXTN", "--fp4-gemm-backend", "dequant_at_load"),
        ("--mamba-ssm-dtype", "bfloat16", "--disable-radix-cache"),
    ],
    ids=["mtp at load", "off at use"],
)
def test_the_ledger_agrees_with_the_growth_of_the_process_within_a_tenth(directory, flags):
    found = grow(directory, *flags)
    total = sum(found["ledger"].values())
    assert total > 100_000_000  # large enough for a tenth to mean something
    assert abs(found["grown"] - total) < 0.1 * total, found
