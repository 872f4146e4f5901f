"""One keep-alive HTTP/1.1 connection on a raw transport, with one exchange at a time.

The body of an event stream goes straight from the parser into a `Stream`; any other body is collected. There is no
buffer between: an event is stamped with the time at which its bytes were read from the socket.
"""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from backend import thresholds
from backend.clock import monotonic_ns
from backend.errors import UsageError
from backend.load.stream import Stream


class ConnectionLostError(Exception):
    """The peer closed the connection, or could not be reached."""


class NotHttpError(Exception):
    """The peer's bytes are no HTTP/1.1 response."""


@dataclass(frozen=True)
class Address:
    """Where to connect: parts of the base URL."""

    host: str
    port: int
    tls: bool
    path: str

    @property
    def netloc(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{name}:{self.port}"


def parse_address(url: str) -> Address:
    """Address of a base URL. UsageError when it is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL: {error}") from error
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"{url!r} holds a character that no URL has; write it in its %XX form")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "a URL with a name or password in it is not used; give an API key in SLIPSTREAM_ENGINE_API_KEY"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no http:// or https:// URL; give one like http://127.0.0.1:30000")
    tls = parts.scheme == "https"
    return Address(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


def request_bytes(
    address: Address, method: str, path: str, body: bytes = b"", *, api_key: str | None = None, stream: bool = False
) -> bytes:
    """A whole request, headers and body, ready to be written at once."""
    lines = [
        f"{method} {address.path}{path} HTTP/1.1",
        f"host: {address.netloc}",
        f"accept: {'text/event-stream' if stream else '*/*'}",
        "user-agent: slipstream",
    ]
    if api_key:
        lines.append(f"authorization: Bearer {api_key}")
    if body or method == "POST":
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


class Connection(asyncio.Protocol):
    """Speaks HTTP to one server. Made by `connect`."""

    transport: asyncio.Transport  # set by connection_made, before anybody holds the connection

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = b""
        self._parser = httptools.HttpResponseParser(self)
        self._stream: Stream | None = None
        self._ended: asyncio.Future[None] | None = None
        self._now_ns = 0

    @property
    def usable(self) -> bool:
        """Whether another exchange may begin on this connection."""
        return self._ended is None and not self.transport.is_closing()

    async def exchange(self, request: bytes, stream: Stream | None = None) -> int:
        """Sends a request and waits for the end of its response; returns the status.

        With a stream, the body of a 200 goes there, else it is in `body`. Raises ConnectionLostError or NotHttpError.
        A cancelled exchange closes the connection, which is how a server learns that nobody waits any more.
        """
        self.status, self.body = None, b""
        self._stream = stream
        self._parser = httptools.HttpResponseParser(self)
        self._ended = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            await self._ended
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._ended = None
        return self.status or 0

    def close(self) -> None:
        self.transport.abort()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        plain = transport.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._now_ns = monotonic_ns()
        if self._ended is None:
            self.close()  # bytes that nobody asked for
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(NotHttpError(f"the answer is no HTTP/1.1 response ({error}): {data[:60]!r}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionLostError(f"the connection was closed{f' ({exc})' if exc else ''}"))

    # ---- httptools callbacks

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._stream is not None and self.status == 200:
            self._stream.feed(body, self._now_ns)
        elif len(self.body) < thresholds.LOAD_ERROR_BODY_MAX_BYTES:
            self.body += body

    def on_message_complete(self) -> None:
        keep = self._parser.should_keep_alive()
        self._end(None)
        if not keep:
            self.close()

    def _end(self, error: Exception | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


async def connect(address: Address) -> Connection:
    """A new connection. ConnectionLostError when the server cannot be reached."""
    context = ssl.create_default_context() if address.tls else None
    try:
        async with asyncio.timeout(thresholds.LOAD_CONNECT_TIMEOUT_S):
            _, protocol = await asyncio.get_running_loop().create_connection(
                Connection, address.host, address.port, ssl=context
            )
    except TimeoutError as error:
        raise ConnectionLostError(
            f"cannot connect to {address.netloc} within {thresholds.LOAD_CONNECT_TIMEOUT_S:g} s"
        ) from error
    except OSError as error:
        raise ConnectionLostError(f"cannot connect to {address.netloc}: {error.strerror or error}") from error
    return protocol
