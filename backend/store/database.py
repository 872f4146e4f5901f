"""Connections: one for writing, owned by one thread, and short-lived read-only ones."""

import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

from backend.errors import StorageError
from backend.store.faults import storage_errors
from backend.store.migrations import applied, migrate, pending
from backend.thresholds import STORE_BUSY_TIMEOUT_S, STORE_CLOSE_TIMEOUT_S

T = TypeVar("T")
Task = Callable[[sqlite3.Connection], object]


class Writer:
    """The thread that owns the only writing connection. Callers wait for their task; tasks run one after the other.

    Opening creates the database and migrates it (StorageError when that cannot be).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue: SimpleQueue[tuple[Task, Future[object]] | None] = SimpleQueue()
        self._closing = Lock()
        self._closed = False
        opened: Future[None] = Future()
        self._thread = Thread(target=self._run, args=(opened,), name="slipstream-store", daemon=True)
        self._thread.start()
        opened.result()

    def run(self, task: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `task` in the writer thread, outside a transaction, and returns what it returns."""
        future: Future[object] = Future()
        with self._closing:  # nothing may enter the queue behind the sentinel
            if self._closed:
                raise StorageError(f"The store {self.path} is closed. Start the agent again.")
            self._queue.put((task, future))
        return future.result()  # type: ignore[return-value]

    def transaction(self, task: Callable[[sqlite3.Connection], T]) -> T:
        """Runs `task` inside BEGIN IMMEDIATE … COMMIT; an exception rolls everything back."""

        def whole(db: sqlite3.Connection) -> T:
            db.execute("BEGIN IMMEDIATE")
            with db:
                return task(db)

        return self.run(whole)

    def close(self) -> None:
        """Finishes the queued tasks and ends the thread. Calling it again does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join(STORE_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            print(f"The store {self.path} did not close within {STORE_CLOSE_TIMEOUT_S:g} s.", file=sys.stderr)

    def _run(self, opened: Future[None]) -> None:
        try:
            with storage_errors(self.path):
                db = _open_for_writing(self.path)
        except Exception as error:  # noqa: BLE001 - top of a thread: the caller of the constructor gets it
            self._closed = True
            opened.set_exception(error)
            return
        with closing(db):
            opened.set_result(None)
            while (entry := self._queue.get()) is not None:
                self._answer(db, *entry)

    def _answer(self, db: sqlite3.Connection, task: Task, future: Future[object]) -> None:
        try:
            with storage_errors(self.path):
                result = task(db)
        except BaseException as error:  # noqa: BLE001 - top of a thread: the caller that waits gets it
            future.set_exception(error)
        else:
            future.set_result(result)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A read-only connection with one consistent view, or None while there is no database. Creates nothing."""
    if not path.exists():
        yield None
        return
    with storage_errors(path), closing(_connect(path, "ro")) as db:
        if not applied(db):  # an agent is creating it at this moment
            yield None
            return
        if pending(db, path):
            raise StorageError(
                f"The store {path} was written by an older Slipstream. Start the agent once: it brings it up to date."
            )
        db.execute("BEGIN")
        yield db


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(uri, uri=True, timeout=STORE_BUSY_TIMEOUT_S, isolation_level=None)
    db.row_factory = sqlite3.Row
    return db


def _open_for_writing(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = _connect(path, "rwc")
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        migrate(db, path)
    except BaseException:
        db.close()
        raise
    return db
