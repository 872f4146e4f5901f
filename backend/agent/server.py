"""The agent's process: one event loop with the HTTP API and the jobs."""

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette

from backend import __version__
from backend.agent.auth import BearerAuth
from backend.agent.discovery import AgentFile, agent_lock, read_agent_file, write_agent_file
from backend.agent.jobs import Jobs
from backend.agent.routes import EXCEPTION_HANDLERS, ROUTES
from backend.clock import utc_now
from backend.errors import ConflictError
from backend.paths import StatePaths, state_paths
from backend.schema.host import AgentInfo

log = logging.getLogger(__name__)


def run_agent(host: str = "127.0.0.1", port: int | None = None, *, started_by: str = "cli") -> None:
    """Serves until SIGTERM or SIGINT. Without `port` the previous agent's port is kept when it is free.

    Raises ConflictError when an agent already runs for this state directory or the port is taken.
    """
    paths = state_paths()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with agent_lock(paths):
        previous = read_agent_file(paths)
        listener = _listen(host, port, previous)
        address = listener.getsockname()[1]
        token = os.environ.get("SLIPSTREAM_AGENT_TOKEN") or (previous.token if previous else secrets.token_urlsafe(32))
        url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{address}"  # noqa: S104
        info = AgentInfo(
            version=__version__,
            pid=os.getpid(),
            url=url,
            boot=secrets.token_hex(6),
            host=socket.gethostname(),
            state_dir=str(paths.home),
            started_at_utc=utc_now(),
            started_by=started_by,
        )
        write_agent_file(paths, AgentFile(url=url, token=token, pid=info.pid))
        log.info("agent %s at %s, token in %s", __version__, url, paths.agent_file)
        _serve(paths, info, token, listener)


def _serve(paths: StatePaths, info: AgentInfo, token: str, listener: socket.socket) -> None:
    server: uvicorn.Server
    jobs = Jobs(paths, info)  # before the server: what is wrong with the store is then this command's own error

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.jobs = jobs
        app.state.leave = lambda: setattr(server, "should_exit", True)
        await app.state.jobs.start()
        yield
        await app.state.jobs.close()

    app = Starlette(routes=ROUTES, lifespan=lifespan, exception_handlers=EXCEPTION_HANDLERS)
    config = uvicorn.Config(
        BearerAuth(app, token),
        log_level="warning",
        access_log=False,
        loop="asyncio",
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    server.run(sockets=[listener])


def _listen(host: str, port: int | None, previous: AgentFile | None) -> socket.socket:
    """A listening socket: the port asked for, else the previous agent's, else any free one."""
    wanted = [port] if port is not None else [*_previous_port(previous), 0]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in wanted:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            failure = error
        else:
            return listener
    raise ConflictError(f"the agent cannot listen on {host}:{port} ({failure.strerror}); choose another with --port")


def _previous_port(previous: AgentFile | None) -> list[int]:
    with contextlib.suppress(ValueError):
        if previous is not None:
            return [int(previous.url.rsplit(":", 1)[1])]
    return []
