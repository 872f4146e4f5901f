"""The telemetry thread: one sample of every device per tick, kept in a bounded ring that readers poll with a cursor."""

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Collection

from backend.clock import monotonic_ns, monotonic_s, utc_now
from backend.schema.host import MemoryComponent, TelemetryDelta, TelemetrySample
from backend.telemetry.host import ProcessMemory, host_sample
from backend.telemetry.nvml import Nvml, load_pynvml
from backend.thresholds import TELEMETRY_ACTIVE_PERIOD_S, TELEMETRY_REST_PERIOD_S, TELEMETRY_RING_SAMPLES

_log = logging.getLogger(__name__)


def _nothing() -> list[MemoryComponent]:
    return []


def _nobody() -> list[int]:
    return []


class Sampler:
    """Samples every `period_s` while active and every `rest_period_s` otherwise.

    components   the engine's memory ledger, attached to every sample
    pids         the engine's processes, for `engine_bytes`
    Both are called in the sampler's thread, must not block, and may name an engine that has just gone.
    """

    def __init__(
        self,
        period_s: float = TELEMETRY_ACTIVE_PERIOD_S,
        components: Callable[[], list[MemoryComponent]] = _nothing,
        pids: Callable[[], Collection[int]] = _nobody,
        *,
        rest_period_s: float = TELEMETRY_REST_PERIOD_S,
        capacity: int = TELEMETRY_RING_SAMPLES,
        nvml: Nvml | None = None,
    ) -> None:
        self._active_period_s, self._rest_period_s = period_s, rest_period_s
        self._components, self._pids = components, pids
        self._nvml = nvml or Nvml(load_pynvml())
        self._processes = ProcessMemory()
        self._boot = uuid.uuid4().hex
        self._ring: deque[TelemetrySample] = deque(maxlen=capacity)
        self._last_seq = 0
        self._missed = 0
        self._active = False
        self._hurry = False  # the pace changed: the tick that is waited for is due now
        self._closing = False
        self._changed = threading.Condition()  # guards every field above that changes
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Takes the first sample before it returns, so that a reader never finds nothing."""
        self._take()
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and the NVML session. May be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._nvml.close()

    def set_active(self, active: bool) -> None:
        """True while an engine launches or a load test runs; the first sample after the change is taken at once."""
        with self._changed:
            if self._active != active:
                self._active, self._hurry = active, True
                self._changed.notify()

    @property
    def missed(self) -> int:
        """Ticks that were due and could not be taken, because a reading or the machine was too slow."""
        with self._changed:
            return self._missed

    def since(self, cursor: int, boot: str | None) -> TelemetryDelta:
        """The samples after `cursor`, the number of the last sample that the reader has (0: none).

        `reset` is true when the reader's series cannot be continued: another agent answered it before (`boot`), or
        the samples in between are no longer kept. It then starts anew with what is returned.
        """
        with self._changed:
            samples, last = list(self._ring), self._last_seq
        before_oldest = last - len(samples)
        reset = (boot is not None and boot != self._boot) or not before_oldest <= cursor <= last
        if not reset:
            samples = samples[cursor - before_oldest :]
        return TelemetryDelta(boot=self._boot, cursor=last, reset=reset, source=self.source(), samples=samples)

    def source(self) -> str:
        """Where the figures come from, for a person."""
        problem = self._nvml.problem
        if problem is not None:
            return f"{problem}: host memory and the engine's own ledger are shown"
        query = self._nvml.memory_query
        if query is None:
            return f"NVML, driver {self._nvml.driver}: no GPU reports its memory; host memory is shown"
        note = " (memory reserved by the driver counts as used)" if query == "v1" else ""
        return f"NVML, driver {self._nvml.driver}, memory query {query}{note}"

    # ---- the thread

    def _run(self) -> None:
        due_s = monotonic_s() + self._period_s()
        while self._wait_until(due_s):
            try:
                self._take()
            except Exception:  # noqa: BLE001 the top of this thread: one bad reading must not end the series
                _log.exception("a telemetry sample could not be taken")
            due_s = self._next_due(due_s)

    def _period_s(self) -> float:
        return self._active_period_s if self._active else self._rest_period_s

    def _wait_until(self, due_s: float) -> bool:
        """Waits for the tick; returns early when the pace changes, False when the sampler is closed."""
        with self._changed:
            while not self._closing and not self._hurry and (left_s := due_s - monotonic_s()) > 0:
                self._changed.wait(left_s)
            self._hurry = False
            return not self._closing

    def _next_due(self, due_s: float) -> float:
        """The next absolute deadline: ticks do not drift, and those that have passed are counted, not made up for."""
        with self._changed:
            period_s, now_s = self._period_s(), monotonic_s()
            if now_s < due_s:  # the pace changed before the tick was due
                return now_s + period_s
            late = int((now_s - due_s) / period_s)
            self._missed += late
            return due_s + (late + 1) * period_s

    def _take(self) -> None:
        """One sample of everything. Only this thread writes to the ring."""
        pids = self._pids()
        at_ns, at_utc = monotonic_ns(), utc_now()
        devices = [*self._nvml.samples(pids), host_sample(self._processes.read(pids))]
        components = self._components()
        with self._changed:
            self._last_seq += 1
            self._ring.append(
                TelemetrySample(seq=self._last_seq, t_ns=at_ns, at_utc=at_utc, devices=devices, components=components)
            )
