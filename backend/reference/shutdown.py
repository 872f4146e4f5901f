"""The end of the process, at once."""

import os
import sys
from typing import NoReturn


def end_process(status: int) -> NoReturn:
    """End now: nothing is drained, no thread is waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
