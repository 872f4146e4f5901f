"""uvicorn around the engine: when it listens, the engine starts; when it is told to stop, everything ends at once."""

import asyncio
import logging
import socket
from types import FrameType
from typing import Any

import uvicorn

from backend.errors import EngineError
from backend.reference.engine import Engine, cannot_serve, scheduler_died
from backend.reference.server import build_app
from backend.reference.shutdown import stop_by_signal


class EngineServer(uvicorn.Server):
    """Serves `engine` on a socket that is already bound."""

    def __init__(self, engine: Engine, log_config: dict[str, Any]) -> None:
        """`log_config`: how uvicorn writes its own lines."""
        super().__init__(uvicorn.Config(build_app(engine), log_config=log_config))
        self._engine = engine
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then start the engine: whoever reads the ready line must find the port open."""
        await super().startup(sockets)
        args = self._engine.args
        # uvicorn leaves this line out when it is given its socket.
        url = f"http://{args.host}:{args.port}"
        logging.getLogger("uvicorn.error").info("Uvicorn running on %s (Press CTRL+C to quit)", url)
        self._tasks = [asyncio.create_task(_start(self._engine)), asyncio.create_task(self._engine.watch())]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn would wait for running requests; this engine does not."""
        stop_by_signal(sig, frame)


async def _start(engine: Engine) -> None:
    try:
        await engine.start()
    except EngineError as error:  # who cannot answer the warm-up request serves nobody
        cannot_serve(error)
    except Exception:  # noqa: BLE001 - the top of a task: an engine that never gets ready would look like a slow one
        scheduler_died()
