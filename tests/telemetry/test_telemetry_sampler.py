import os
import subprocess
import threading
import time

import pytest

from backend.schema.host import MemoryComponent
from backend.telemetry import Nvml, Sampler
from backend.telemetry.host import ProcessMemory, host_sample

FAST_S = 0.01


def no_driver() -> Nvml:
    return Nvml(None)


def sampler_with(seqs: int, capacity: int = 1200) -> Sampler:
    """A sampler that is not started and has taken `seqs` samples."""
    sampler = Sampler(FAST_S, nvml=no_driver(), capacity=capacity)
    for _ in range(seqs):
        sampler._take()
    return sampler


def seqs_of(delta) -> list[int]:
    return [sample.seq for sample in delta.samples]


def test_a_reader_gets_what_came_after_its_cursor():
    sampler = sampler_with(3)
    first = sampler.since(0, None)
    assert (seqs_of(first), first.cursor, first.reset) == ([1, 2, 3], 3, False)
    sampler._take()
    second = sampler.since(first.cursor, first.boot)
    assert (seqs_of(second), second.cursor, second.reset) == ([4], 4, False)
    assert seqs_of(sampler.since(second.cursor, second.boot)) == []


@pytest.mark.parametrize(
    ("cursor", "boot_matches", "seqs", "reset"),
    [
        (2, True, [3, 4], False),  # the ring of two holds 3 and 4: the reader that has 2 misses nothing
        (1, True, [3, 4], True),  # sample 2 is gone
        (4, True, [], False),
        (9, True, [3, 4], True),  # a number that was never given out
        (4, False, [3, 4], True),  # the cursor of another agent
    ],
)
def test_a_series_that_cannot_be_continued_is_reset(cursor, boot_matches, seqs, reset):
    sampler = sampler_with(4, capacity=2)
    boot = sampler.since(4, None).boot if boot_matches else "an earlier agent"
    delta = sampler.since(cursor, boot)
    assert (seqs_of(delta), delta.reset) == (seqs, reset)


def test_without_a_driver_the_host_is_sampled_and_the_source_says_so(pynvml):
    pynvml.fail("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    sampler = Sampler(FAST_S, nvml=Nvml(pynvml))
    sampler._take()
    delta = sampler.since(0, None)
    assert delta.source == ("no NVIDIA driver on this machine: host memory and the engine's own ledger are shown")
    assert [device.device for device in delta.samples[0].devices] == ["host"]
    assert delta.samples[0].devices[0].memory_total_bytes > 1 << 28


def test_gpus_come_before_the_host_and_the_source_names_driver_and_query(pynvml):
    pynvml.gpus = 2
    sampler = Sampler(FAST_S, nvml=Nvml(pynvml))
    sampler._take()
    delta = sampler.since(0, None)
    assert [device.device for device in delta.samples[0].devices] == ["GPU-0", "GPU-1", "host"]
    assert delta.source == "NVML, driver 580.159.04, memory query v2"


def test_the_ledger_of_the_engine_travels_with_every_sample():
    weights = MemoryComponent(name="target_weights", bytes=4_000_000, basis="engine log")
    sampler = Sampler(FAST_S, lambda: [weights], nvml=no_driver())
    sampler._take()
    assert sampler.since(0, None).samples[0].components == [weights]


def test_active_ticks_follow_the_pace_and_rest_is_slow():
    sampler = Sampler(FAST_S, nvml=no_driver(), rest_period_s=60.0)
    sampler.start()
    try:
        assert sampler.since(0, None).cursor == 1  # taken by start()
        time.sleep(0.05)
        assert sampler.since(0, None).cursor == 1  # at rest
        sampler.set_active(True)
        deadline_s = time.monotonic() + 5
        while sampler.since(0, None).cursor < 5 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert sampler.since(0, None).cursor >= 5
    finally:
        sampler.close()
    assert not any(thread.name == "telemetry" for thread in threading.enumerate())


def test_a_reading_slower_than_its_period_is_counted_as_missed_ticks():
    reading = threading.Semaphore(0)

    def slow() -> list[MemoryComponent]:
        reading.release()
        time.sleep(0.05)
        return []

    sampler = Sampler(FAST_S, slow, nvml=no_driver())
    sampler.set_active(True)
    sampler.start()
    try:
        for _ in range(3):
            assert reading.acquire(timeout=5)
    finally:
        sampler.close()
    # Each reading takes at least five periods of 10 ms, so at least four ticks pass during it.
    assert sampler.missed >= 4


def test_a_reading_that_raises_does_not_end_the_series(caplog):
    calls = []

    def broken_once() -> list[MemoryComponent]:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the ledger is being replaced")
        return []

    sampler = Sampler(FAST_S, broken_once, nvml=no_driver())
    sampler.set_active(True)
    sampler.start()
    try:
        deadline_s = time.monotonic() + 5
        while len(calls) < 4 and time.monotonic() < deadline_s:
            time.sleep(0.01)
    finally:
        sampler.close()
    assert len(calls) >= 4
    assert "could not be taken" in caplog.text


def test_closing_twice_or_without_a_start_is_harmless():
    sampler = Sampler(FAST_S, nvml=no_driver())
    sampler.close()
    sampler.close()


def test_host_memory_in_use_is_what_cannot_be_had_back():
    sample = host_sample(None)
    assert 0 < sample.memory_used_bytes < sample.memory_total_bytes
    assert sample.engine_bytes is None
    assert sample.power_w is None


def write_rollup(proc, pid: int, pss_kib: int) -> None:
    (proc / str(pid)).mkdir()
    text = f"00400000-7fff [rollup]\nRss: 9000 kB\nPss: {pss_kib} kB\nPss_Anon: 1 kB\n"
    (proc / str(pid) / "smaps_rollup").write_text(text)


def test_engine_memory_is_the_sum_of_pss(tmp_path):
    write_rollup(tmp_path, 101, 300)
    write_rollup(tmp_path, 102, 200)
    assert ProcessMemory(tmp_path).read([101, 102]) == 500 * 1024


def test_processes_that_are_gone_count_for_nothing(tmp_path):
    write_rollup(tmp_path, 101, 300)
    gone = subprocess.Popen(["true"])
    gone.wait()
    memory = ProcessMemory(tmp_path)
    assert memory.read([101, gone.pid]) == 300 * 1024
    assert memory.read([gone.pid]) is None
    assert memory.read([]) is None


def test_where_pss_cannot_be_read_resident_memory_is_used(tmp_path):
    assert ProcessMemory(tmp_path).read([os.getpid()]) > 1 << 20  # a Python process holds more than 1 MiB


def test_an_expensive_reading_is_used_again_until_it_has_paid_off(tmp_path):
    write_rollup(tmp_path, 101, 300)
    # Each reading costs 1 ms of this clock; at a share of 0.005 it is valid for 200 ms.
    times_ms = iter([0, 1, 100, 202, 203])
    memory = ProcessMemory(tmp_path, clock_ns=lambda: next(times_ms) * 1_000_000)
    assert memory.read([101]) == 300 * 1024
    (tmp_path / "101" / "smaps_rollup").write_text("Pss: 700 kB\n")
    assert memory.read([101]) == 300 * 1024
    assert memory.read([101]) == 700 * 1024
