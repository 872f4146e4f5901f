"""What one response stream says: when tokens arrived, how many by the server's count, the text, the end.

Parsing is as small as it can be, because the client must keep up with tens of thousands of events per second. A stream
whose text is cumulative is not decoded at all in its middle: only the token count is picked out of the bytes. (Inside a
JSON string every quote is escaped, so `"completion_tokens":` in the bytes is always a key.)
"""

import re
from collections.abc import Callable
from typing import Any

import orjson

from backend.load.speculation import spec_counts
from backend.load.sse import DONE, EventSplitter

_COUNT_KEY = b'"completion_tokens":'
_DIGITS = re.compile(rb"\s*(\d+)")
# A text that is a longer continuation of the one before it this many times in a row is cumulative: the pieces of an
# incremental stream would have to double in length each time.
_GROWTHS_THAT_PROVE = 4


class Stream:
    """One response. `read` is the dialect: `read_generate` or `read_openai`.

    chunk_ns / chunk_tokens   arrival and cumulative server count of each event that added tokens
    text_ns                   arrival of each event that carried text but no count
    error                     (class, message) of the first thing that went wrong
    """

    __slots__ = (
        "cached_tokens",
        "chunk_ns",
        "chunk_tokens",
        "cumulative",
        "done",
        "error",
        "finish_reason",
        "first_answer_ns",
        "growths",
        "input_tokens",
        "last_payload",
        "meta",
        "output_ids",
        "output_tokens",
        "pieces",
        "read",
        "seen",
        "spec",
        "splitter",
        "text_ns",
    )

    def __init__(self, read: "Callable[[Stream, bytes, int], None]") -> None:
        self.read = read
        self.splitter = EventSplitter()
        self.chunk_ns: list[int] = []
        self.chunk_tokens: list[int] = []
        self.text_ns: list[int] = []
        self.pieces: list[str] = []
        self.cumulative: bool | None = None
        self.growths = 0
        self.output_ids: int | None = None
        self.first_answer_ns: int | None = None
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.meta: dict[str, Any] = {}
        self.spec: dict[str, Any] | None = None  # speculation counters, known once the stream is closed
        self.last_payload: bytes | None = None
        self.error: tuple[str, str] | None = None
        self.done = False
        self.seen = 0  # events of `chunk_ns` that a live tick has counted already

    def feed(self, data: bytes, now_ns: int) -> None:
        """Bytes of the body that arrived at `now_ns`. Never raises: what is malformed ends in `error`."""
        for payload in self.splitter.feed(data):
            if payload == DONE:
                self.done = True
                continue
            try:
                self.read(self, payload, now_ns)
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                self.fail("protocol", f"an event cannot be read ({error}): {_excerpt(payload)}")

    def fail(self, error_class: str, message: str) -> None:
        """Keeps the first error; what follows is usually its consequence."""
        self.error = self.error or (error_class, message)

    def count(self, tokens: int, now_ns: int) -> None:
        """The server's cumulative count as of this event."""
        if not self.chunk_tokens or tokens > self.chunk_tokens[-1]:
            if tokens > 0:
                self.chunk_tokens.append(tokens)
                self.chunk_ns.append(now_ns)
            self.output_tokens = tokens

    @property
    def arrivals(self) -> list[int]:
        """When tokens arrived: by the server's counts, or where it gives none per event, when text arrived."""
        return self.chunk_ns or self.text_ns

    def close(self) -> None:
        """Reads what was put off to the end of the stream. Never raises either."""
        try:
            if self.last_payload is not None:
                event = orjson.loads(self.last_payload)
                self.pieces = [event.get("text") or ""]
                _read_meta(self, event["meta_info"])
            self.spec = spec_counts(self.meta)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            self.fail("protocol", f"the last event cannot be read ({error}): {_excerpt(self.last_payload or b'')}")

    def text(self) -> str:
        """The whole text of the answer."""
        if self.cumulative is None:
            self.cumulative = _looks_cumulative(self)
        return (self.pieces[-1] if self.pieces else "") if self.cumulative else "".join(self.pieces)


def read_generate(stream: Stream, payload: bytes, now_ns: int) -> None:
    """One event of `/generate`: `text`, `output_ids`, `meta_info`. Text may be cumulative or incremental."""
    if stream.cumulative:
        at = payload.rfind(_COUNT_KEY)
        digits = _DIGITS.match(payload, at + len(_COUNT_KEY)) if at >= 0 else None
        if digits is not None:
            stream.count(int(digits[1]), now_ns)
            stream.last_payload = payload
            return
    event = orjson.loads(payload)
    if _read_error(stream, event):
        return
    meta = event["meta_info"]
    _read_meta(stream, meta)
    if isinstance(meta.get("completion_tokens"), int):
        stream.count(meta["completion_tokens"], now_ns)
    elif event.get("text"):
        stream.text_ns.append(now_ns)
    _note_text(stream, event.get("text") or "", event.get("output_ids"))


def read_openai(stream: Stream, payload: bytes, now_ns: int) -> None:
    """One event of `/v1/chat/completions` or `/v1/completions`. Text is incremental; usage may stand in any event.

    An opening event with a role and no text adds no token. Reasoning and tool calls are output like any other.
    """
    event = orjson.loads(payload)
    if _read_error(stream, event):
        return
    answer, other = _delta(event, stream)
    usage = event.get("usage")
    tokens = _read_usage(stream, usage) if usage else None
    if tokens is not None and event.get("choices") and not stream.text_ns:
        stream.count(tokens, now_ns)
    elif answer or other:
        stream.text_ns.append(now_ns)
    stream.output_tokens = tokens if tokens is not None else stream.output_tokens
    if answer:
        if stream.first_answer_ns is None:
            stream.first_answer_ns = now_ns
        stream.cumulative = False
        stream.pieces.append(answer)


def _delta(event: dict[str, Any], stream: Stream) -> tuple[str, bool]:
    """(answer text, whether reasoning or a tool call came) of an event; notes the finish reason."""
    choices = event.get("choices")
    if not choices:
        return "", False
    choice = choices[0]
    if choice.get("finish_reason"):
        stream.finish_reason = str(choice["finish_reason"])
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or "", False
    other = any(delta.get(key) for key in ("reasoning_content", "reasoning", "reasoning_details", "tool_calls"))
    return delta.get("content") or "", other


def _read_usage(stream: Stream, usage: dict[str, Any]) -> int | None:
    """The output tokens that a usage object states; notes the other counts.

    Usage in the trailing event without choices, or in the last event of a stream that had none before, is the total.
    It is not an arrival of that many tokens.
    """
    stream.input_tokens = _whole(usage, "prompt_tokens", stream.input_tokens)
    stream.cached_tokens = _whole(usage.get("prompt_tokens_details") or {}, "cached_tokens", stream.cached_tokens)
    return _whole(usage, "completion_tokens")


def _read_meta(stream: Stream, meta: dict[str, Any]) -> None:
    stream.input_tokens = _whole(meta, "prompt_tokens", stream.input_tokens)
    stream.cached_tokens = _whole(meta, "cached_tokens", stream.cached_tokens)
    stream.meta = meta
    finish = meta.get("finish_reason")
    if finish is None:
        return
    reason = finish if isinstance(finish, dict) else {"type": str(finish)}
    stream.finish_reason = str(reason.get("type"))
    if stream.finish_reason == "abort":
        stream.fail("engine_error", f"the engine aborted the request: {reason.get('message') or 'no reason given'}")


def _whole(counts: dict[str, Any], name: str, otherwise: int | None = None) -> int | None:
    """The count of this name; what is no whole number is no count."""
    value = counts.get(name)
    return value if isinstance(value, int) else otherwise


def _read_error(stream: Stream, event: dict[str, Any]) -> bool:
    """Whether this event is an error that the server reports inside a stream that began well."""
    error = event.get("error")
    if error is None and event.get("object") != "error":
        return False
    message = error.get("message") if isinstance(error, dict) else error
    stream.fail("engine_error", str(message or event.get("message") or event))
    return True


def _note_text(stream: Stream, text: str, output_ids: object) -> None:
    """Keeps the text and learns from it whether the stream is cumulative."""
    if isinstance(output_ids, list):
        stream.output_ids = len(output_ids)
    if stream.cumulative is None and stream.pieces:
        previous = stream.pieces[-1]
        if not text.startswith(previous):
            stream.cumulative = False
        elif len(text) > len(previous) > 0:
            stream.growths += 1
            if stream.growths >= _GROWTHS_THAT_PROVE:
                stream.cumulative = True
    if stream.cumulative:
        stream.pieces = [text]
    else:
        stream.pieces.append(text)


def _looks_cumulative(stream: Stream) -> bool:
    """Short streams, where each text continued the one before: the number of ids in the last event decides."""
    if len(stream.pieces) < 2:
        return True
    if stream.output_ids is not None and stream.output_tokens:
        return stream.output_ids == stream.output_tokens
    return stream.growths > 0


def _excerpt(payload: bytes) -> str:
    return payload[:120].decode("utf-8", "replace")
