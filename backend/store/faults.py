"""The one boundary where SQLite's, the disk's and Parquet's errors become StorageError."""

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pydantic import ValidationError

from backend.errors import StorageError

# EFBIG and EDQUOT are the same to a user: there is no room for this file.
_NO_ROOM_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# Primary result code of SQLite -> what happened and what to do.
_SQLITE_CAUSES = {
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_NOTADB: "is damaged: it is not a SQLite database",
    sqlite3.SQLITE_READONLY: "cannot be written",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_PERM: "cannot be opened",
    sqlite3.SQLITE_AUTH: "cannot be opened",
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_LOCKED: "is locked by another process",
    sqlite3.SQLITE_IOERR: "could not be read or written",
}
_SQLITE_REMEDIES = {
    sqlite3.SQLITE_CORRUPT: "Move the file aside, start anew, and import the runs that you exported",
    sqlite3.SQLITE_NOTADB: "Move the file aside, start anew, and import the runs that you exported",
    sqlite3.SQLITE_READONLY: "Check the owner and the permissions of the directory, or set SLIPSTREAM_HOME",
    sqlite3.SQLITE_CANTOPEN: "Check the owner and the permissions of the directory, or set SLIPSTREAM_HOME",
    sqlite3.SQLITE_BUSY: "End the other process that writes to it and try again",
    sqlite3.SQLITE_IOERR: "Check the disk's health and free space, and any limit on file sizes",
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns the block's errors of SQLite, the disk, Arrow and pydantic into StorageError about `path`."""
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(_sqlite_message(error, path)) from error
    except pa.ArrowException as error:
        raise StorageError(
            f"{path} is damaged ({first_line(error)}). Restore it from a copy, or import the run from an export."
        ) from error
    except ValidationError as error:
        raise StorageError(
            f"{path} holds a document that this version cannot read ({first_line(error)}). Restore it from a copy."
        ) from error
    except OSError as error:
        raise StorageError(_os_message(error, path)) from error


def first_line(error: BaseException) -> str:
    """The first line of a foreign message: Arrow's go on with pages of context."""
    return str(error).partition("\n")[0]


def _sqlite_message(error: sqlite3.Error, path: Path) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
    if code == sqlite3.SQLITE_FULL:
        return _no_room(path)
    cause = _SQLITE_CAUSES.get(code, "could not be read or written")
    remedy = _SQLITE_REMEDIES.get(code, "Look at the agent's log; if it persists, move the file aside and start anew")
    return f"The store {path} {cause} ({error}). {remedy}."


def _os_message(error: OSError, path: Path) -> str:
    where = Path(error.filename) if isinstance(error.filename, str) else path
    if error.errno in _NO_ROOM_ERRNOS:
        return _no_room(where)
    return f"{where} could not be read or written ({error.strerror or error}). Check its permissions and the disk."


def _no_room(path: Path) -> str:
    free = _free_bytes(path)
    amount = "an unknown amount" if free is None else f"{free:,} bytes"
    return (
        f"No room to write {path}: {amount} free on its disk. Free some space (or lift the quota or file-size limit) "
        "and try again; what was stored before is intact."
    )


def _free_bytes(path: Path) -> int | None:
    for place in (path, *path.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None
