"""A load test as the agent holds it: prepares, starts the worker, follows its spool, tells how it ended."""

import asyncio
import os
import secrets
import sys
from pathlib import Path

from backend import thresholds
from backend.clock import monotonic_s, utc_now
from backend.errors import SlipstreamError, StorageError, UsageError
from backend.load.connection import parse_address
from backend.load.live import LiveView
from backend.load.progress import progress
from backend.load.prompts import prepare_prompts
from backend.load.results import level_results, read_records, read_report
from backend.load.spec import API_KEY_VARIABLE, EXIT_SPOOL_FAILED, WorkerSpec
from backend.load.spool import LineReader, Spool
from backend.load.target import LoadTarget
from backend.paths import PROJECT_ROOT
from backend.schema.load import BenchRequest, LevelResult, LiveDelta, LoadState, LoadStatus, RequestRecord

_LOG_TAIL_CHARS = 600


class LoadJob:
    """One load test. `start()` once; everything else may be called at any time from the same event loop.

    `records()` and `levels()` only read files, so they may also be called from another thread.
    """

    def __init__(self, load_id: str, run_id: str, request: BenchRequest, target: LoadTarget, spool: Path) -> None:
        self.request = request
        self.warnings: list[str] = []
        self._load_id = load_id
        self._run_id = run_id
        self._target = target
        self._spool = Spool(spool)
        self._state = LoadState.PREPARING
        self._failure: str | None = None
        self._aborted: str | None = None
        self._started_at_utc = utc_now()
        self._started_s = monotonic_s()
        self._ended_s: float | None = None
        self._boot = secrets.token_hex(8)
        self._view = LiveView()
        self._ticks = LineReader(self._spool.ticks)
        self._process: asyncio.subprocess.Process | None = None
        self._follower: asyncio.Task[None] | None = None
        self._killer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Prepares the prompts and starts the worker. InputError, UsageError, StorageError before anything is sent."""
        try:
            parse_address(self._target.url)
            _refuse_repeated_levels(self.request)
            await asyncio.to_thread(self._prepare)
            self._process = await self._spawn()
        except SlipstreamError as error:
            self._end(LoadState.FAILED, str(error))
            raise
        self._follower = asyncio.ensure_future(self._follow(self._process))

    def stop(self) -> None:
        """Ends the load test with what it has measured. Open requests are cancelled, the engine goes on serving."""
        if not self._state.ended and self._state is not LoadState.STOPPING:
            self._state = LoadState.STOPPING
            self._terminate()

    def abort(self, reason: str) -> None:
        """Ends the load test as failed, for a cause that only the agent can see. What was measured is kept."""
        if not self._state.ended and self._aborted is None:
            self._aborted = reason
            self._state = LoadState.STOPPING
            self._terminate()

    async def wait(self) -> LoadStatus:
        """The final status, once the worker has ended and its last lines are read."""
        if self._follower is not None:
            await asyncio.shield(self._follower)
        return self.status()

    def status(self) -> LoadStatus:
        elapsed_s = (self._ended_s or monotonic_s()) - self._started_s
        return LoadStatus(
            id=self._load_id,
            state=self._state,
            run_id=self._run_id,
            engine_id=self._target.engine_id,
            url=self._target.url,
            started_at_utc=self._started_at_utc,
            progress=progress(self.request, self._view.last, elapsed_s, finished=self._state is LoadState.FINISHED),
            failure=self._failure,
            warnings=self.warnings,
        )

    def live(self, cursor: int, boot: str | None) -> LiveDelta:
        """Points from `cursor` on. A cursor of another job, or one that cannot be, gets everything and `reset`."""
        points = self._view.points
        reset = boot != self._boot or not 0 <= cursor <= len(points)
        return LiveDelta(
            boot=self._boot,
            cursor=len(points),
            reset=reset,
            points=points[0 if reset else cursor :],
            per_position=self._view.per_position,
            status=self.status(),
        )

    def records(self) -> list[RequestRecord]:
        """Every request that has ended, warm-up and failed ones too."""
        return read_records(self._spool)

    def levels(self) -> list[LevelResult]:
        """Results so far; the running level's is partial."""
        return level_results(self.request.concurrency, self.records(), read_report(self._spool))

    # ---- inside

    def _prepare(self) -> None:
        """Reads and renders the prompts and writes the spec. Runs in a thread: a large file takes seconds."""
        model_dir = Path(self._target.model_dir) if self._target.model_dir else None
        prepared = prepare_prompts(self.request, model_dir)
        self.warnings = prepared.warnings
        spec = WorkerSpec(
            run_id=self._run_id,
            load_id=self._load_id,
            url=self._target.url,
            request=self.request,
            prompts=prepared.prompts,
            flush=self.request.flush_cache and self._target.engine_id is not None,
            parent_pid=os.getpid(),
            warnings=prepared.warnings,
        )
        try:
            self._spool.directory.mkdir(parents=True, exist_ok=True)
            self._spool.spec.write_bytes(spec.model_dump_json().encode())
        except OSError as error:
            raise StorageError(f"cannot write {self._spool.spec}: {error.strerror}; free some space there") from error

    async def _spawn(self) -> asyncio.subprocess.Process:
        environment = {name: value for name, value in os.environ.items() if name != API_KEY_VARIABLE}
        if self._target.api_key:
            environment[API_KEY_VARIABLE] = self._target.api_key
        argv = [sys.executable, "-m", "backend.load.worker", str(self._spool.spec.resolve())]
        try:
            with self._spool.log.open("wb") as log:
                return await asyncio.create_subprocess_exec(
                    *argv,
                    cwd=PROJECT_ROOT,
                    env=environment,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        except OSError as error:
            raise StorageError(f"cannot start the load worker: {error.strerror}") from error

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        """Reads new ticks until the worker has ended, then tells how it did."""
        ended = asyncio.ensure_future(process.wait())
        while not ended.done():
            await asyncio.wait([ended], timeout=thresholds.LOAD_TICK_PERIOD_S)
            self._view.add(self._ticks.read())
            self._note_phase()
        if self._killer is not None:
            self._killer.cancel()
        self._view.finish()
        report = read_report(self._spool)
        self.warnings = report.warnings if report else self.warnings
        self._end(*self._verdict(process.returncode or 0, report.failure if report else None))

    def _note_phase(self) -> None:
        if self._state in (LoadState.PREPARING, LoadState.WARMUP) and self._view.last is not None:
            warm = self._view.last["phase"] == "warmup"
            self._state = LoadState.WARMUP if warm else LoadState.RUNNING

    def _verdict(self, status: int, failure: str | None) -> tuple[LoadState, str | None]:
        """Final state and cause from the worker's exit status and what it reported."""
        if self._aborted is not None:
            return LoadState.FAILED, self._aborted
        if status == EXIT_SPOOL_FAILED:
            where = f"cannot write to {self._spool.directory}; free some space there"
            return LoadState.FAILED, failure or self._log_tail() or where
        if self._state is LoadState.STOPPING:
            return LoadState.STOPPED, None
        if status == 0:
            report = read_report(self._spool)
            stopped = report is not None and report.state == "stopped"
            return (LoadState.STOPPED if stopped else LoadState.FINISHED), None
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return LoadState.FAILED, failure or f"the load worker {how}: {self._log_tail() or 'it said nothing'}"

    def _terminate(self) -> None:
        """SIGTERM now, SIGKILL if the worker is still there after its grace."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        loop = asyncio.get_running_loop()
        self._killer = loop.call_later(thresholds.LOAD_STOP_TIMEOUT_S, _kill, process)

    def _log_tail(self) -> str:
        try:
            return self._spool.log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL_CHARS:].strip()
        except OSError:
            return ""

    def _end(self, state: LoadState, failure: str | None) -> None:
        self._state, self._failure, self._ended_s = state, failure, monotonic_s()


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()


def _refuse_repeated_levels(request: BenchRequest) -> None:
    """A level is known by its concurrency, in records as in results."""
    repeated = {level for level in request.concurrency if request.concurrency.count(level) > 1}
    if repeated:
        raise UsageError(f"concurrency {sorted(repeated)[0]} is listed twice; list each level once")
