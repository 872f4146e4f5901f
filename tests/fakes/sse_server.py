"""A server that streams like SGLang and does exactly what its knobs say. Raw asyncio; runs in a thread of its own."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Knobs:
    """What every answer is like. Times in ms.

    tokens        output tokens of an answer      per_event   tokens that each event adds after the first
    split         cut the body into pieces of this many bytes, each its own HTTP chunk; 0: one event, one chunk
    fail_after    events until `failure` happens  failure     "", "error", "close", "hang", "no_done", "abort"
    usage         "each", "last" or "none": where the OpenAI routes state token counts
    """

    ttft_ms: float = 0.0
    gap_ms: float = 0.0
    tokens: int = 8
    per_event: int = 1
    cumulative: bool = False
    newline: str = "\n"
    piece: str = " tok"
    split: int = 0
    failure: str = ""
    fail_after: int = 2
    status: int = 200
    usage: str = "each"
    reasoning: int = 0
    counts: bool = True
    spec: dict[str, object] = field(default_factory=dict)
    flush_status: int = 200


@dataclass
class Seen:
    """What arrived at the server."""

    bodies: list[dict[str, object]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    connections: int = 0
    gone: int = 0  # answers whose reader went away
    open_now: int = 0
    most_open: int = 0


class FakeServer:
    """`url` to load; `knobs` may be replaced between requests; `seen` tells what was asked."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.seen = Seen()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lengths = [ln.split(":")[1] for ln in head.split("\r\n") if ln.lower().startswith("content-length")]
                body = await reader.readexactly(int(lengths[0])) if lengths else b""
                await self._answer(head, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        path = head.split(" ")[1]
        self.seen.paths.append(path)
        self.seen.headers.append(head)
        if path == "/flush_cache":
            writer.write(_plain(self.knobs.flush_status, b"Cache flushed."))
        elif path == "/v1/models":
            writer.write(_plain(200, b'{"data":[{"id":"tiny"}]}'))
        elif self.knobs.status != 200:
            writer.write(_plain(self.knobs.status, b'{"object":"error","message":"not now"}'))
        else:
            self.seen.bodies.append(json.loads(body))
            self.seen.open_now += 1
            self.seen.most_open = max(self.seen.most_open, self.seen.open_now)
            try:
                await self._stream(path, writer)
            except ConnectionError:
                self.seen.gone += 1
                raise
            finally:
                self.seen.open_now -= 1

    async def _stream(self, path: str, writer: asyncio.StreamWriter) -> None:
        knobs = self.knobs
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        events = generate_events(knobs) if path == "/generate" else openai_events(knobs, path)
        loop = asyncio.get_running_loop()
        due = loop.time() + knobs.ttft_ms / 1e3
        for number, event in enumerate(events):
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += knobs.gap_ms / 1e3
            if knobs.failure and number == knobs.fail_after:
                if await self._fail(knobs, writer):
                    return
                break
            self._send(knobs, writer, event)
            await writer.drain()
            if writer.transport.is_closing():
                raise ConnectionError
        if knobs.failure != "no_done":
            self._send(knobs, writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _fail(self, knobs: Knobs, writer: asyncio.StreamWriter) -> bool:
        """True when nothing more may be sent."""
        if knobs.failure == "error":
            self._send(knobs, writer, json.dumps({"error": {"message": "the scheduler is out of memory"}}))
        elif knobs.failure == "close":
            writer.transport.abort()
            return True
        elif knobs.failure == "hang":
            await asyncio.sleep(60)
        return False

    def _send(self, knobs: Knobs, writer: asyncio.StreamWriter, payload: str) -> None:
        data = f"data: {payload}{knobs.newline * 2}".encode()
        step = knobs.split or len(data)
        for at in range(0, len(data), step):
            piece = data[at : at + step]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))


def counts(knobs: Knobs) -> list[int]:
    """Cumulative token counts of the events: 1, then `per_event` more each, up to `tokens`."""
    return [1, *range(1 + knobs.per_event, knobs.tokens, knobs.per_event), knobs.tokens] if knobs.tokens > 1 else [1]


def generate_events(knobs: Knobs) -> Iterator[str]:
    done = 0
    for total in counts(knobs):
        pieces = [f"{knobs.piece}{n}" for n in range(0 if knobs.cumulative else done, total)]
        last = total == knobs.tokens
        finish: dict[str, object] = {"type": "length", "length": total}
        if knobs.failure == "abort":
            finish = {"type": "abort", "message": "aborted for a test"}
        meta = {
            "id": "x",
            "finish_reason": finish if last else None,
            "prompt_tokens": 5,
            "completion_tokens": total,
            "cached_tokens": 3,
            **(knobs.spec if last else {}),
        }
        if not knobs.counts:
            del meta["completion_tokens"]
        text = "".join(pieces)
        yield json.dumps({"text": text, "output_ids": list(range(len(pieces))), "meta_info": meta}, ensure_ascii=False)
        done = total


def openai_events(knobs: Knobs, path: str) -> Iterator[str]:
    chat = path.endswith("chat/completions")
    if chat:
        yield json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    done = 0
    for total in counts(knobs):
        text = "".join(f"{knobs.piece}{n}" for n in range(done, total))
        field_name = "reasoning_content" if total <= knobs.reasoning else "content"
        choice = {"index": 0, "delta": {field_name: text}} if chat else {"index": 0, "text": text}
        event: dict[str, object] = {"choices": [{**choice, "finish_reason": None}]}
        if knobs.usage == "each":
            event["usage"] = {"prompt_tokens": 5, "completion_tokens": total}
        yield json.dumps(event)
        done = total
    end = (
        {"index": 0, "delta": {}, "finish_reason": "length"}
        if chat
        else {"index": 0, "text": "", "finish_reason": "length"}
    )
    yield json.dumps({"choices": [end]})
    if knobs.usage != "none":
        usage = {"prompt_tokens": 5, "completion_tokens": knobs.tokens, "prompt_tokens_details": {"cached_tokens": 3}}
        yield json.dumps({"choices": [], "usage": usage})


@contextmanager
def fake_server(**knobs: object) -> Iterator[FakeServer]:
    """A running server on a free port of the loopback, until the block ends."""
    server = FakeServer(replace(Knobs(), **knobs))  # type: ignore[arg-type]
    loops: list[asyncio.AbstractEventLoop] = []
    started, stop = threading.Event(), asyncio.Event()

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        listening.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="fake-server", daemon=True)
    thread.start()
    started.wait(5)
    try:
        yield server
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(5)


def _plain(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)
