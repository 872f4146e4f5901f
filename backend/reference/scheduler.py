"""Continuous batching: first come, first served; one thread that owns every request.

While requests decode, prompts get at most one chunk's worth of tokens between two decode steps, in turn: a long prompt
holds up neither the decoding requests by more than that, nor the short prompts behind it.
"""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Protocol

from tokenizers import Tokenizer

from backend.clock import monotonic_s
from backend.reference.request import Output, Request
from backend.reference.server_args import ServerArgs
from backend.reference.stats import Acceptance, Stats
from backend.reference.tokenizer import find_stop
from backend.reference.worker import Worker

Deliver = Callable[[list[tuple[Request, Output]]], None]


class Report(Protocol):
    """Is told what was computed: the log lines, or whoever else wants to know."""

    def prefill(
        self, stats: Stats, args: ServerArgs, kv_tokens: int, tokens: int, cached: int, pending: int, seconds: float
    ) -> None: ...

    def decode(self, stats: Stats, args: ServerArgs, kv_tokens: int) -> None: ...


logger = logging.getLogger("slipstream.reference")


class Scheduler:
    """Runs requests on a worker. `submit`, `abort` and `flush` may be called from any thread, the rest is its own."""

    def __init__(
        self,
        args: ServerArgs,
        worker: Worker,
        tokenizer: Tokenizer,
        kv_tokens: int,
        deliver: Deliver,
        report: Report,
    ) -> None:
        self.stats = Stats()
        self._args = args
        self._worker = worker
        self._tokenizer = tokenizer
        self._kv_tokens = kv_tokens
        self._deliver = deliver
        self._report = report
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._prefilling: deque[Request] = deque()  # the next to get a chunk is first; slots from the top down
        self._prefilled_last = False
        self._running: list[Request] = []  # place = slot
        self._outputs: list[tuple[Request, Output]] = []
        self._steps = 0
        self._interval_tokens = 0
        self._interval_began_s: float | None = None

    # ---- from other threads

    def submit(self, request: Request) -> None:
        """Queue a request; its outputs go to `deliver`."""
        self._inbox.put(lambda: self._waiting.append(request))

    def abort(self, ids: Callable[[str], bool]) -> None:
        """End every request whose id `ids` says yes to."""
        self._inbox.put(lambda: self._abort(ids))

    def flush(self) -> "Future[bool]":
        """Empty the prefix cache and reset the acceptance totals; False when requests are running or waiting."""
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
        self._admit()
        if self._prefilling and not (self._running and self._prefilled_last):
            self._prefill_turn()
            self._prefilled_last = True
        elif self._running:
            self._decode()
            self._prefilled_last = False
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

    def _admit(self) -> None:
        """Let waiting requests in while there are slots and KV memory for them."""
        while self._waiting and len(self._running) + len(self._prefilling) < self._args.max_running_requests:
            request = self._waiting[0]
            if not self._worker.reserve(request):
                return
            self._waiting.popleft()
            taken = {other.slot for other in (*self._running, *self._prefilling)}
            request.slot = next(n for n in range(self._args.max_running_requests - 1, -1, -1) if n not in taken)
            request.started_s = monotonic_s()
            self._worker.begin(request)
            self._prefilling.append(request)

    def _prefill_turn(self) -> None:
        """Prompts in turn, together at most one chunk of tokens."""
        left = self._args.chunked_prefill_size
        if left < 0:
            self._prefill(self._prefilling[0], len(self._prefilling[0].prompt))
            return
        for _ in range(len(self._prefilling)):
            if left <= 0:
                return
            left -= self._prefill(self._prefilling[0], left)

    def _prefill(self, request: Request, limit: int) -> int:
        """One chunk of the prompt whose turn it is; returns its tokens."""
        began, before = monotonic_s(), request.past
        tokens = self._worker.prefill(request, limit)
        count = request.past - before
        cached = request.cached if before == request.cached else 0
        self.stats.prefill_computed += count
        self.stats.prefill_cached += cached
        seconds = monotonic_s() - began
        self._report.prefill(self.stats, self._args, self._kv_tokens, count, cached, self._pending_tokens(), seconds)
        self._prefilling.rotate(-1)
        if tokens is not None:
            self._prefilling.remove(request)
            self._start_decoding(request, tokens)
        return count

    def _pending_tokens(self) -> int:
        """Prompt tokens not yet computed, of the requests that wait and of those partly prefilled."""
        return sum(len(request.prompt) - request.past for request in (*self._waiting, *self._prefilling))

    def _start_decoding(self, request: Request, tokens: list[int]) -> None:
        request.first_token_s = monotonic_s()
        place = len(self._running)
        if request.slot != place:
            sitting = next((other for other in self._prefilling if other.slot == place), None)
            if sitting is None:
                self._worker.move(request.slot, place)
            else:
                self._worker.swap(request.slot, place)
                sitting.slot = request.slot
            request.slot = place
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
        self._report.decode(self.stats, self._args, self._kv_tokens)

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
                last.slot = slot
            self._end(request)

    def _end(self, request: Request) -> None:
        self._worker.release(request)
        self.stats.finished(request)

    def _abort(self, ids: Callable[[str], bool]) -> None:
        reason = {"type": "abort", "message": "Aborted by AbortReq."}
        waiting = [request for request in self._waiting if ids(request.id)]
        for request in waiting:
            self._waiting.remove(request)
        for request in [request for request in self._prefilling if ids(request.id)]:
            self._prefilling.remove(request)
            waiting.append(request)
        for request in waiting:
            request.finish(reason)
            self._announce(request)
            self._end(request)
        for request in self._running:
            if ids(request.id):
                request.finish(reason)
                self._announce(request)
        self._remove_finished()

    def _flush(self) -> bool:
        if self._busy:
            return False
        self.stats.since_flush = Acceptance()
        self._worker.forget_prefixes()
        return True

    def _publish(self) -> None:
        self._publish_gauges()
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._deliver(outputs)

    def _publish_gauges(self) -> None:
        active = [*self._running, *self._prefilling]
        self.stats.running = len(active)
        self.stats.queued = len(self._waiting)
        self.stats.used_tokens = sum(request.past for request in active)
