"""Commands that read files and start nothing: what a checkpoint holds and what an engine would do with it."""

import argparse

from backend.cli import forensics_text
from backend.cli.context import Context
from backend.schema.validate import CheckRequest, TraceRequest


def inspect(context: Context, arguments: argparse.Namespace) -> int:
    if arguments.agent:
        with context.find(context.paths, arguments.agent) as client:
            document = client.inspect(arguments.model)
    else:
        from backend.checkpoint import inspect_checkpoint

        document = inspect_checkpoint(arguments.model, context.paths)
    context.answer(document, arguments.json, forensics_text.inspection)
    return 0


def trace(context: Context, arguments: argparse.Namespace) -> int:
    """Exit 0 whatever the verdict: the trace is the answer."""
    request = TraceRequest(
        model=arguments.model, engine=arguments.engine, env=dict(arguments.env), flags=arguments.flags
    )
    if arguments.agent:
        with context.find(context.paths, arguments.agent) as client:
            document = client.trace(request)
    else:
        from backend.doctor import choose_engine
        from backend.validate import trace as follow

        document = follow(*choose_engine(arguments.engine), request, context.paths)
    if arguments.markdown and not arguments.json:
        from backend.tracetext import trace_markdown

        print(trace_markdown(document), end="", file=context.out, flush=True)
        return 0
    context.answer(document, arguments.json, forensics_text.trace)
    return 0


def check(context: Context, arguments: argparse.Namespace) -> int:
    """Exit 1 when the configuration would be refused."""
    request = CheckRequest(
        model=arguments.model,
        engine=arguments.engine,
        env=dict(arguments.env),
        flags=arguments.flags,
        gpu=arguments.gpu,
        gpu_count=arguments.gpu_count,
    )
    if arguments.agent:
        with context.find(context.paths, arguments.agent) as client:
            document = client.check(request)
    else:
        from backend.doctor import choose_engine
        from backend.validate import check as examine

        document = examine(*choose_engine(arguments.engine), request, context.paths)
    context.answer(document, arguments.json, forensics_text.check)
    return 1 if document.verdict == "reject" else 0
