"""Commands about stored runs: runs, compare, export, import-run.

They read this machine's store, without an agent; with --agent they ask that agent. Only what changes the store goes
through a live agent, which is its one writer.
"""

import argparse
import os
from pathlib import Path

from backend.agent.client import AgentClient
from backend.cli import render
from backend.cli.context import Context
from backend.errors import AgentError, InputError, StorageError, TokenError, UsageError
from backend.files import replace_file
from backend.schema.run import Comparison, Exported, Imported, RunList, RunPatch, RunRow


def runs(context: Context, arguments: argparse.Namespace) -> int:
    if arguments.run_id is not None:
        found = RunList(runs=[_one_run(context, arguments)])
    elif len(arguments.tag) > 1:
        raise UsageError("a list is chosen by one --tag; several are for `runs RUN`")
    else:
        tag = next(iter(arguments.tag), None)
        if arguments.agent:
            with context.find(context.paths, arguments.agent) as client:
                found = client.runs(tag=tag, note=arguments.note, pinned=arguments.pinned)
        else:
            found = context.reader().runs(tag=tag, note=arguments.note, pinned=arguments.pinned)
    context.answer(found, arguments.json, render.runs)
    return 0


def _one_run(context: Context, arguments: argparse.Namespace) -> RunRow:
    """One run, changed if a change was asked for."""
    patch = RunPatch(note=arguments.note, tags=arguments.tag or None, pinned=arguments.pinned)
    if patch != RunPatch():
        with context.agent(arguments.agent) as client:
            return client.patch_run(arguments.run_id, patch)
    if arguments.agent:
        with context.find(context.paths, arguments.agent) as client:
            return client.run(arguments.run_id).row
    return context.reader().run(arguments.run_id).row


def compare(context: Context, arguments: argparse.Namespace) -> int:
    """Exit 0 whatever the verdict: it is the answer."""
    if arguments.agent:
        with context.find(context.paths, arguments.agent) as client:
            document = client.compare(arguments.a, arguments.b)
    else:
        document = _compare_here(context, arguments.a, arguments.b)
    context.answer(document, arguments.json, render.comparison)
    return 0


def _compare_here(context: Context, a: str, b: str) -> Comparison:
    from backend.stats import compare_runs

    reader = context.reader()
    return compare_runs(reader.run(a), reader.run(b), reader.records(a), reader.records(b))


def export(context: Context, arguments: argparse.Namespace) -> int:
    """The file's name carries the whole id, also when a prefix was given."""
    if arguments.agent:
        with context.find(context.paths, arguments.agent) as client:
            run_id, content = client.run(arguments.run_id).row.id, client.export_run(arguments.run_id)
    else:
        reader = context.reader()
        run_id, content = reader.run(arguments.run_id).row.id, reader.export(arguments.run_id)
    target = Path(arguments.output or f"{run_id}.slipstream.zip")
    _write(target, content)
    context.answer(Exported(path=str(target), bytes=len(content)), arguments.json, render.exported)
    return 0


def _write(target: Path, content: bytes) -> None:
    """Whole or not at all: a full disk must not leave half an export under the final name."""
    try:
        replace_file(target, content)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror}; choose another place with -o FILE") from error


def import_run(context: Context, arguments: argparse.Namespace) -> int:
    file = Path(arguments.file)
    client = _live_agent(context, arguments.agent)
    if client is not None:
        with client:
            imported = client.import_run(file)
    else:
        imported = _import_here(context, file)
    context.answer(imported, arguments.json, render.imported)
    return 0


def _live_agent(context: Context, url: str | None) -> AgentClient | None:
    """The agent that owns the store, or None when none runs and none was named."""
    try:
        return context.find(context.paths, url)
    except TokenError:
        raise
    except AgentError:
        if url or os.environ.get("SLIPSTREAM_AGENT_URL"):
            raise
        return None


def _import_here(context: Context, file: Path) -> Imported:
    from backend.store import Store

    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}; name a file made by `export`") from error
    store = Store(context.paths)
    try:
        return store.import_run(content)
    finally:
        store.close()
