"""Ctrl-C between a request and its answer: nothing is left behind that nobody knows of."""

import os
import signal
import threading
import time

import pytest

from backend.cli.context import interrupt_held


def test_an_interrupt_is_held_until_the_block_ends_and_then_raised() -> None:
    reached = False
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupt_held():
        os.kill(os.getpid(), signal.SIGINT)
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_another_thread_receives_is_held_too() -> None:
    """Libraries start threads that block nothing; the kernel may give the signal to any of them."""
    ended, reached = threading.Event(), False
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt), interrupt_held():
            assert other.ident is not None
            signal.pthread_kill(other.ident, signal.SIGINT)
            time.sleep(0.1)
            reached = True
    finally:
        ended.set()
        other.join()
    assert reached
