"""The commands of `python -m backend`: adapters between a command line and functions that answer with one document."""

from collections.abc import Sequence

from backend.cli.context import Context
from backend.cli.parser import build_parser, parse
from backend.errors import SlipstreamError

INTERRUPTED = 130  # what a shell expects after Ctrl-C: 128 + SIGINT


def main(argv: Sequence[str], context: Context | None = None) -> int:
    """Runs one command and returns the exit status: 0, 1 (what was asked about failed), 2 (the words are wrong)."""
    context = context or Context()
    try:
        arguments = parse(argv)
        if arguments.command is None:
            build_parser().print_help(context.err)
            return 2
        status: int = arguments.run(context, arguments)
    except SystemExit as leaving:  # argparse has said what it had to say
        return leaving.code if isinstance(leaving.code, int) else 2
    except SlipstreamError as error:
        context.say(f"error: {error}")
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


__all__ = ["Context", "main"]
