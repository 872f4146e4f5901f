"""TCP ports: is it free, who holds it, which one is."""

import errno
import socket
from collections.abc import Collection

import psutil

from backend.errors import ConflictError, InputError, PortInUseError
from backend.thresholds import FIRST_ENGINE_PORT, LAST_ENGINE_PORT


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen on host:port now.

    Does what the engine will do: bind with SO_REUSEADDR (else connections in TIME_WAIT of the engine just stopped would
    look like a listener for a minute) and listen, which fails on Linux while anybody listens there, wildcards included.
    Raises InputError when the address itself is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except socket.gaierror as error:
            raise InputError(f"host {host!r} does not resolve: {error.strerror}; use 127.0.0.1") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise InputError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return True


def port_holder(port: int) -> str | None:
    """`NAME (pid N)` of the process that listens on this port, or None where the system does not tell."""
    return next((_name(pid) for pid in _listeners(port)), None)


def stranger_on(port: int, own_pids: Collection[int]) -> str | None:
    """`NAME (pid N)` of another process that answers on this port in place of `own_pids`.

    Two servers that were started at once can both have found the port free; the one that came too late may not notice.
    None when one of `own_pids` listens, or where the system does not tell who does.
    """
    pids = _listeners(port)
    return _name(pids[0]) if pids and not set(pids) & set(own_pids) else None


def _listeners(port: int) -> list[int]:
    """Pids that listen on this port, as far as the system tells."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return []
    return [
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
        and connection.pid is not None
    ]


def _name(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except psutil.Error:
        return f"pid {pid}"


def claim_port(port: int) -> socket.socket | None:
    """Promises a port to one engine, among all agents of this host, until the returned socket is closed.

    None: it is promised already. Between a look at a port and the moment an engine listens on it lie seconds, in which
    another agent would find it free. The claim is a name in Linux's abstract socket namespace, which ends with the
    process that holds it: a killed agent leaves nothing behind.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(f"\0slipstream-engine-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def claim_free_port(host: str, taken: Collection[int]) -> tuple[int, socket.socket]:
    """As `find_free_port`, and claims it."""
    promised = set(taken)
    while True:
        port = find_free_port(host, promised)
        claim = claim_port(port)
        if claim is not None:
            return port, claim
        promised.add(port)


def find_free_port(host: str, taken: Collection[int]) -> int:
    """The lowest port from FIRST_ENGINE_PORT up that is free and not in `taken` (promised to another launch)."""
    for port in range(FIRST_ENGINE_PORT, LAST_ENGINE_PORT + 1):
        if port not in taken and port_is_free(host, port):
            return port
    raise ConflictError(f"no port between {FIRST_ENGINE_PORT} and {LAST_ENGINE_PORT} is free on {host}; give --port")


def require_free_port(host: str, port: int, taken: Collection[int]) -> None:
    """ConflictError if another launch was promised this port or something listens on it."""
    if port in taken:
        holder: str | None = "another engine of this agent"
    elif port_is_free(host, port):
        return
    else:
        holder = port_holder(port)
    free = find_free_port(host, {*taken, port})
    raise PortInUseError(f"port {port} on {host} is taken by {holder or 'another process'}; port {free} is free")
