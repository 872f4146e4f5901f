"""The worker as a process: stopped, orphaned, killed, out of disk. Whatever happens, the spool stays readable."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from load_specs import make_spec

from backend.load import read_spool
from backend.paths import PROJECT_ROOT
from tests.fakes.sse_server import fake_server

ARGV = [sys.executable, "-m", "backend.load.worker"]


def write_spec(directory: Path, url: str, **request: object) -> Path:
    spec = make_spec(url, **request)
    path = directory / "spec.json"
    path.write_text(spec.model_dump_json())
    return path


def start(path: Path, **options: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*ARGV, str(path)], cwd=PROJECT_ROOT, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload]


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.02)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_sigterm_cancels_what_is_open_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with fake_server(tokens=200, gap_ms=20) as server:
        path = write_spec(tmp_path, server.url, concurrency=[3], requests=50)
        worker = start(path)
        wait_for(lambda: server.seen.open_now == 3)
        time.sleep(0.2)
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=5)
        wait_for(lambda: server.seen.open_now == 0)  # the server learnt that nobody reads any more
    assert (worker.returncode, errors) == (0, b"")
    run = read_spool(tmp_path)
    assert run.report is not None and run.report.state == "stopped"
    assert [record.error_class for record in run.records] == ["cancelled"] * 3
    assert all(len(record.chunk_tokens) > 2 for record in run.records)
    assert run.levels[0].requests.model_dump() == {"sent": 3, "ok": 0, "failed": 0, "by_class": {}}


def test_a_worker_whose_parent_was_killed_ends_and_leaves_its_records(tmp_path: Path) -> None:
    """A parent that starts the worker and is then killed with SIGKILL, so that nobody can tell the worker."""
    with fake_server(tokens=10, gap_ms=10) as server:
        path = write_spec(tmp_path, server.url, requests=5000)
        program = (
            "import json, os, subprocess, sys, time\n"
            f"spec = json.load(open({str(path)!r})); spec['parent_pid'] = os.getpid()\n"
            f"json.dump(spec, open({str(path)!r}, 'w'))\n"
            f"print(subprocess.Popen({[*ARGV, str(path)]!r}).pid, flush=True)\n"
            "time.sleep(60)\n"
        )
        parent = subprocess.Popen([sys.executable, "-c", program], cwd=PROJECT_ROOT, stdout=subprocess.PIPE)
        assert parent.stdout is not None
        worker_pid = int(parent.stdout.readline())
        wait_for(lambda: lines(tmp_path / "requests.jsonl") >= 3)
        parent.kill()
        parent.communicate(timeout=5)
        wait_for(lambda: not _alive(worker_pid), timeout_s=5)
        wait_for(lambda: server.seen.open_now == 0)
    run = read_spool(tmp_path)
    assert (run.run_id, run.load_id, run.request.requests) == ("run", "load", 5000)
    assert len(run.records) >= 3
    assert run.levels[0].requests.ok >= 3
    assert run.points[-1].done >= 1


def test_a_killed_worker_leaves_a_spool_whose_broken_last_line_is_left_out(tmp_path: Path) -> None:
    with fake_server(tokens=5, gap_ms=5) as server:
        worker = start(write_spec(tmp_path, server.url, requests=5000))
        wait_for(lambda: lines(tmp_path / "requests.jsonl") >= 4)
        worker.kill()
        worker.communicate(timeout=5)
    whole = lines(tmp_path / "requests.jsonl")
    with (tmp_path / "requests.jsonl").open("ab") as file:
        file.write(b'{"run_id":"run","level":1,"ind')
    assert len(read_spool(tmp_path).records) == whole


def limit_files() -> None:
    """No file may grow beyond 6000 bytes; a record of 40 tokens has about 1200."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


def test_a_full_disk_ends_the_worker_with_a_message_and_keeps_every_whole_line(tmp_path: Path) -> None:
    with fake_server(tokens=40) as server:
        worker = start(write_spec(tmp_path, server.url, requests=500), preexec_fn=limit_files)
        _, errors = worker.communicate(timeout=10)
        asked = len(server.seen.bodies)
    assert worker.returncode == 74
    assert b"cannot write to" in errors and b"free some space" in errors
    records = read_spool(tmp_path).records
    assert 2 <= len(records) <= 6
    assert asked <= len(records) + 2  # it stopped sending at once


def test_a_log_on_the_same_full_disk_does_not_change_how_the_worker_ends(tmp_path: Path) -> None:
    with fake_server(tokens=40) as server, Path("/dev/full").open("wb") as full:
        argv = [*ARGV, str(write_spec(tmp_path, server.url, requests=500))]
        done = subprocess.run(argv, cwd=PROJECT_ROOT, stderr=full, timeout=20, preexec_fn=limit_files)
    assert done.returncode == 74


def test_an_unusable_spec_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text('{"run_id": "r"}')
    done = subprocess.run([*ARGV, str(tmp_path / "spec.json")], cwd=PROJECT_ROOT, capture_output=True, timeout=20)
    assert done.returncode == 2
    assert b"cannot use" in done.stderr and b"Traceback" not in done.stderr


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:  # a zombie that the container's first process has not collected yet is gone
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
