"""The end of the process, at once."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """End now: nothing is drained, no thread is waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def stop_by_signal(number: int, _: FrameType | None) -> NoReturn:
    """The handler of SIGTERM and SIGINT: somebody wants the engine gone, which is no failure."""
    print(f"{signal.Signals(number).name} received. Shutting down.", file=sys.stderr)
    end_process(0)
