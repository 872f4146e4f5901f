"""Commands that read files and start nothing: what a checkpoint holds and what an engine would do with it."""

import argparse

from backend.cli import forensics_text
from backend.cli.context import Context


def inspect(context: Context, arguments: argparse.Namespace) -> int:
    if arguments.agent:
        with context.find(context.paths, arguments.agent) as client:
            document = client.inspect(arguments.model)
    else:
        from backend.checkpoint import inspect_checkpoint

        document = inspect_checkpoint(arguments.model, context.paths)
    context.answer(document, arguments.json, forensics_text.inspection)
    return 0
