"""The commands as a person types them: real processes, a real agent, the reference engine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from backend.paths import PROJECT_ROOT

pytestmark = pytest.mark.engine

LIMIT_S = 90
MTP = "--speculative-algorithm NEXTN --speculative-num-steps 3"

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def command(tmp_home: Path) -> Iterator[Command]:
    """`python -m backend …` in the project's folder; ends the agent that it started."""

    def run(words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "backend", *words.split()],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    yield run
    run("stop --all")
    agent = psutil.Process(json.loads((tmp_home / "agent.json").read_text())["pid"])
    agent.terminate()
    agent.wait(20)


def answer(done: "subprocess.CompletedProcess[str]") -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def interrupt_when(words: str, on_stderr: str) -> int:
    """Starts a command and sends it Ctrl-C once it has printed `on_stderr`; returns its exit status."""
    process = subprocess.Popen(
        [sys.executable, "-m", "backend", *words.split()],
        cwd=PROJECT_ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if on_stderr in line:
            process.send_signal(signal.SIGINT)
            break
    process.stderr.read()
    process.stderr.close()
    return process.wait(LIMIT_S)


def wait_for(command: Command, words: str, accept: Callable[[Any], bool]) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while not accept(found := answer(command(words))):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.2)
    return found


def test_launch_bench_interrupt_export_import_stop(command: Command, tmp_path: Path, monkeypatch) -> None:
    launched = answer(command(f"launch --json -- {MTP}"))
    assert launched["kind"] == "reference"
    assert launched["phases"][-1]["name"] == "ready"
    assert [e["state"] for e in answer(command("status --json"))["engines"]] == ["ready"]

    bench = answer(command("bench --json --concurrency 2 --requests 4 --output-len 24 --tag journey"))
    (level,) = bench["levels"]
    assert (level["requests"]["ok"], level["requests"]["failed"]) == (4, 0)
    assert level["tokens"]["output"] == 4 * 24
    assert level["acceptance"]["accept_length"] >= 1.0

    assert interrupt_when("bench --concurrency 1 --duration 60 --output-len 24", on_stderr="running") == 130
    ended = ("stopped", "finished")
    runs = wait_for(command, "runs --json", lambda found: all(r["state"] in ended for r in found["runs"]))["runs"]
    assert [run["state"] for run in runs] == ["stopped", "finished"]

    file = tmp_path / "run.zip"
    answer(command(f"export {bench['run_id']} -o {file} --json"))
    assert command(f"compare {runs[0]['id']} {runs[1]['id']}").returncode == 0

    stopped = answer(command("stop --json"))
    assert [e["state"] for e in stopped["engines"]] == ["stopped"]
    assert not psutil.pid_exists(launched["pid"])

    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SLIPSTREAM_HOME", str(tmp_path / "elsewhere"))
        assert answer(command(f"import-run {file} --json")) == {"run_id": bench["run_id"]}
        assert answer(command("runs --tag journey --json"))["runs"][0]["levels"] == runs[1]["levels"]


def test_ctrl_c_during_a_launch_leaves_no_engine(command: Command) -> None:
    assert interrupt_when("launch", on_stderr="engine ") == 130
    ended = wait_for(command, "status --json", lambda s: s["engines"][0]["state"] in ("stopped", "failed"))
    assert ended["engines"][0]["pid"] is None or not psutil.pid_exists(ended["engines"][0]["pid"])
    assert os.environ["SLIPSTREAM_HOME"] == ended["agent"]["state_dir"]
