"""Who listens on a port: this engine, or a stranger that would be measured in its place."""

import os
import socket
from collections.abc import Callable

import psutil

from backend.supervisor.ports import claim_free_port, claim_port, port_holder, stranger_on


def test_a_listener_of_another_process_is_a_stranger_and_our_own_is_not(free_port: Callable[[], int]) -> None:
    port = free_port()
    assert stranger_on(port, [1]) is None  # nobody listens: nothing to say
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        assert stranger_on(port, [1]) is None  # bound, not listening: cannot answer anybody
        listener.listen(1)
        me = f"{psutil.Process().name()} (pid {os.getpid()})"
        assert port_holder(port) == me
        assert stranger_on(port, [1]) == me
        assert stranger_on(port, [1, os.getpid()]) is None


def test_two_agents_that_look_at_the_same_moment_are_promised_different_ports() -> None:
    first, claim = claim_free_port("127.0.0.1", ())
    with claim:
        assert claim_port(first) is None  # nobody listens yet, and still it is spoken for
        second, other = claim_free_port("127.0.0.1", ())
        other.close()
        assert second > first
    again = claim_port(first)
    assert again is not None  # given back with the socket
    again.close()
