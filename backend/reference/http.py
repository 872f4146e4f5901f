"""What all routes share: JSON answers, server-sent events, and whole answers that end when their client does."""

import asyncio

import orjson
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from backend.reference.engine import Engine, Progress
from backend.reference.limits import RefusedError
from backend.reference.request import Request
from backend.thresholds import REFERENCE_BODY_LIMIT_BYTES


class Json(Response):
    """JSON by orjson."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """Serialise; NaN becomes null."""
        return orjson.dumps(content)


def event(document: object) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


async def read_body(http: HttpRequest) -> bytes:
    """The request's body. Raises RefusedError when it is too long, before all of it is there."""
    parts, size = [], 0
    try:
        async for part in http.stream():
            parts.append(part)
            size += len(part)
            if size > REFERENCE_BODY_LIMIT_BYTES:
                raise RefusedError(
                    f"The request body is longer than {REFERENCE_BODY_LIMIT_BYTES} bytes, which no prompt needs. "
                    "Please reduce it.",
                    kind="RequestEntityTooLarge",
                    status=413,
                )
    except ClientDisconnect as error:
        raise RefusedError("The client left before its request was complete.") from error
    return b"".join(parts)


async def whole(http: HttpRequest, engine: Engine, request: Request) -> Progress:
    """The finished answer. If the client leaves first, the request ends too. RefusedError when the engine failed."""
    answer = asyncio.ensure_future(engine.finish(request))
    gone = asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            engine.leave(request)
        last = await answer
    finally:
        gone.cancel()
    if failure := last.failure:
        raise RefusedError(failure, kind="InternalServerError", status=500)
    return last


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
