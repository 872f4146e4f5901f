"""One request from its due time to its record."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import orjson

from backend import thresholds
from backend.clock import monotonic_ns
from backend.load.connection import Address, Connection, ConnectionLostError, NotHttpError, connect
from backend.load.stream import Stream


@dataclass(slots=True, eq=False)
class Exchange:
    """A request that is on its way, or has ended. `failure` is (error_class, message); None is success."""

    index: int
    phase: str
    prompt_id: str
    intended_ns: int
    stream: Stream
    sent_ns: int = 0
    end_ns: int = 0
    status: int | None = None
    failure: tuple[str, str] | None = field(default=None)

    def record(self, run_id: str, level: int) -> dict[str, Any]:
        """Fields of a `RequestRecord`."""
        stream = self.stream
        arrivals = stream.arrivals
        error_class, error = self.failure or (None, None)
        return {
            "run_id": run_id,
            "level": level,
            "index": self.index,
            "phase": self.phase,
            "prompt_id": self.prompt_id,
            "intended_ns": self.intended_ns,
            "sent_ns": self.sent_ns or self.intended_ns,
            "first_ns": arrivals[0] if arrivals else None,
            "first_answer_ns": stream.first_answer_ns,
            "last_ns": arrivals[-1] if arrivals else None,
            "end_ns": self.end_ns,
            "chunk_ns": arrivals,
            "chunk_tokens": stream.chunk_tokens,
            "input_tokens": stream.input_tokens,
            "output_tokens": stream.output_tokens,
            "cached_tokens": stream.cached_tokens,
            "finish_reason": stream.finish_reason,
            "spec": stream.spec,
            "http_status": self.status,
            "ok": self.failure is None,
            "error_class": error_class,
            "error": error[: thresholds.LOAD_ERROR_MESSAGE_MAX_CHARS] if error else None,
            "text": stream.text(),
        }


async def perform(
    exchange: Exchange, connection: Connection | None, address: Address, request: bytes, timeout_s: float
) -> Connection | None:
    """Runs the exchange to its end and fills it in; returns the connection if it can be used again.

    Every failure of the server or the network ends in `failure`. Only a cancellation goes on, after the exchange has
    been filled in.
    """
    reached = None  # a connection that this request was written to
    try:
        async with asyncio.timeout(timeout_s):
            if connection is None or not connection.usable:
                connection = await connect(address)
            exchange.sent_ns = monotonic_ns()
            reached = connection
            exchange.status = await connection.exchange(request, exchange.stream)
        _judge(exchange, connection.body)
    except TimeoutError:
        if not exchange.stream.done:  # after [DONE] only the end of the HTTP body was missing
            exchange.failure = ("timeout", f"no complete answer within {timeout_s:g} s")
    except ConnectionLostError as lost:
        exchange.status = reached.status if reached else None
        _judge_lost(exchange, lost)
    except NotHttpError as error:
        exchange.failure = ("protocol", str(error))
    except asyncio.CancelledError:
        exchange.failure = ("cancelled", "the load test was stopped while this request ran")
        raise
    finally:
        exchange.end_ns = monotonic_ns()
        exchange.stream.close()
        if exchange.failure is None:
            exchange.failure = exchange.stream.error
    return connection if connection is not None and connection.usable else None


def _judge(exchange: Exchange, body: bytes) -> None:
    """What a response that came to its end means."""
    status, stream = exchange.status or 0, exchange.stream
    if status >= 500:
        exchange.failure = ("http_5xx", f"HTTP {status}: {_message(body)}")
    elif status >= 400:
        exchange.failure = ("http_4xx", f"HTTP {status}: {_message(body)}")
    elif status != 200:
        exchange.failure = ("protocol", f"HTTP {status} where an event stream was expected")
    elif not stream.done and stream.error is None:
        exchange.failure = _unfinished(stream, "the stream ended without [DONE]")


def _judge_lost(exchange: Exchange, lost: ConnectionLostError) -> None:
    """What a connection means that was closed by the other side. After [DONE] nothing is missing."""
    stream = exchange.stream
    if exchange.status is None:
        exchange.failure = ("connect", str(lost))
    elif exchange.status == 200 and not stream.done and stream.error is None:
        exchange.failure = _unfinished(stream, f"the stream was cut off: {lost}")
    elif exchange.status != 200:
        _judge(exchange, b"")


def _unfinished(stream: Stream, what: str) -> tuple[str, str]:
    """`truncated`, unless nothing in the stream was an event: then it is another protocol."""
    if stream.splitter.pending and not stream.arrivals and not stream.splitter.pending.lstrip().startswith(b"data:"):
        return "protocol", f"the answer is no event stream: {stream.splitter.pending[:120]!r}"
    return "truncated", f"{what}, after {stream.output_tokens or 0} tokens"


def _message(body: bytes) -> str:
    """The readable part of an error body: SGLang's `message`, OpenAI's `error.message`, or the bytes as they are."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace").strip() or "no explanation"
    if isinstance(parsed, dict):
        error = parsed.get("error", parsed)
        message = error.get("message") if isinstance(error, dict) else error
        if message:
            return str(message)
    return body.decode("utf-8", "replace")
