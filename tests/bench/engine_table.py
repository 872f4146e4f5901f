"""`python -m tests.bench.engine_table [MODEL] [--quick]`: speed and memory of the reference engine's settings.

Everything is measured from outside, by the product's own `launch` and `bench`: engines are started one after the other,
each is loaded with the same prompts, and the tables of docs/reference-engine.md are printed. Engines with and
without MTP are up together and loaded in turn, round after round, and medians are shown, so that a busy machine
disturbs both alike.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import httpx
import psutil

from backend.agent.discovery import read_agent_file
from backend.modeltext import load_chat_template
from backend.paths import state_paths

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "assets" / "tiny-qwen3.5-moe"
PROMPTS = ROOT / "assets" / "prompts" / "code.jsonl"
HARD = ROOT / "assets" / "prompts" / "hard.jsonl"
OUTPUT_TOKENS = 64
LEVELS = (1, 4, 8, 16)
STEPS = (0, 1, 2, 3, 5)
DISTINCT = 0.8  # share of distinct 3-grams above which a generation is no loop
MTP = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3")
PATHS = {"dequant_at_use": (), "dequant_at_load": ("--fp4-gemm-backend", "dequant_at_load")}
RUNNERS = {name: ("--moe-runner-backend", name) for name in ("auto", "loop", "grouped")}
DTYPES = {"float32": (), "bfloat16": ("--mamba-ssm-dtype", "bfloat16")}


def slipstream(*arguments: str) -> dict:
    """The document that a command of the product ends with."""
    command = [sys.executable, "-m", "backend", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


@contextmanager
def own_home() -> Iterator[Path]:
    """A state directory for the time being. The agent that the first command starts there ends with it."""
    before = os.environ.get("SLIPSTREAM_HOME")
    with tempfile.TemporaryDirectory() as home:
        os.environ["SLIPSTREAM_HOME"] = home
        try:
            yield Path(home)
        finally:
            if (agent := read_agent_file(state_paths())) is not None:
                process = psutil.Process(agent.pid)
                process.terminate()
                psutil.wait_procs([process], timeout=30)
            if before is None:
                del os.environ["SLIPSTREAM_HOME"]
            else:
                os.environ["SLIPSTREAM_HOME"] = before


@contextmanager
def launched(model: Path, flags: tuple[str, ...]) -> Iterator[dict]:
    """An engine, gone at the end."""
    with socket.socket() as probe:  # a port of the system's choice: other engines may be about
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    engine = slipstream("launch", str(model), "--json", "--port", port, "--", *flags)
    try:
        yield engine
    finally:
        slipstream("stop", "--json", "--id", engine["id"])


def bench(engine: dict, dataset: Path, level: int, requests: int) -> dict:
    """The document of one load test at one level."""
    shape = ("--output-len", str(OUTPUT_TOKENS), "--dataset", str(dataset))
    count = ("--concurrency", str(level), "--requests", str(max(requests, 3 * level)))
    return slipstream("bench", "--json", "--id", engine["id"], *shape, *count)


def loop_free(model: Path, wanted: int, file: Path) -> int:
    """Write the prompts whose greedy continuation is no loop to `file`, at most `wanted`; returns how many."""
    kept = []
    template = load_chat_template(model)
    params = {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    with launched(model, PATHS["dequant_at_load"]) as engine:
        for line in PROMPTS.read_text(encoding="utf-8").splitlines():
            prompt = template.render([{"role": "user", "content": json.loads(line)["text"]}])
            body = {"text": prompt, "sampling_params": params}
            ids = httpx.post(engine["url"] + "/generate", json=body, timeout=60).json()["output_ids"]
            grams = [tuple(ids[n : n + 3]) for n in range(len(ids) - 2)]
            if len(set(grams)) >= DISTINCT * len(grams):
                kept.append(line)
            if len(kept) == wanted:
                break
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return len(kept)


def speed(level: dict) -> float:
    """Output tokens per second, prompts included."""
    return level["metrics"]["output_tok_s"]


def measured_pairs(model: Path, dataset: Path, levels: Sequence[int], rounds: int, requests: int) -> Iterator[dict]:
    """Medians for each level and FP4 path, without MTP and with it: all four engines are up and loaded in turn."""
    with ExitStack() as stack:
        engines = {
            (path, mtp): stack.enter_context(launched(model, (*flags, *(MTP if mtp else ()))))
            for (path, flags), mtp in product(PATHS.items(), (False, True))
        }
        for level in levels:
            found: dict[tuple[str, bool], list[dict]] = {key: [] for key in engines}
            for _, (key, engine) in product(range(rounds), engines.items()):
                found[key].append(bench(engine, dataset, level, requests)["levels"][0])
            for path in PATHS:
                yield {"path": path, "level": level, **pair_figures(found[path, False], found[path, True])}


def pair_figures(off: list[dict], on: list[dict]) -> dict[str, float]:
    """Medians over the rounds of two engines; ratios are those of the same round."""
    times = [[run["metrics"]["tpot_ms"]["mean"] for run in pair] for pair in zip(off, on, strict=True)]
    return {
        "off_tok_s": statistics.median(map(speed, off)),
        "on_tok_s": statistics.median(map(speed, on)),
        "ratio": statistics.median(speed(b) / speed(a) for a, b in zip(off, on, strict=True)),
        "decode_ratio": statistics.median(a / b for a, b in times),
        "accept_length": statistics.median(run["acceptance"]["accept_length"] for run in on),
    }


def pairs(model: Path, dataset: Path, rounds: int, requests: int) -> None:
    """Speed against the number of requests at once."""
    print("\n| at once | FP4 path | MTP off tok/s | 3 steps tok/s | ratio | decode ratio | accept length |")
    print("|---|---|---|---|---|---|---|")
    for figures in measured_pairs(model, dataset, LEVELS, rounds, requests):
        print(
            "| {level} | {path} | {off_tok_s:.0f} | {on_tok_s:.0f} | {ratio:.2f} | {decode_ratio:.2f} | "
            "{accept_length:.2f} |".format(**figures),
            flush=True,
        )


def draft_steps(model: Path, datasets: dict[str, Path], rounds: int, requests: int) -> None:
    """One request at a time, by number of draft steps, on prompts that draft well and on prompts that do not."""
    with ExitStack() as stack:
        engines = {
            steps: stack.enter_context(launched(model, (*MTP[:-1], str(steps)) if steps else ())) for steps in STEPS
        }
        found: dict[tuple[str, int], list[dict]] = {}
        for _ in range(rounds):
            for (name, file), (steps, engine) in product(datasets.items(), engines.items()):
                level = bench(engine, file, 1, requests)["levels"][0]
                found.setdefault((name, steps), []).append(level)
    print("\n| prompts | draft steps | tok/s | against none | accept length |")
    print("|---|---|---|---|---|")
    for (name, steps), levels in found.items():
        ratio = statistics.median(speed(a) / speed(b) for a, b in zip(levels, found[name, 0], strict=True))
        accept = f"{levels[0]['acceptance']['accept_length']:.2f}" if steps else "–"
        print(
            f"| {name} | {steps} | {statistics.median(map(speed, levels)):.0f} | {ratio:.2f} | {accept} |", flush=True
        )


def combinations(model: Path, dataset: Path, rounds: int, requests: int) -> None:
    """Every FP4 path x MoE runner x SSM dtype x MTP at one request at a time, with the bytes of the ledger."""
    cases = list(product(PATHS, RUNNERS, DTYPES, ("off", "3 steps")))
    results: dict[tuple[str, ...], list[dict]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            path, runner, dtype, mtp = case
            flags = (*PATHS[path], *RUNNERS[runner], *DTYPES[dtype], *(MTP if mtp != "off" else ()))
            with launched(model, flags) as engine:
                results[case].append(bench(engine, dataset, 1, requests))
    names = ("target_weights", "mtp_weights", "mamba_state", "intermediate_ssm", "intermediate_conv", "prefix_cache")
    print("\n| FP4 path | MoE runner | SSM dtype | MTP | tok/s | " + " | ".join(names) + " |")
    print("|---" * (5 + len(names)) + "|")
    for case, documents in results.items():
        ledger = documents[0]["engine"]["ledger"]
        tokens = statistics.median(speed(document["levels"][0]) for document in documents)
        sizes = " | ".join(f"{ledger.get(name, 0):,}" for name in names)
        print(f"| {' | '.join(case)} | {tokens:.0f} | {sizes} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=SHIPPED)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and requests")
    arguments = parser.parse_args()
    rounds, requests = (3, 8) if arguments.quick else (5, 16)
    with own_home() as home:
        dataset = home / "loop-free.jsonl"
        count = loop_free(arguments.model, 16, dataset)
        print(
            f"{count} prompts, {OUTPUT_TOKENS} tokens each, greedy; {rounds} rounds of {requests} requests per level."
        )
        pairs(arguments.model, dataset, rounds, requests)
        draft_steps(arguments.model, {"code": dataset, "hard": HARD}, rounds, requests)
        combinations(arguments.model, dataset, 1 if arguments.quick else 3, min(requests, 8))


if __name__ == "__main__":
    main()
