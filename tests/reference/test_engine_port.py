"""The port is taken before weights are loaded, not after."""

from collections.abc import Callable

import pytest

from backend.reference.__main__ import listen


def test_of_two_engines_started_at_once_the_second_is_refused(free_port: Callable[[], int]) -> None:
    port = free_port()
    with listen("127.0.0.1", port), pytest.raises(SystemExit, match="address already in use"):
        listen("127.0.0.1", port)
