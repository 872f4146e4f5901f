"""What all routes share: JSON answers, server-sent events, and whole answers that end when their client does."""

import asyncio

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from backend.reference.engine import Engine, Progress
from backend.reference.request import Request


class Json(Response):
    """JSON by orjson."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Serialise; NaN becomes null."""
        return orjson.dumps(content)


def event(document: object) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


async def whole(http: HttpRequest, engine: Engine, request: Request) -> Progress:
    """The finished answer. If the client leaves first, the request ends too."""
    answer = asyncio.ensure_future(_last(engine, request))
    gone = asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            engine.scheduler.abort(request.id)
        return await answer
    finally:
        gone.cancel()


async def _last(engine: Engine, request: Request) -> Progress:
    last: Progress | None = None
    async for progress in engine.generate(request):
        last = progress
    if last is None:
        raise RuntimeError(f"request {request.id} ended without a word")
    return last


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
