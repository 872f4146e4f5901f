"""Bearer token on every route of the agent, checked before anything is read."""

import hmac

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.schema.host import ErrorBody


class BearerAuth:
    """ASGI wrapper. Requests without the token get 401; the token itself is never logged or echoed."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        body = ErrorBody(error="the bearer token is missing or wrong", kind="TokenError")
        await JSONResponse(body.model_dump(), status_code=401, headers={"WWW-Authenticate": "Bearer"})(
            scope, receive, send
        )

    def _allowed(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self._expected)
