"""Commands about running engines, all through the agent: launch, status, stop."""

import argparse
import os

from backend.agent.client import AgentClient
from backend.cli import render
from backend.cli.context import Context, interrupt_held, request_of
from backend.errors import (
    ConflictError,
    EngineError,
    InputError,
    ModelNotFoundError,
    PortInUseError,
    SlipstreamError,
    UsageError,
)
from backend.schema.engine import (
    EngineState,
    EngineStatus,
    Failure,
    LaunchFailure,
    LaunchRequest,
    LaunchResult,
    Stopped,
)
from backend.thresholds import CLI_POLL_PERIOD_S


def launch(context: Context, arguments: argparse.Namespace) -> int:
    """Waits until the engine serves. A launch that fails is exit 1 and a document with its `failure`."""
    request = request_of(
        LaunchRequest,
        {
            "model": _absolute(arguments.model),
            "kind": arguments.kind,
            "engine": _absolute(arguments.engine),
            "python": _absolute(arguments.python),
            "port": arguments.port,
            "gpus": arguments.gpus,
            "env": dict(arguments.env),
            "flags": arguments.flags,
        },
    )
    with context.agent(arguments.agent) as client:
        engine = None
        try:
            with interrupt_held():
                engine = client.launch(request)
                context.say(f"engine {engine.id}: {render.command_line(engine.argv)}")
            engine = _follow(context, client, engine)
        except (InputError, ConflictError) as refused:
            if arguments.json and engine is None:
                context.answer(_refusal(refused), True, render.launch_failure)
            raise
        except KeyboardInterrupt:
            if engine is not None:
                client.stop_engine(engine.id)
                context.say(f"cancelled: engine {engine.id} is being stopped")
            raise
    if engine.state.serving:
        context.answer(_result(engine), arguments.json, render.launch_result)
        return 0
    context.answer(_failure(engine), arguments.json, render.launch_failure)
    return 1


def _follow(context: Context, client: AgentClient, engine: EngineStatus) -> EngineStatus:
    """Reads the engine's state until it serves or has ended; tells each phase when it is over."""
    told = 0
    while True:
        done = [(phase.name, phase.seconds) for phase in engine.phases if phase.seconds is not None]
        for name, seconds in done[told:]:
            shown = "<0.01" if seconds < 0.005 else f"{seconds:.2f}"  # a short phase took no zero time
            context.say(f"  {name:<12} {shown:>7} s")
        told = len(done)
        if engine.state.serving or engine.state.ended:
            return engine
        context.sleep(CLI_POLL_PERIOD_S)
        engine = client.engine(engine.id)


def _result(engine: EngineStatus) -> LaunchResult:
    return LaunchResult(
        id=engine.id,
        url=engine.url,
        pid=engine.pid,
        kind=engine.kind,
        version=engine.version,
        argv=engine.argv,
        env=engine.env,
        effective=engine.effective,
        ready_seconds=engine.ready_seconds,
        phases=engine.phases,
        warnings=[*engine.warnings, *engine.alarms],
        log=engine.log,
    )


def _failure(engine: EngineStatus) -> LaunchFailure:
    stopped = Failure(
        failure_class="unknown",
        cause="the engine was stopped before it was ready",
        advice="launch it again if that was not intended",
    )
    return LaunchFailure(
        id=engine.id,
        state=engine.state,
        failure=engine.failure or stopped,
        phases=engine.phases,
        argv=engine.argv,
        log=engine.log,
    )


def _refusal(refused: SlipstreamError) -> LaunchFailure:
    """A launch that was refused before anything was started, for scripts: people read the same on stderr."""
    known = {ModelNotFoundError: "model_not_found", PortInUseError: "port_in_use"}
    failure = Failure(
        failure_class=known.get(type(refused), "unknown"),
        cause=str(refused),
        advice="change what the cause names and launch again; nothing was started",
    )
    return LaunchFailure(failure=failure)


def status(context: Context, arguments: argparse.Namespace) -> int:
    with context.agent(arguments.agent) as client:
        context.answer(client.status(), arguments.json, render.status)
    return 0


def stop(context: Context, arguments: argparse.Namespace) -> int:
    """Waits until every engine that was named is gone. With --all and none running there is nothing to do."""
    with context.agent(arguments.agent) as client:
        if arguments.all:
            wanted = [engine.id for engine in running(client)]
        else:
            wanted = [arguments.id or the_only_engine(client)]
        for engine_id in wanted:
            client.stop_engine(engine_id)
        stopped = Stopped(engines=[_wait_until_gone(context, client, engine_id) for engine_id in wanted])
    context.answer(stopped, arguments.json, render.stopped)
    for engine in stopped.engines:
        if engine.state is EngineState.FAILED and engine.failure is not None:
            raise EngineError(f"engine {engine.id} did not end cleanly: {engine.failure.cause}")
    return 0


def _wait_until_gone(context: Context, client: AgentClient, engine_id: str) -> EngineStatus:
    engine = client.engine(engine_id)
    while not engine.state.ended:
        context.sleep(CLI_POLL_PERIOD_S)
        engine = client.engine(engine_id)
    return engine


def running(client: AgentClient) -> list[EngineStatus]:
    """The engines of this agent that have not ended, newest first."""
    return [engine for engine in client.status().engines if not engine.state.ended]


def the_only_engine(client: AgentClient) -> str:
    """The id that may be left out: InputError when no engine runs, UsageError when several do."""
    engines = running(client)
    if not engines:
        raise InputError("no engine runs; start one with `python -m backend launch`")
    if len(engines) > 1:
        known = ", ".join(f"{engine.id} ({engine.state}, {engine.url})" for engine in engines)
        raise UsageError(f"several engines run; name one with --id: {known}")
    return engines[0].id


def _absolute(path: str | None) -> str | None:
    """A path of this shell's directory for an agent that has another one. Symbolic links stay: a venv's python is one.

    A name that is no path here (of a remote agent's disk, say) is passed on as it is.
    """
    if path is None or not (path.startswith((".", "~")) or os.path.exists(path)):  # noqa: PTH110 never raises
        return path
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 Path.resolve would follow the links
