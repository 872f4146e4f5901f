"""The load worker: `python -m backend.load.worker SPEC.json`. Sends the requests of one load test and records them.

It is a process of its own, so that neither a page nor the agent delays a time stamp. It ends when all levels are done,
on SIGTERM or SIGINT, when its parent is gone, when the server stays out of reach, and when its records cannot be
written. Open requests are then cancelled by closing their connections; the engine goes on serving.
"""

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import orjson
import uvloop
from pydantic import ValidationError

from backend import thresholds
from backend.clock import monotonic_ns
from backend.errors import EngineError, SlipstreamError
from backend.files import replace_file
from backend.load.closed_loop import Slots
from backend.load.connection import ConnectionLostError, NotHttpError, connect, parse_address, request_bytes
from backend.load.exchange import Exchange
from backend.load.gauge import LoopLag, Meter
from backend.load.payload import PATHS, body
from backend.load.plan import counted_requests, first_prompts
from backend.load.spec import (
    API_KEY_VARIABLE,
    EXIT_SERVER_GONE,
    EXIT_SPOOL_FAILED,
    LevelGauge,
    Prompt,
    WorkerReport,
    WorkerSpec,
)
from backend.load.spool import LineWriter, Spool
from backend.load.stream import Stream, read_generate, read_openai
from backend.load.ticks import Ticker
from backend.schema.load import Endpoint


class Worker:
    """One load test. `run()` returns the exit status."""

    def __init__(self, spec: WorkerSpec, spool: Spool, api_key: str | None) -> None:
        self._spec = spec
        self._request = spec.request
        self._spool = spool
        self._api_key = api_key
        self._address = parse_address(spec.url)
        self._warnings = list(spec.warnings)
        self._gauges: list[LevelGauge] = []
        self._model = "default"
        self._level = 0
        self._ticker = Ticker()
        self._records = LineWriter(spool.requests)
        self._ticks = LineWriter(spool.ticks)
        read = read_generate if self._request.endpoint is Endpoint.GENERATE else read_openai
        self._slots = Slots(self._address, self._encode, lambda: Stream(read), self._finish, self._request.timeout_s)
        self._write_failure: OSError | None = None
        self._meter: Meter | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        levels = asyncio.ensure_future(self._levels())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, levels.cancel)
        ticking = asyncio.ensure_future(self._tick(levels))
        state, failure, status = "finished", None, 0
        try:
            await levels
        except asyncio.CancelledError:
            state = "stopped"
        except EngineError as error:
            state, failure, status = "failed", str(error), EXIT_SERVER_GONE
        except OSError as error:
            self._write_failure = error
        finally:
            ticking.cancel()
            self._slots.close()
        if self._write_failure is not None:
            failure = f"cannot write to {self._spool.directory}: {self._write_failure.strerror}; free some space there"
            state, status = "failed", EXIT_SPOOL_FAILED
        return self._end(state, failure, status)

    def _end(self, state: str, failure: str | None, status: int) -> int:
        if failure is not None:
            with contextlib.suppress(OSError):  # the log is on the same disk, which may be full
                sys.stderr.write(failure + "\n")
        try:
            if self._meter is not None:
                self._ticks.write(self._ticker.tick((), 0))
            self._report(state, failure)
        except OSError:
            return EXIT_SPOOL_FAILED
        finally:
            self._records.close()
            self._ticks.close()
        return status

    # ---- levels

    async def _levels(self) -> None:
        self._report("running", None)
        if self._request.endpoint is not Endpoint.GENERATE:
            await self._ask_model()
        lag = LoopLag()
        starts = first_prompts(self._request, len(self._spec.prompts))
        for index, concurrency in enumerate(self._request.concurrency):
            prompts = self._prompts_from(starts[index])
            await self._warm_up(index, concurrency, prompts, lag)
            if self._spec.flush:
                await self._flush(concurrency)
            await self._measure(index, concurrency, prompts, lag)
            self._report("running", None)
        lag.close()

    async def _warm_up(self, index: int, concurrency: int, prompts: Iterator[Prompt], lag: LoopLag) -> None:
        requests = self._request.warmup_requests
        if requests:
            meter = self._begin(index, concurrency, "warmup", requests, lag)
            await self._slots.run(concurrency, "warmup", prompts, requests=requests, meter=meter)

    async def _measure(self, index: int, concurrency: int, prompts: Iterator[Prompt], lag: LoopLag) -> None:
        requests = counted_requests(self._request, concurrency)
        duration_s = self._request.duration_s
        deadline_ns = None if duration_s is None else monotonic_ns() + int(duration_s * 1e9)
        meter = self._begin(index, concurrency, "measure", requests, lag)
        try:
            await self._slots.run(
                concurrency, "measure", prompts, requests=requests, deadline_ns=deadline_ns, meter=meter
            )
        finally:
            self._gauges.append(meter.gauge(concurrency))

    def _begin(self, index: int, concurrency: int, phase: str, total: int | None, lag: LoopLag) -> Meter:
        """A new phase: closes the ticks of the one before, and measures this one from zero."""
        if self._meter is not None:
            self._ticks.write(self._ticker.tick((), 0))
        self._level = concurrency
        self._ticker.begin(concurrency, index, phase, total)
        self._meter = Meter(lag)
        return self._meter

    def _prompts_from(self, start: int) -> Iterator[Prompt]:
        prompts = self._spec.prompts
        return (prompts[position % len(prompts)] for position in count(start))

    def _encode(self, prompt: Prompt) -> bytes:
        content = body(self._request, prompt, self._model)
        path = PATHS[self._request.endpoint]
        return request_bytes(self._address, "POST", path, content, api_key=self._api_key, stream=True)

    def _finish(self, exchange: Exchange) -> None:
        self._ticker.ended(exchange)
        self._records.write(exchange.record(self._spec.run_id, self._level))

    # ---- beside the requests

    async def _tick(self, levels: "asyncio.Future[None]") -> None:
        """Writes a tick, and ends the levels when the parent is gone or the disk is full."""
        due_s = asyncio.get_running_loop().time()
        while True:
            due_s += thresholds.LOAD_TICK_PERIOD_S
            await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
            if self._spec.parent_pid and os.getppid() != self._spec.parent_pid:
                levels.cancel()
                return
            if self._meter is None:
                continue
            try:
                self._ticks.write(self._ticker.tick(self._slots.open, self._meter.in_flight.now))
            except OSError as error:
                self._write_failure = error
                levels.cancel()
                return

    async def _flush(self, concurrency: int) -> None:
        """Empties the prefix cache. A server that will not is worth a warning, not a failed test."""
        answer = "no answer"
        for attempt in range(thresholds.LOAD_FLUSH_ATTEMPTS):
            if attempt:
                await asyncio.sleep(thresholds.LOAD_FLUSH_PAUSE_S)
            status, content = await self._ask("POST", "/flush_cache")
            if status == 200:
                return
            answer = f"HTTP {status}: {content[:120].decode('utf-8', 'replace').strip()}" if status else "no answer"
            if status != 400:
                break
        self._warnings.append(f"level {concurrency}: the prefix cache was not flushed ({answer})")

    async def _ask_model(self) -> None:
        """The served model's name, which OpenAI routes of some servers insist on."""
        status, content = await self._ask("GET", "/v1/models")
        try:
            self._model = str(orjson.loads(content)["data"][0]["id"]) if status == 200 else self._model
        except (ValueError, KeyError, IndexError, TypeError):
            self._warnings.append("the server's /v1/models names no model; requests say `default`")

    async def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        """One plain request on a connection of its own; (0, b"") when there is no answer."""
        try:
            async with asyncio.timeout(thresholds.LOAD_FLUSH_TIMEOUT_S):
                connection = await connect(self._address)
                request = request_bytes(self._address, method, path, api_key=self._api_key)
                status = await connection.exchange(request)
        except (ConnectionLostError, NotHttpError, TimeoutError):
            return 0, b""
        connection.close()
        return status, connection.body

    def _report(self, state: str, failure: str | None) -> None:
        report = WorkerReport(state=state, failure=failure, warnings=self._warnings, levels=self._gauges)
        replace_file(self._spool.report, report.model_dump_json().encode())


def main(argv: list[str]) -> int:
    """Exit status: 0 done or stopped, 2 unusable spec, 69 server gone, 74 records cannot be written."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m backend.load.worker SPEC.json\n")
        return 2
    path = Path(argv[0])
    try:
        spec = WorkerSpec.model_validate_json(path.read_bytes())
        worker = Worker(spec, Spool(path.parent), os.environ.get(API_KEY_VARIABLE))
    except (OSError, ValidationError, SlipstreamError) as error:
        sys.stderr.write(f"cannot use {path}: {error}\n")
        return 2
    _raise_file_limit()
    return uvloop.run(worker.run())


def _raise_file_limit() -> None:
    """One socket per slot: as many files as this process may open, where the shell's soft limit is often 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
