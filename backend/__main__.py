"""`python -m backend COMMAND`: the top of the process, where no traceback may escape."""

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from backend.cli import main


def run(command: Callable[[Sequence[str]], int] = main) -> int:
    """Runs one command line; whatever goes wrong is one line on stderr and an exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show × gets \xd7, not an error
    try:
        return command(sys.argv[1:])
    except BrokenPipeError:  # `… | head` has closed its end; what is still buffered must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # noqa: BLE001 the top of the process
        if os.environ.get("SLIPSTREAM_DEBUG"):
            traceback.print_exc()
        print(f"error: {type(error).__name__}: {error} (a defect; SLIPSTREAM_DEBUG=1 shows where)", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(run())
