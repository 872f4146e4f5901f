"""Owns the engines of one host: launches, replaces, stops and adopts them."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine

from backend.clock import monotonic_s
from backend.errors import EngineError, NotFoundError, SlipstreamError, StorageError
from backend.paths import StatePaths
from backend.schema.engine import EngineState, EngineStatus, Failure, LaunchRequest, LogChunk
from backend.supervisor import lifecycle, stopping
from backend.supervisor.engine import Engine, adopted_engine, api_key_of, new_engine
from backend.supervisor.failures import failure
from backend.supervisor.limits import Limits
from backend.supervisor.log_file import prune_logs
from backend.supervisor.memory import MemoryReader, host_memory_used
from backend.supervisor.ports import claim_free_port, claim_port, require_free_port
from backend.supervisor.process_tree import kill_left_overs
from backend.supervisor.procfs import boot_id, is_alive, left_over_processes
from backend.supervisor.records import EngineRecord, Records
from backend.supervisor.spec import MARKER, prepare
from backend.thresholds import ENDED_ENGINES_KEPT_COUNT

logger = logging.getLogger(__name__)


class Supervisor:
    """Lives in the agent's event loop; all methods are called there.

    `memory_used` reads used bytes by device (NVML where there are GPUs); the default reads the host's memory.
    """

    def __init__(
        self, paths: StatePaths, *, limits: Limits | None = None, memory_used: MemoryReader = host_memory_used
    ) -> None:
        self._paths = paths
        self._limits = limits or Limits()
        self._memory_used = memory_used
        self._records = Records(paths)
        self._engines: dict[str, Engine] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # ---- what the agent asks for

    async def start(self) -> None:
        """Adopts the engines that an earlier agent left running and clears away what is left of the others."""
        for record in self._records.load():
            alive = record.boot_id == boot_id() and is_alive(record.root.id())
            engine = adopted_engine(record)
            self._engines[engine.id] = engine
            if alive:
                engine.api_key = api_key_of(record.root.pid)
                engine.watch(record.root.id(), [process.id() for process in record.relatives])
                self._run(engine, self._resume(engine))
            else:
                await engine.read_whole_log()
                self._bury(engine, record)

    async def launch(self, request: LaunchRequest) -> EngineStatus:
        """Begins a launch and returns at once. Raises UsageError, InputError, NotFoundError or ConflictError before
        anything is started or, with `replace`, stopped."""
        old = self._get(request.replace) if request.replace is not None else None
        taken = {e.port for e in self._engines.values() if not e.has_ended and e is not old}
        claim = None
        port = request.port or (old.port if old is not None else None)
        if port is None:
            port, claim = claim_free_port(request.host, taken)
        try:
            spec = prepare(request, port, self._paths.home)
            if port in taken or old is None or old.port != port or old.has_ended:
                require_free_port(request.host, port, taken)
        except SlipstreamError:
            if claim is not None:
                claim.close()
            raise
        engine = new_engine(f"e-{secrets.token_hex(4)}", spec, request, self._paths.logs)
        engine.port_claim = claim
        if old is not None and not old.has_ended:
            engine.state = EngineState.REPLACING
        self._engines[engine.id] = engine
        self._run(engine, self._launch(engine, old))
        self._forget_oldest()
        prune_logs(self._paths.logs, {known.log_path for known in self._engines.values()})
        return engine.status()

    async def stop(self, engine_id: str) -> EngineStatus:
        """Begins to stop an engine, or cancels its launch, and returns at once. One that has ended stays as it is."""
        engine = self._get(engine_id)
        if not engine.has_ended and engine.state is not EngineState.STOPPING:
            engine.stop_requested = True
            engine.move(EngineState.STOPPING)
            engine.wake.set()
        return engine.status()

    async def wait(self, engine_id: str, until: Callable[[EngineStatus], bool], timeout_s: float) -> EngineStatus:
        """The first status for which `until` holds, or the status after `timeout_s`."""
        engine = self._get(engine_id)
        deadline = monotonic_s() + timeout_s
        while not until(engine.status()) and (left := deadline - monotonic_s()) > 0:
            await engine.changed(left)
        return engine.status()

    def engines(self) -> list[EngineStatus]:
        """All engines of this agent's life, newest first; of the ended ones the last few."""
        return [engine.status() for engine in reversed(self._engines.values())]

    def engine(self, engine_id: str) -> EngineStatus:
        return self._get(engine_id).status()

    def log(self, engine_id: str, cursor: int) -> LogChunk:
        """Log lines after `cursor`, the number of lines already seen; a negative one asks for the last lines."""
        engine = self._get(engine_id)
        if engine.tree is not None and not engine.has_ended:
            engine.read_log()
        return engine.file.chunk(cursor)

    def api_key(self, engine_id: str) -> str | None:
        """The key that clients of this engine must send, if it was started with one. Never part of a document."""
        return self._get(engine_id).api_key

    def pids(self, engine_id: str) -> list[int]:
        """The processes of an engine as of the last look at its tree."""
        tree = self._get(engine_id).tree
        return [process.pid for process in tree.recorded] if tree else []

    def last_good(self) -> LaunchRequest | None:
        """The last configuration that became ready, in this agent's life or an earlier one's; secrets redacted."""
        return self._records.last_good()

    async def close(self) -> None:
        """Stops watching; engines keep running and the next supervisor adopts them."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for engine in self._engines.values():
            engine.release_port()
            self._save(engine)
            if engine.tree is not None:
                engine.tree.close()
            engine.file.close()

    # ---- the life of one engine

    async def _launch(self, engine: Engine, old: Engine | None) -> None:
        problem = None
        if engine.state is EngineState.REPLACING and old is not None:
            problem = await self._replace(engine, old)
        await self._wait_for_releases(engine)
        if problem is None and not engine.stop_requested:
            problem = self._start(engine)
        await self._serve_until_end(engine, problem)

    async def _replace(self, engine: Engine, old: Engine) -> Failure | None:
        """Stops the old engine and shows that as the new one's first phases. A failure if it does not end."""
        await self.stop(old.id)
        engine.log.clock.enter("stop", monotonic_s())
        while not old.has_ended and not engine.stop_requested:
            if old.log.clock.current == "wait_memory":
                engine.log.clock.enter("wait_memory", monotonic_s())
            await old.changed(self._limits.starting_poll_s)
        engine.log.clock.finish(monotonic_s())
        if old.has_ended and old.tree is not None and old.tree.members():
            return failure("unknown", f"engine {old.id}, which it replaces, did not end; nothing was started")
        return None

    async def _wait_for_releases(self, engine: Engine) -> None:
        """Until the memory of engines that have just ended is back, which their own tasks wait for."""
        releasing = [task for known, task in self._tasks.items() if known != engine.id and self._has_ended(known)]
        if releasing:
            engine.log.clock.enter("wait_memory", monotonic_s())
            await asyncio.wait(releasing)

    def _start(self, engine: Engine) -> Failure | None:
        taken = {e.port for e in self._engines.values() if not e.has_ended and e is not engine}
        try:
            require_free_port(engine.host, engine.port, taken)
        except SlipstreamError as error:
            return failure("port_in_use", str(error))
        engine.port_claim = engine.port_claim or claim_port(engine.port)
        if engine.state is EngineState.REPLACING:
            engine.move(EngineState.STARTING)
        problem = lifecycle.start(engine, self._memory_used)
        self._save(engine)
        return problem

    async def _resume(self, engine: Engine) -> None:
        """Goes on with an adopted engine from the state in which the earlier agent left it."""
        await engine.read_whole_log()
        if engine.state in {EngineState.READY, EngineState.DEGRADED}:
            lifecycle.remember_relatives(engine)
            engine.log.clock.finish(engine.log.ready_at_s or 0.0)
            await self._check_adopted(engine)
        engine.touch()
        engine.stop_requested = engine.stop_requested or engine.state is EngineState.STOPPING
        await self._serve_until_end(engine, None)

    async def _check_adopted(self, engine: Engine) -> None:
        try:
            await lifecycle.read_server_info(engine)
        except EngineError as error:
            engine.alarm(f"no_answer: the adopted engine is alive, but {error}")
            if engine.state is EngineState.READY:
                engine.move(EngineState.DEGRADED)

    async def _serve_until_end(self, engine: Engine, problem: Failure | None) -> None:
        if problem is None and engine.state is EngineState.STARTING and not engine.stop_requested:
            problem = await lifecycle.follow(engine, self._limits, self._save)
            if problem is None and not engine.stop_requested:
                self._keep_last_good(engine)
                lifecycle.serve(engine)
                self._save(engine)
        if problem is None and not engine.stop_requested:
            problem = await lifecycle.watch(engine, self._limits, self._save)
        await self._end(engine, problem)

    async def _end(self, engine: Engine, problem: Failure | None) -> None:
        """Every end goes through here: nothing of the engine is left running, then its state says so."""
        if engine.stop_requested:
            problem = None
        if engine.tree is None:
            self._finish(engine, problem)
        elif engine.root_ended and problem is not None:
            await self._sweep(engine)
            self._finish(engine, problem)
            await self._wait_for_resources(engine)
        else:
            problem = await self._stop_processes(engine) or problem
            await engine.read_whole_log()
            await self._wait_for_resources(engine)
            self._finish(engine, problem)

    async def _sweep(self, engine: Engine) -> None:
        orphans = await stopping.kill_processes(engine, self._limits)
        if orphans:
            engine.warn(f"orphans cleaned: {orphans}")

    async def _stop_processes(self, engine: Engine) -> Failure | None:
        if engine.state is not EngineState.STOPPING:
            engine.move(EngineState.STOPPING)
        engine.log.clock.enter("stop", monotonic_s())
        engine.touch()
        left = await stopping.end_processes(engine, self._limits)
        if not left:
            return None
        return failure("unknown", f"processes {left} did not end after SIGKILL; they hold memory or port {engine.port}")

    async def _wait_for_resources(self, engine: Engine) -> None:
        if not engine.has_ended:
            engine.log.clock.enter("wait_memory", monotonic_s())
            engine.touch()
        await stopping.wait_for_port(engine, self._limits)
        await stopping.wait_for_memory(engine, self._limits, self._memory_used)

    def _finish(self, engine: Engine, problem: Failure | None) -> None:
        engine.release_port()
        engine.log.clock.finish(monotonic_s())
        engine.failure = problem
        self._records.remove(engine.id)
        engine.move(EngineState.FAILED if problem is not None else EngineState.STOPPED)

    def _bury(self, engine: Engine, record: EngineRecord) -> None:
        """An engine that died while no agent watched: its left-overs are killed, its log says why."""
        orphans = []
        if record.boot_id == boot_id():
            orphans = left_over_processes([p.id() for p in record.relatives], f"{MARKER}={engine.id}")
        kill_left_overs(orphans)
        if orphans:
            engine.warn(f"orphans cleaned: {len(orphans)}")
        engine.state = EngineState.STARTING if engine.state is EngineState.REPLACING else engine.state
        asked = engine.state is EngineState.STOPPING
        reason = engine.log.failure() or failure("server_lost", "the engine ended while no agent was running")
        self._finish(engine, None if asked else reason)

    # ---- helpers

    def _get(self, engine_id: str) -> Engine:
        engine = self._engines.get(engine_id)
        if engine is None:
            known = ", ".join(self._engines) or "none"
            raise NotFoundError(f"no engine has the id {engine_id!r}; known: {known}")
        return engine

    def _has_ended(self, engine_id: str) -> bool:
        engine = self._engines.get(engine_id)
        return engine is None or engine.has_ended

    def _run(self, engine: Engine, life: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(self._guard(engine, life), name=f"engine {engine.id}")
        self._tasks[engine.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(engine.id, None))

    async def _guard(self, engine: Engine, life: Coroutine[None, None, None]) -> None:
        """The top of an engine's task: a fault of ours must not leave an engine that seems to start for ever."""
        try:
            await life
        except Exception as error:
            logger.exception("the supervision of engine %s failed", engine.id)
            if not engine.has_ended:
                self._finish(
                    engine, failure("unknown", f"the supervision failed: {error!r}; the process may still run")
                )

    def _save(self, engine: Engine) -> None:
        record = None if engine.has_ended else engine.record()
        if record is not None:
            self._guard_disk(lambda: self._records.save(record))

    def _keep_last_good(self, engine: Engine) -> None:
        request = engine.request
        if request is not None:
            self._guard_disk(lambda: self._records.save_last_good(request))

    def _guard_disk(self, write: Callable[[], None]) -> None:
        """A full disk must not end a serving engine; without its record it cannot be adopted, which is logged."""
        try:
            write()
        except StorageError as error:
            logger.warning("%s", error)

    def _forget_oldest(self) -> None:
        ended = [engine for engine in self._engines.values() if engine.has_ended]
        for engine in ended[:-ENDED_ENGINES_KEPT_COUNT]:
            engine.file.close()
            del self._engines[engine.id]
