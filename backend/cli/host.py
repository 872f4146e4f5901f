"""Commands about the machine and about engines that do not run: doctor, scan, diagnose, agent."""

import argparse
from pathlib import Path

from backend.cli import render
from backend.cli.context import Context
from backend.errors import AgentError, InputError
from backend.schema.engine import EngineKind
from backend.schema.host import AgentInfo


def doctor(context: Context, arguments: argparse.Namespace) -> int:
    """Exit 0 whatever is found: the findings are the answer."""
    if arguments.agent:
        with context.find(context.paths, arguments.agent) as client:
            document = client.doctor()
    else:
        from backend.doctor import doctor as examine

        document = examine(context.paths, _live_agent(context))
    context.answer(document, arguments.json, render.doctor)
    return 0


def _live_agent(context: Context) -> AgentInfo | None:
    try:
        client = context.find(context.paths)
    except AgentError:
        return None
    with client:
        try:
            return client.status().agent
        except AgentError as error:
            context.say(f"note: {error}")
            return None


def scan(context: Context, arguments: argparse.Namespace) -> int:
    if arguments.agent:
        kind = EngineKind.SGLANG if arguments.engine else None
        with context.find(context.paths, arguments.agent) as client:
            document = client.scan(kind=kind, engine=arguments.engine)
    else:
        from backend.doctor import choose_engine
        from backend.engine_scan import scan_engine

        document = scan_engine(*choose_engine(arguments.engine), context.paths)
    context.answer(document, arguments.json, render.scan)
    return 0


def diagnose(context: Context, arguments: argparse.Namespace) -> int:
    """Exit 0 whatever the log says: the diagnosis is the answer."""
    from backend.supervisor import diagnose_log

    try:
        text = Path(arguments.log).read_bytes().decode("utf-8", errors="replace")  # carriage returns stay
    except OSError as error:
        raise InputError(f"cannot read the log {arguments.log}: {error.strerror}; name a saved engine log") from error
    context.answer(diagnose_log(text), arguments.json, render.diagnosis)
    return 0


def agent(_: Context, arguments: argparse.Namespace) -> int:
    """Serves until it is ended. The only command that imports the server."""
    from backend.agent.server import run_agent

    run_agent(arguments.host, arguments.port, started_by=arguments.started_by)
    return 0
