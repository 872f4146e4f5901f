"""How much memory the host has left. No torch here."""

import psutil

GIB = 1 << 30


def available_bytes() -> int:
    """Host memory that can be taken now without swapping."""
    return int(psutil.virtual_memory().available)
