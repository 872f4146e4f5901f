"""An engine's way from launch to end: start, follow to readiness, watch, and what an exit means."""

import asyncio
import os
import signal
from collections.abc import Callable

from backend.clock import monotonic_s
from backend.errors import EngineError, SlipstreamError
from backend.schema.engine import EngineState, Failure
from backend.supervisor.engine import Engine
from backend.supervisor.failures import failure
from backend.supervisor.health import readiness_alarms, silence
from backend.supervisor.limits import Limits
from backend.supervisor.log_file import create_log
from backend.supervisor.memory import MemoryReader, oom_kills
from backend.supervisor.ports import stranger_on
from backend.supervisor.probe import server_info, smoke
from backend.supervisor.process_tree import spawn

# Called when something worth keeping over a crash of the agent has changed.
Save = Callable[[Engine], None]


def start(engine: Engine, memory_used: MemoryReader) -> Failure | None:
    """Starts the process of an engine. A failure means that nothing runs."""
    spec = engine.spec
    if spec is None:
        raise TypeError(f"engine {engine.id} was adopted and cannot be started")
    engine.memory_before, engine.oom_kills_before = memory_used(), oom_kills()
    engine.process_started_s = engine.last_output_s = monotonic_s()
    engine.log.clock.enter("init", engine.process_started_s)
    try:
        output = create_log(engine.log_path)
        try:
            root = spawn(spec.argv, spec.environment(engine.id), spec.cwd, output)
        finally:
            os.close(output)
    except (OSError, SlipstreamError) as error:
        return failure("unknown", f"the engine could not be started: {error}")
    engine.watch(root)
    return None


async def follow(engine: Engine, limits: Limits, save: Save) -> Failure | None:
    """From the start of the process to a first answered request. None: it may serve, or a stop was asked for."""
    scanned_s = 0.0
    while engine.log.ready_line is None:
        if engine.stop_requested:
            return None
        more = engine.read_log()
        if engine.root_ended:
            return await exit_failure(engine)
        if monotonic_s() - scanned_s >= limits.starting_scan_s:
            scanned_s = monotonic_s()
            _scan(engine, save)
            if problem := silence(engine, limits):
                return problem
        engine.touch()
        await engine.pause(0 if more else limits.starting_poll_s)
    return await _prove(engine, limits)


async def watch(engine: Engine, limits: Limits, save: Save) -> Failure | None:
    """While it serves. Returns None when a stop was asked for, else why it is gone."""
    scanned_s = monotonic_s()
    while not engine.stop_requested:
        more = engine.read_log()
        if engine.root_ended:
            return await exit_failure(engine)
        _note_lost(engine)
        if monotonic_s() - scanned_s >= limits.ready_scan_s:
            scanned_s = monotonic_s()
            _scan(engine, save)
        await engine.pause(0 if more else limits.ready_poll_s)
    return None


async def exit_failure(engine: Engine) -> Failure:
    """Why the root process is gone: what the log says, else what the exit status says."""
    await engine.read_whole_log()
    tree = engine.tree
    found = engine.log.failure()
    if found is not None:
        return found
    code = tree.exit_code if tree else None
    if code == -signal.SIGKILL:
        return failure("killed_by_os", "the engine was ended by SIGKILL, which Slipstream did not send" + _oom(engine))
    how = _describe_exit(code)
    if engine.log.ready_line is not None:
        return failure("server_lost", f"the serving engine ended {how} and its log gives no reason")
    where = engine.log.clock.current or "the start"
    return failure("unknown", f"the engine ended {how} during {where}, and its log gives no reason")


def _oom(engine: Engine) -> str:
    before, now = engine.oom_kills_before, oom_kills()
    if before is None or now is None or now <= before:
        return ""
    return "; the kernel killed processes since the launch because host memory (not GPU memory) ran out"


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "with an unknown exit status"
    if code >= 0:
        return f"with exit status {code}"
    return f"by signal {signal.Signals(-code).name}"


async def _prove(engine: Engine, limits: Limits) -> Failure | None:
    """Ready is more than a log line: this engine must own the port, and a first request must bring a token back."""
    own = [member.id.pid for member in engine.tree.members()] if engine.tree else []
    stranger = await asyncio.to_thread(stranger_on, engine.port, own)
    if stranger is not None:
        cause = f"port {engine.port} is answered by {stranger}, a server that was started at the same time"
        return failure("port_in_use", cause, engine.log.ready_line)
    asked = asyncio.create_task(_ask(engine, limits))
    while not asked.done():
        waiting = asyncio.create_task(engine.wake.wait())
        await asyncio.wait({asked, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        engine.wake.clear()
        if engine.stop_requested or engine.root_ended:
            break
    if engine.stop_requested or engine.root_ended:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        return None if engine.stop_requested else await exit_failure(engine)
    try:
        asked.result()
    except EngineError as error:
        return failure("warmup_failed", f"the ready line was written, but {error}", engine.log.ready_line)
    return None


async def _ask(engine: Engine, limits: Limits) -> None:
    await smoke(engine.url, engine.api_key, limits.smoke_timeout_s)
    await read_server_info(engine)


async def read_server_info(engine: Engine) -> None:
    """Takes over what the engine says about itself. EngineError when it does not answer."""
    info = await server_info(engine.url, engine.api_key)
    engine.version = info.version or engine.version
    engine.effective = info.effective
    engine.own_ledger = info.ledger
    if engine.spec is not None:
        engine.config_hash = engine.spec.config_hash(engine.version)


def serve(engine: Engine) -> None:
    """READY, with alarms for what makes it useless although it answers."""
    engine.release_port()
    now = monotonic_s()
    if engine.ready_seconds is None:
        engine.ready_seconds = round(now - engine.process_started_s, 3)
    engine.log.clock.finish(engine.log.ready_at_s or 0.0 if engine.adopted else now)
    remember_relatives(engine)
    for alarm in readiness_alarms(engine):
        engine.alarm(alarm)
    engine.move(EngineState.READY)


def remember_relatives(engine: Engine) -> None:
    """From now on the end of any of these processes is a fault."""
    if engine.tree is not None:
        engine.tree.scan()
        engine.essential = engine.tree.essential()


def _note_lost(engine: Engine) -> None:
    if not engine.lost:
        return
    names = engine.tree.recorded if engine.tree else {}
    for process in engine.lost:
        engine.alarm(f"process_lost: {names.get(process, 'process')} (pid {process.pid}) of the serving engine ended")
    engine.lost.clear()
    if engine.state is EngineState.READY:
        engine.move(EngineState.DEGRADED)


def _scan(engine: Engine, save: Save) -> None:
    if engine.tree is not None and engine.tree.scan():
        save(engine)
