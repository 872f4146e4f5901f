"""Full disks, damaged files, killed writers, other writers, newer databases: a clear error, and finished runs stay."""

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from store_example import RUN_ID, begin, level, live_points, record, records, store_whole_run

from backend.errors import SlipstreamError, StorageError
from backend.paths import StatePaths
from backend.schema.load import LoadState
from backend.store import Store, StoreReader, samples
from backend.store.migrations import MIGRATIONS

ROOT = Path(__file__).resolve().parents[2]
V1 = ROOT / "tests" / "fixtures" / "store" / "v1.sql"
OTHER_ID = "20261130-221500-m7m7"


def python(script: str, *, limit_bytes: int | None = None) -> subprocess.Popen[str]:
    """A child that runs `script` with this test's home, under a limit on the size of files it writes."""

    def limited() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    path = f"{ROOT}:{Path(__file__).parent}"
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + script],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=limited,
    )


PREAMBLE = """
from store_example import *
from backend.errors import StorageError
from backend.paths import state_paths
from backend.store import Store, StoreReader
paths = state_paths()
"""


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_full_disk_is_an_error_with_a_remedy_and_loses_no_finished_run(
    paths: StatePaths, reader: StoreReader
) -> None:
    with Store(paths) as store:
        store_whole_run(store)
    script = f"""
big = [one.model_copy(update={{"run_id": "{OTHER_ID}", "text": "x" * 5000}}) for one in
       [record(index, run_id="{OTHER_ID}") for index in range(400)]]
try:
    with Store(paths) as store:
        begin(store, "{OTHER_ID}")
        store.add_records("{OTHER_ID}", big)
except StorageError as error:
    print("REFUSED", error)
print([row.id for row in StoreReader(paths).runs().runs])
"""
    child = python(script, limit_bytes=200_000)
    output = child.communicate(timeout=30)[0]
    assert "REFUSED" in output, output
    assert "free space" in output or "Free some space" in output
    assert "Traceback" not in output
    assert RUN_ID in output.splitlines()[-1]
    assert len(reader.records(RUN_ID)) == 10
    assert reader.records(OTHER_ID) == []  # all or nothing


def test_a_full_database_is_named_with_the_free_bytes(store: Store, reader: StoreReader) -> None:
    store_whole_run(store)
    store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 1"))
    begin_big = [record(index).model_copy(update={"text": "x" * 5000}) for index in range(100, 200)]
    with pytest.raises(StorageError, match=r"No room to write .*slipstream\.db: [\d,]+ bytes free.*Free some space"):
        store.add_records(RUN_ID, begin_big)
    assert reader.run(RUN_ID).request_count == 10
    store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
    store.add_records(RUN_ID, begin_big)  # it goes on once there is room
    assert reader.run(RUN_ID).request_count == 110


def test_samples_that_do_not_fit_leave_the_earlier_file_and_no_half_one(paths: StatePaths, reader: StoreReader) -> None:
    with Store(paths) as store:
        store_whole_run(store)
    script = f"""
import random
points = [live_points()[1].model_copy(update={{"t_s": random.random()}}) for _ in range(20_000)]
with Store(paths) as store:
    try:
        store.save_live("{RUN_ID}", points)
    except StorageError as error:
        print("REFUSED", error)
"""
    child = python(script, limit_bytes=60_000)
    output = child.communicate(timeout=30)[0]
    assert "REFUSED No room to write" in output, output
    assert "live.parquet" in output
    assert reader.live(RUN_ID) == (live_points(), [0.9, 0.7, 0.4])
    assert sorted(path.name for path in paths.run_dir(RUN_ID).iterdir()) == list(samples.TABLES)


def test_killing_the_writer_in_the_middle_leaves_a_readable_store(paths: StatePaths, reader: StoreReader) -> None:
    with Store(paths) as store:
        store_whole_run(store)
    script = f"""
store = Store(paths)
begin(store, "{OTHER_ID}")
print("begun", flush=True)
index = 0
while True:
    store.add_records("{OTHER_ID}", [record(index + at, run_id="{OTHER_ID}") for at in range(20)])
    index += 20
"""
    child = python(script)
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    deadline = time.monotonic() + 20
    while reader.run(OTHER_ID).request_count < 40 and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=10)
    found = reader.records(OTHER_ID)  # every row has its samples: they are written first
    assert len(found) >= 40
    assert len(found) % 20 == 0  # whole calls only
    assert all(one == record(one.index, run_id=OTHER_ID) for one in found)
    with Store(paths) as store:
        assert store.unfinished() == [OTHER_ID]
        store.finish_run(OTHER_ID, LoadState.INTERRUPTED, [level(1)], "the agent died")
    assert {row.id: row.verdict for row in reader.runs().runs} == {RUN_ID: "partial", OTHER_ID: "interrupted"}


def test_two_processes_write_at_once(paths: StatePaths, reader: StoreReader) -> None:
    script = """
import sys
with Store(paths) as store:
    for number in range(10):
        store_whole_run(store, f"20261130-0000{number:02}-{NAME}")
"""
    children = [python(f"NAME = {name!r}\n{script}") for name in ("aaaa", "bbbb")]
    for child in children:
        output = child.communicate(timeout=60)[0]
        assert child.returncode == 0, output
    rows = reader.runs().runs
    assert len(rows) == 20
    assert all(len(reader.records(row.id)) == 10 for row in rows[:4])


def test_readers_see_whole_runs_while_another_thread_writes(store: Store, reader: StoreReader) -> None:
    begin(store)
    done = threading.Event()

    def write() -> None:
        try:
            for first in range(0, 400, 20):
                store.add_records(RUN_ID, [record(first + at) for at in range(20)])
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    counts = []
    while not done.is_set():
        counts.append(len(reader.records(RUN_ID)))
    writer.join()
    assert all(count % 20 == 0 for count in counts)
    assert counts == sorted(counts)
    assert len(reader.records(RUN_ID)) == 400


def test_many_threads_write_through_one_store(store: Store, reader: StoreReader) -> None:
    begin(store)
    threads = [
        threading.Thread(target=store.add_records, args=(RUN_ID, [record(first + at) for at in range(5)]))
        for first in range(0, 40, 5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.index for one in reader.records(RUN_ID)) == list(range(40))


def not_a_database(path: Path) -> None:
    path.write_bytes(b"this was a database once" * 500)


def torn_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)  # the first page, with the schema, survives
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [not_a_database, torn_pages])
def test_a_damaged_database_is_an_error_with_a_remedy(
    paths: StatePaths, reader: StoreReader, damage: Callable[[Path], None]
) -> None:
    with Store(paths) as store:
        store_whole_run(store)
    damage(paths.database)
    with pytest.raises(StorageError, match=r"slipstream\.db is damaged.*Move the file aside"):
        reader.runs()
    with pytest.raises(StorageError, match="is damaged"), Store(paths) as store:
        begin(store, OTHER_ID)


def test_a_damaged_sample_file_is_an_error_that_names_it(store: Store, paths: StatePaths, reader: StoreReader) -> None:
    store_whole_run(store)
    (paths.run_dir(RUN_ID) / "live.parquet").write_bytes(b"PAR1 no more PAR1")
    with pytest.raises(StorageError, match=r"live\.parquet is damaged"):
        reader.live(RUN_ID)
    assert len(reader.records(RUN_ID)) == 10


def test_a_home_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    with pytest.raises(StorageError, match="could not be read or written"):
        Store(StatePaths(blocked))


def test_a_database_of_a_newer_slipstream_is_refused_and_untouched(paths: StatePaths, reader: StoreReader) -> None:
    with Store(paths) as store:
        store_whole_run(store)
        store._writer.run(lambda db: db.execute("INSERT INTO migrations VALUES ('0999_future', 'x')"))
    before = paths.database.read_bytes()
    for opening in (lambda: Store(paths), reader.runs):
        with pytest.raises(StorageError, match=r"newer Slipstream \(it has 0999_future\)"):
            opening()
    assert paths.database.read_bytes() == before


def test_a_migration_that_fails_leaves_neither_its_tables_nor_its_record(
    paths: StatePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(paths) as store:
        store_whole_run(store)
    broken = ("0999_broken", ("CREATE TABLE half (x)", "CREATE TABLE half (x)"))
    monkeypatch.setattr("backend.store.migrations.MIGRATIONS", (*MIGRATIONS, broken))
    with pytest.raises(StorageError):
        Store(paths)
    monkeypatch.undo()
    with Store(paths) as store:
        tables = store._writer.run(lambda db: {name for (name,) in db.execute("SELECT name FROM sqlite_master")})
    assert "half" not in tables
    assert len(StoreReader(paths).records(RUN_ID)) == 10


def test_a_database_of_version_1_opens(paths: StatePaths, reader: StoreReader) -> None:
    paths.home.mkdir()
    old = sqlite3.connect(paths.database)
    old.executescript(V1.read_text())
    old.close()
    with Store(paths) as store:
        assert store.unfinished() == []
    detail = reader.run("20261130-221012-k3f9")
    assert (detail.row.verdict, detail.row.tags, detail.request_count) == ("partial", ["mtp", "night"], 10)
    assert [one.concurrency for one in detail.bench.levels] == [1, 2]


def test_opening_twice_applies_each_migration_once(paths: StatePaths) -> None:
    for _ in range(2):
        with Store(paths) as store:
            names = store._writer.run(lambda db: [name for (name,) in db.execute("SELECT name FROM migrations")])
    assert names == [name for name, _ in MIGRATIONS]


def test_closing_twice_is_fine_and_a_closed_store_refuses(paths: StatePaths) -> None:
    store = Store(paths)
    begin(store)
    store.close()
    store.close()
    with pytest.raises(StorageError, match="is closed"):
        store.unfinished()


def test_closing_finishes_what_was_begun(paths: StatePaths, reader: StoreReader) -> None:
    store = Store(paths)
    begin(store)
    started, slow_done = threading.Event(), []

    def slow(_: object) -> None:
        started.set()
        time.sleep(0.2)
        slow_done.append(True)

    thread = threading.Thread(target=store._writer.run, args=(slow,))
    thread.start()
    started.wait(5)
    store.close()
    thread.join(5)
    assert slow_done == [True]


def test_a_failed_task_does_not_stop_the_writer(store: Store, reader: StoreReader) -> None:
    begin(store)
    with pytest.raises(SlipstreamError):
        store.add_records("20260101-000000-none", [record(0)])
    store.add_records(RUN_ID, records())
    assert reader.run(RUN_ID).request_count == 10


def test_descriptors_do_not_leak(paths: StatePaths, reader: StoreReader) -> None:
    def once(number: int) -> None:
        with Store(paths) as store:
            store_whole_run(store, f"20261130-0001{number:02}-leak")
        reader.runs()
        reader.records(f"20261130-0001{number:02}")
        reader.export(f"20261130-0001{number:02}")

    once(0)
    before = open_descriptors()
    for number in range(1, 6):
        once(number)
    assert open_descriptors() <= before
