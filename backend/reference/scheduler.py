"""Continuous batching: first come, first served; prompts before decoding; one thread that owns every request."""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue

from tokenizers import Tokenizer

from backend.clock import monotonic_s
from backend.reference import loglines
from backend.reference.request import Output, Request
from backend.reference.server_args import ServerArgs
from backend.reference.stats import Acceptance, Stats
from backend.reference.tokenizer import find_stop
from backend.reference.worker import Worker

Deliver = Callable[[list[tuple[Request, Output]]], None]
logger = logging.getLogger("slipstream.reference")


class Scheduler:
    """Runs requests on a worker. `submit`, `abort` and `flush` may be called from any thread, the rest is its own."""

    def __init__(
        self, args: ServerArgs, worker: Worker, tokenizer: Tokenizer, kv_tokens: int, deliver: Deliver
    ) -> None:
        self.stats = Stats()
        self._args = args
        self._worker = worker
        self._tokenizer = tokenizer
        self._kv_tokens = kv_tokens
        self._deliver = deliver
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._prefilling: Request | None = None
        self._running: list[Request] = []  # place = slot
        self._outputs: list[tuple[Request, Output]] = []
        self._steps = 0
        self._interval_tokens = 0
        self._interval_began_s: float | None = None

    # ---- from other threads

    def submit(self, request: Request) -> None:
        """Queue a request; its outputs go to `deliver`."""
        self._inbox.put(lambda: self._waiting.append(request))

    def abort(self, prefix: str) -> None:
        """End every request whose id starts with `prefix`."""
        self._inbox.put(lambda: self._abort(prefix))

    def flush(self) -> "Future[bool]":
        """Reset the acceptance totals; False when requests are running or waiting."""
        result: Future[bool] = Future()
        self._inbox.put(lambda: result.set_result(self._flush()))
        return result

    # ---- the thread

    def run_forever(self) -> None:
        """The scheduler's thread. It ends only by an exception."""
        while True:
            self.run_once(wait=True)

    def run_once(self, wait: bool = False) -> None:
        """Take in what arrived and do one forward, if there is anything to do. `wait` blocks while there is not."""
        self._receive(wait and not self._busy)
        if not self._busy:
            self._publish()
            return
        self.stats.step_began_s = monotonic_s()
        if self._prefilling is not None or self._admit():
            self._prefill()
        elif self._running:
            self._decode()
        self._publish()
        self.stats.step_began_s = None

    @property
    def _busy(self) -> bool:
        return bool(self._waiting or self._running or self._prefilling)

    def _receive(self, block: bool) -> None:
        if block:
            self._interval_began_s = None  # idle time is not decoding time
            self._inbox.get()()
        while True:
            try:
                command = self._inbox.get_nowait()
            except Empty:
                return
            command()

    def _admit(self) -> bool:
        """Let the next waiting request in, if there is a slot and KV memory for it."""
        if not self._waiting or len(self._running) >= self._args.max_running_requests:
            return False
        if not self._worker.reserve(self._waiting[0]):
            return False
        self._prefilling = self._waiting.popleft()
        self._prefilling.started_s = monotonic_s()
        return True

    def _prefill(self) -> None:
        request = self._prefilling
        if request is None:
            return
        began, before = monotonic_s(), request.past
        limit = self._args.chunked_prefill_size
        tokens = self._worker.prefill(request, len(self._running), limit if limit > 0 else len(request.prompt))
        count = request.past - before
        self.stats.prefill_computed += count
        loglines.prefill(self.stats, self._args, self._kv_tokens, count, monotonic_s() - began)
        if tokens is None:
            return
        self._prefilling = None
        request.first_token_s = monotonic_s()
        self._running.append(request)
        self._take(request, tokens)
        self._remove_finished()

    def _decode(self) -> None:
        if self._interval_began_s is None:
            self._interval_began_s, self._interval_tokens = monotonic_s(), 0
        before = [(request.verifications, request.correct) for request in self._running]
        results = self._worker.step(self._running)
        for request, (verifications, correct) in zip(self._running, before, strict=True):
            self._count_acceptance(request.verifications - verifications, request.correct - correct)
        for request, tokens in zip(self._running, results, strict=True):
            had = len(request.output)
            self._take(request, tokens)
            self._interval_tokens += len(request.output) - had
            self.stats.decoded += len(request.output) - had
        self._steps += 1
        self._remove_finished()
        if self._steps % self._args.decode_log_interval == 0:
            self._log_decode()

    def _count_acceptance(self, verifications: int, correct: int) -> None:
        for totals in (self.stats.interval, self.stats.since_flush):
            totals.add(verifications, correct, self._args.draft_steps)
        self.stats.verify_calls += verifications

    def _log_decode(self) -> None:
        now = monotonic_s()
        if self._interval_began_s is not None:
            self.stats.gen_throughput = self._interval_tokens / max(now - self._interval_began_s, 1e-9)
        self._interval_began_s, self._interval_tokens = now, 0
        self.stats.last_interval, self.stats.interval = self.stats.interval, Acceptance()
        self._publish_gauges()
        loglines.decode(self.stats, self._args, self._kv_tokens)

    # ---- requests

    def _take(self, request: Request, tokens: list[int]) -> None:
        """Append new tokens until one of them ends the request; those behind it are dropped."""
        if not tokens:
            request.finish(
                {"type": "abort", "message": "The model's output is not a number (NaN).", "status_code": 500}
            )
        for token in tokens:
            request.output.append(token)
            reason = self._finish_reason(request, token)
            if reason is not None:
                request.finish(reason)
                break
        self._announce(request)

    def _finish_reason(self, request: Request, token: int) -> dict[str, object] | None:
        params = request.params
        if len(request.output) >= params.max_new_tokens:
            return {"type": "length", "length": params.max_new_tokens}
        if len(request.output) >= params.min_new_tokens:
            ends = token in params.stop_token_ids
            if ends or (not params.ignore_eos and token in self._worker.config.eos_token_ids):
                return {"type": "stop", "matched": token}
        if params.stop:
            matched = find_stop(self._tokenizer, request.output, params.stop)
            if matched is not None:
                return {"type": "stop", "matched": matched}
        return None

    def _announce(self, request: Request) -> None:
        new = len(request.output) - request.sent
        first = request.sent == 0
        due = request.stream and (first or new >= self._args.stream_interval)
        if request.finished or due:
            self._outputs.append((request, Output(request.output[request.sent :], request.finish_reason)))
            request.sent = len(request.output)

    def _remove_finished(self) -> None:
        slot = 0
        while slot < len(self._running):
            request = self._running[slot]
            if not request.finished:
                slot += 1
                continue
            last = self._running.pop()
            if last is not request:
                self._worker.move(len(self._running), slot)
                self._running[slot] = last
            self._end(request)

    def _end(self, request: Request) -> None:
        self._worker.release(request)
        self.stats.finished(request)

    def _abort(self, prefix: str) -> None:
        reason = {"type": "abort", "message": "Aborted by AbortReq."}
        waiting = [request for request in self._waiting if request.id.startswith(prefix)]
        for request in waiting:
            self._waiting.remove(request)
        if self._prefilling is not None and self._prefilling.id.startswith(prefix):
            waiting.append(self._prefilling)
            self._prefilling = None
        for request in waiting:
            request.finish(reason)
            self._announce(request)
            self._end(request)
        for request in self._running:
            if request.id.startswith(prefix):
                request.finish(reason)
                self._announce(request)
        self._remove_finished()

    def _flush(self) -> bool:
        if self._busy:
            return False
        self.stats.since_flush = Acceptance()
        return True

    def _publish(self) -> None:
        self._publish_gauges()
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._deliver(outputs)

    def _publish_gauges(self) -> None:
        active = [*self._running, *([self._prefilling] if self._prefilling else [])]
        self.stats.running = len(active)
        self.stats.queued = len(self._waiting)
        self.stats.used_tokens = sum(request.past for request in active)
