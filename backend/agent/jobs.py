"""The composition root: supervisor, load tests, telemetry and store, joined into the agent's jobs.

Everything here runs on the agent's event loop; reading the store for a page does not (see `routes`).
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Coroutine

from backend import thresholds
from backend.agent.engines import choose_engine, describe_engine, describe_server
from backend.agent.hostfacts import device_memory_used, host_facts, versions
from backend.agent.recovery import recover_interrupted
from backend.checkpoint import require_checkpoint
from backend.errors import ConflictError, InputError, NotFoundError, SlipstreamError
from backend.load import LoadJob, LoadTarget, parse_address
from backend.paths import StatePaths
from backend.schema.engine import EngineKind, EngineState, EngineStatus, LaunchRequest
from backend.schema.host import AgentInfo, MemoryComponent, Status, TelemetryDelta, TelemetrySample
from backend.schema.load import Bench, BenchEngine, BenchRequest, LiveDelta, LoadStatus
from backend.store import Store, new_run_id
from backend.supervisor import Supervisor
from backend.telemetry import Nvml, Sampler, load_pynvml

log = logging.getLogger(__name__)

ALIVE = (EngineState.REPLACING, EngineState.STARTING, EngineState.READY, EngineState.DEGRADED, EngineState.STOPPING)
STARTING = (EngineState.REPLACING, EngineState.STARTING, EngineState.STOPPING)


class Jobs:
    """What one agent owns. `start()` once on the loop, `close()` at the end; engines outlive it."""

    def __init__(self, paths: StatePaths, info: AgentInfo) -> None:
        self.paths = paths
        self.info = info
        self.store = Store(paths)
        gpus = Nvml(load_pynvml())  # its own: NVML's session may not be used by two threads at once
        self.supervisor = Supervisor(paths, memory_used=lambda: device_memory_used(gpus))
        # What the sampler's thread reads: replaced as a whole on the loop, never changed.
        self._components: list[MemoryComponent] = []
        self._pids: list[int] = []
        self.sampler = Sampler(components=lambda: self._components, pids=lambda: self._pids)
        self._loads: dict[str, LoadJob] = {}
        self._engine_of: dict[str, BenchEngine] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self.supervisor.start()
        self.sampler.start()
        self._spawn(self._recover())
        self._spawn(self._pace_telemetry())

    async def close(self) -> None:
        """Ends the agent's own work. A load test that still runs is stopped and stored; engines keep running."""
        for job in self._running():
            job.stop()
        await asyncio.gather(*(job.wait() for job in self._running()), return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.supervisor.close()
        self.sampler.close()
        self.store.close()

    # ---- engines

    def status(self) -> Status:
        return Status(
            agent=self.info,
            engines=self.engines(),
            loads=[job.status() for job in reversed(self._loads.values())],
            last_good=self.supervisor.last_good(),
        )

    def engines(self) -> list[EngineStatus]:
        return [self._with_load(engine) for engine in self.supervisor.engines()]

    def engine(self, engine_id: str) -> EngineStatus:
        return self._with_load(self.supervisor.engine(engine_id))

    async def launch(self, request: LaunchRequest) -> EngineStatus:
        """Begins a launch. A load test on the engine that would be replaced has to end first."""
        if request.replace is not None:
            self._refuse_while_loaded(request.replace, "restarted")
        return await self.supervisor.launch(request)

    async def stop_engine(self, engine_id: str) -> EngineStatus:
        """Begins to stop an engine; a load test on it ends as stopped, with what it has measured."""
        for job in self._running():
            if job.status().engine_id == engine_id:
                job.stop()
        return await self.supervisor.stop(engine_id)

    # ---- load tests

    async def start_load(self, request: BenchRequest) -> LoadStatus:
        engine = choose_engine(request, self.supervisor.engines())
        if engine is not None:
            self._refuse_while_loaded(engine.id, "measured twice at once")
            described = describe_engine(engine)
            target = LoadTarget(engine.url, engine.model, self.supervisor.api_key(engine.id), engine.id)
        else:
            described, target = await self._foreign_target(request)
        run_id = new_run_id()
        job = LoadJob(secrets.token_hex(4), run_id, request, target, self.paths.run_dir(run_id) / "spool")
        await job.start()
        self._loads[job.status().id] = job
        self._engine_of[run_id] = described
        try:
            self.store.create_run(
                run_id,
                request=request,
                engine=described,
                host=host_facts(),
                versions=versions(),
                log=engine.log if engine else None,
            )
        except SlipstreamError:
            job.abort("the store refused the run")
            raise
        self._spawn(self._follow(job))
        self._forget_old_loads()
        return job.status()

    def load(self, load_id: str) -> LoadJob:
        if load_id not in self._loads:
            raise NotFoundError(f"no load test {load_id}; `status` lists them, `runs` the stored ones")
        return self._loads[load_id]

    def live(self, load_id: str, cursor: int, boot: str | None) -> LiveDelta:
        return self.load(load_id).live(cursor, boot)

    def result(self, load_id: str) -> Bench:
        job = self.load(load_id)
        status = job.status()
        return Bench(
            run_id=status.run_id,
            state=status.state,
            levels=job.levels(),
            engine=self._engine_of[status.run_id],
            request=job.request,
            failure=status.failure,
        )

    # ---- host

    def telemetry(self, cursor: int, boot: str | None) -> TelemetryDelta:
        return self.sampler.since(cursor, boot)

    async def close_session(self, owner: str) -> bool:
        """A dashboard ends: stops the reference engines it started, unless a load runs on them.

        Returns whether the agent has nothing left to do and was itself started by a dashboard.
        """
        busy = {job.status().engine_id for job in self._running()}
        for engine in self.supervisor.engines():
            mine = engine.request is not None and engine.request.owner == owner
            if mine and engine.kind is EngineKind.REFERENCE and engine.state in ALIVE and engine.id not in busy:
                await self.supervisor.stop(engine.id)
        idle = not self._running()
        for engine in self.supervisor.engines():
            if engine.state is EngineState.STOPPING:
                await self.supervisor.wait(
                    engine.id, lambda status: status.state not in ALIVE, thresholds.CLOSE_SESSION_TIMEOUT_S
                )
            idle = idle and self.supervisor.engine(engine.id).state not in ALIVE
        return idle and self.info.started_by.startswith("ui")

    # ---- inside

    async def _foreign_target(self, request: BenchRequest) -> tuple[BenchEngine, LoadTarget]:
        url = (request.url or "").rstrip("/")
        parse_address(url)
        api_key = os.environ.get("SLIPSTREAM_ENGINE_API_KEY")
        described = await describe_server(url, api_key)
        model_dir = None
        if described.model is not None:
            try:
                model_dir = str(require_checkpoint(described.model))
            except InputError:
                model_dir = None  # the server's checkpoint is not on this machine: prompts go unrendered or by chat
        return described, LoadTarget(url, model_dir, api_key, None)

    async def _follow(self, job: LoadJob) -> None:
        """Watches one load test to its end and stores all of it."""
        run_id = job.status().run_id
        samples: list[TelemetrySample] = []
        waiting = asyncio.ensure_future(job.wait())
        delta = self.sampler.since(0, None)
        cursor, boot, source = delta.cursor, delta.boot, delta.source
        since_collected_s = 0.0
        while not waiting.done():
            await asyncio.wait([waiting], timeout=thresholds.ENGINE_WATCH_PERIOD_S)
            self._abort_if_lost(job)
            since_collected_s += thresholds.ENGINE_WATCH_PERIOD_S
            if waiting.done() or since_collected_s >= thresholds.TELEMETRY_COLLECT_PERIOD_S:
                since_collected_s = 0.0
                delta = self.sampler.since(cursor, boot)
                samples.extend(delta.samples)
                cursor = delta.cursor
        while not await asyncio.to_thread(self._store, job, run_id, samples, source):
            await asyncio.sleep(thresholds.STORE_RETRY_PERIOD_S)

    def _store(self, job: LoadJob, run_id: str, samples: list[TelemetrySample], source: str) -> bool:
        """Whether all of a run could be stored; if not, its records stay in its spool and `status` says why.

        Order matters: the records first, so that whatever fails later loses none of them.
        """
        status = job.status()
        try:
            self.store.add_records(run_id, job.records())
            live = job.live(0, None)
            self.store.finish_run(run_id, status.state, job.levels(), status.failure)
            self.store.save_live(run_id, live.points, live.per_position)
            self.store.save_telemetry(run_id, samples, source)
        except SlipstreamError as error:
            log.warning("run %s could not be stored whole; its records stay in its spool: %s", run_id, error)
            self.info = self.info.model_copy(update={"store_error": str(error)})
            return False
        self.info = self.info.model_copy(update={"store_error": None})
        return True

    def _abort_if_lost(self, job: LoadJob) -> None:
        engine_id = job.status().engine_id
        if engine_id is None:
            return
        engine = self.supervisor.engine(engine_id)
        if engine.state is EngineState.READY or engine.state is EngineState.STOPPING:
            return
        cause = engine.failure.cause if engine.failure else f"the engine is {engine.state}"
        job.abort(f"server_lost: {cause}")

    async def _recover(self) -> None:
        for run_id in self.store.unfinished():
            await asyncio.to_thread(recover_interrupted, self.store, self.paths, run_id)

    async def _pace_telemetry(self) -> None:
        """Samples often while something happens and seldom at rest."""
        while True:
            busy = bool(self._running()) or any(e.state in STARTING for e in self.supervisor.engines())
            self._note_engines()
            self.sampler.set_active(busy)
            await asyncio.sleep(thresholds.ENGINE_WATCH_PERIOD_S)

    def _note_engines(self) -> None:
        """Ledgers and processes of the living engines, for the sampler."""
        alive = [engine for engine in self.supervisor.engines() if engine.state in ALIVE]
        self._components = [
            MemoryComponent(
                name=name, bytes=item.bytes, basis="engine" if item.line is None else f"log line {item.line}"
            )
            for engine in alive
            for name, item in engine.ledger.items()
        ]
        self._pids = [pid for engine in alive for pid in self.supervisor.pids(engine.id)]

    def _running(self) -> list[LoadJob]:
        return [job for job in self._loads.values() if not job.status().state.ended]

    def _refuse_while_loaded(self, engine_id: str, what: str) -> None:
        for job in self._running():
            status = job.status()
            if status.engine_id == engine_id:
                raise ConflictError(
                    f"load test {status.id} runs on engine {engine_id}, which cannot be {what}; wait until it ends, or "
                    "end it first: on the Tune page, or by Ctrl-C where it was started"
                )

    def _with_load(self, engine: EngineStatus) -> EngineStatus:
        serving = (job.status().id for job in self._running() if job.status().engine_id == engine.id)
        return engine.model_copy(update={"serving_load": next(serving, None)})

    def _forget_old_loads(self) -> None:
        ended = [key for key, job in self._loads.items() if job.status().state.ended]
        for key in ended[: -thresholds.ENDED_LOADS_KEPT_COUNT]:
            self._engine_of.pop(self._loads[key].status().run_id, None)
            del self._loads[key]

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the agent failed", exc_info=error)
