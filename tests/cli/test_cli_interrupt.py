"""Ctrl-C between a request and its answer: nothing is left behind that nobody knows of."""

import os
import signal

import pytest

from backend.cli.context import interrupt_held


def test_an_interrupt_is_held_until_the_block_ends_and_then_raised() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), interrupt_held():
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
    assert reached
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
