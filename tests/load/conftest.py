"""A worker run in this process, and what it left in its spool."""

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop
from load_specs import make_spec

from backend.load.results import level_results, read_records, read_report
from backend.load.spec import WorkerReport
from backend.load.spool import LineReader, Spool
from backend.load.worker import Worker
from backend.schema.load import LevelResult, RequestRecord


@dataclass(frozen=True)
class Outcome:
    """A worker's end: exit status, records, ticks and report."""

    status: int
    records: list[RequestRecord]
    ticks: list[dict[str, Any]]
    report: WorkerReport
    levels: list[LevelResult]


RunWorker = Callable[..., Outcome]


@pytest.fixture
def run_worker(tmp_path: Path) -> Iterator[RunWorker]:
    """`run_worker(url, api_key=None, flush=False, **request)` runs a whole load test and returns its outcome."""

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(url: str, *, api_key: str | None = None, flush: bool = False, **request: object) -> Outcome:
        spool = Spool(tmp_path)
        spec = make_spec(url, **request).model_copy(update={"flush": flush})
        status = uvloop.run(Worker(spec, spool, api_key).run())
        report = read_report(spool)
        assert report is not None
        records = read_records(spool)
        levels = level_results(spec.request.concurrency, records, report)
        return Outcome(status, records, LineReader(spool.ticks).read(), report, levels)

    yield run
    for number, handler in handlers.items():  # the worker takes them, which in its own process nobody else misses
        signal.signal(number, handler)


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    """Twenty short prompts."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {n}"}) + "\n" for n in range(20)))
    return path
