"""A closed loop: each slot sends its next request when the one before has ended."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count

from backend import thresholds
from backend.clock import monotonic_ns
from backend.errors import EngineError
from backend.load.connection import Address, Connection
from backend.load.exchange import Exchange, perform
from backend.load.gauge import Meter
from backend.load.spec import Prompt
from backend.load.stream import Stream

# A request ready to be written, by prompt.
Encoder = Callable[[Prompt], bytes]


class Slots:
    """The connections of a load test, one per slot, and the requests on them.

    open    requests on the way, for the live ticks
    finish  called with each exchange that has ended, in order of ending
    """

    def __init__(
        self,
        address: Address,
        encode: Encoder,
        new_stream: Callable[[], Stream],
        finish: Callable[[Exchange], None],
        timeout_s: float,
    ) -> None:
        self.open: set[Exchange] = set()
        self._address = address
        self._encode = encode
        self._new_stream = new_stream
        self._finish = finish
        self._timeout_s = timeout_s
        self._idle: dict[int, Connection | None] = {}
        self._index = count()
        self._unreachable_since_ns: int | None = None

    async def run(
        self,
        concurrency: int,
        phase: str,
        prompts: Iterator[Prompt],
        *,
        requests: int | None = None,
        deadline_ns: int | None = None,
        meter: Meter,
    ) -> None:
        """Keeps `concurrency` requests in flight until `requests` were sent or the deadline is past; waits for all.

        A deadline ends the sending; what is on the way then is answered and counted. EngineError when the server has
        been out of reach for too long.
        """
        left = count() if requests is None else iter(range(requests))

        def work() -> Iterator[Prompt]:
            for number in left:
                if deadline_ns is not None and monotonic_ns() >= deadline_ns:
                    break
                if number + 1 == requests:  # the last: from here on there is nothing left to hand out
                    meter.in_flight.freeze(monotonic_ns())
                yield next(prompts)
            meter.in_flight.freeze(monotonic_ns())

        shared = work()
        slots = min(concurrency, requests or concurrency)
        try:
            async with asyncio.TaskGroup() as group:
                for slot in range(slots):
                    group.create_task(self._slot(slot, phase, shared, meter))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    def close(self) -> None:
        for connection in self._idle.values():
            if connection is not None:
                connection.close()

    async def _slot(self, slot: int, phase: str, work: Iterator[Prompt], meter: Meter) -> None:
        free_ns = monotonic_ns()
        for prompt in work:
            exchange = Exchange(next(self._index), phase, prompt.id, free_ns, self._new_stream())
            await self._perform(slot, exchange, self._encode(prompt), meter)
            free_ns = exchange.end_ns
            if exchange.failure is not None:
                self._give_up_if_unreachable(exchange)
                meter.in_flight.change(0, exchange.end_ns, paused=+1)
                await asyncio.sleep(thresholds.LOAD_FAILURE_PAUSE_S)
                meter.in_flight.change(0, monotonic_ns(), paused=-1)
            else:
                self._unreachable_since_ns = None

    async def _perform(self, slot: int, exchange: Exchange, request: bytes, meter: Meter) -> None:
        self.open.add(exchange)
        meter.in_flight.change(+1, exchange.intended_ns)
        try:
            self._idle[slot] = await perform(exchange, self._idle.get(slot), self._address, request, self._timeout_s)
        finally:
            meter.in_flight.change(-1, exchange.end_ns)
            meter.chunks += len(exchange.stream.arrivals)
            self.open.discard(exchange)
            self._finish(exchange)

    def _give_up_if_unreachable(self, exchange: Exchange) -> None:
        error_class, message = exchange.failure or ("", "")
        if error_class != "connect":
            self._unreachable_since_ns = None
            return
        if self._unreachable_since_ns is None:
            self._unreachable_since_ns = exchange.intended_ns
        gone_s = (exchange.end_ns - self._unreachable_since_ns) / 1e9
        if gone_s >= thresholds.LOAD_SERVER_GONE_S:
            raise EngineError(f"the server has been out of reach for {gone_s:.0f} s: {message}")
