"""A run as one file: a zip of `run.json`, `requests.jsonl`, the Parquet files, the engine's log, and a manifest.

`manifest.json` carries the format's version and the size and sha256 of every member. Nothing of an import is trusted
before it was checked: member names are a closed list (so no path leads anywhere), sizes are bounded both as declared
and as read, and every part is decoded before anything is stored.
"""

import hashlib
import io
import lzma
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from backend import __version__
from backend.errors import InputError, StorageError
from backend.paths import StatePaths
from backend.redact import redact_text
from backend.schema.base import Document
from backend.schema.host import TelemetrySample
from backend.schema.load import LivePoint, LoadState, RequestRecord
from backend.store import rows, samples
from backend.store.document import StoredRun
from backend.store.faults import first_line, storage_errors
from backend.store.ids import require_safe_id
from backend.thresholds import (
    EXPORT_LOG_MAX_BYTES,
    IMPORT_MAX_BYTES,
    IMPORT_MAX_TABLE_BYTES,
    IMPORT_MAX_UNPACKED_BYTES,
)

T = TypeVar("T")

FORMAT = 1
MANIFEST, RUN, REQUESTS, LOG = "manifest.json", "run.json", "requests.jsonl", "engine.log"
_REQUIRED = (RUN, REQUESTS)
_OPTIONAL = (*samples.TABLES, LOG)
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # the same run gives the same bytes
# What `zipfile` raises on damaged bytes: a flipped bit in an offset gives ValueError, one in a flag RuntimeError, in
# the compression method whatever bzip2 (OSError) and LZMA say about bytes that are not theirs.
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, RuntimeError, struct.error)
_IN_CHUNKS = {"chunk_ns", "chunk_tokens"}
_CUT = b"\n... %d bytes left out of this export ...\n"


class Member(Document):
    """What the manifest says of one member."""

    sha256: str
    bytes: int


class Manifest(Document):
    """The first thing an import reads."""

    format: int
    slipstream: str
    run_id: str
    members: dict[str, Member]


@dataclass(frozen=True)
class RunBundle:
    """A run with its requests, its Parquet files (chunks are in both) and its log."""

    run: StoredRun
    records: list[RequestRecord]
    tables: Mapping[str, bytes] = field(default_factory=dict)
    log: bytes | None = None

    def files(self) -> dict[str, bytes]:
        """Files that lie in the run's directory."""
        return {**self.tables, **({LOG: self.log} if self.log is not None else {})}

    def pack(self) -> bytes:
        """The zip file."""
        lines = [record.model_dump_json(exclude=_IN_CHUNKS) for record in self.records]
        members = {
            RUN: self.run.model_copy(update={"log": None}).model_dump_json(indent=1).encode(),
            REQUESTS: "".join(f"{line}\n" for line in lines).encode(),
            **self.files(),
        }
        manifest = Manifest(
            format=FORMAT,
            slipstream=__version__,
            run_id=self.run.id,
            members={name: _member(content) for name, content in members.items()},
        )
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {MANIFEST: manifest.model_dump_json(indent=1).encode(), **members}.items():
                archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), content, zipfile.ZIP_DEFLATED)
        return packed.getvalue()

    def fingerprint(self) -> str:
        """Equal for two copies of one run, whatever their id, notes, tags, pin and the place of the log."""
        local: dict[str, object] = {"id": "", "note": "", "tags": [], "pinned": False, "log": None}
        digest = hashlib.sha256(self.run.model_copy(update=local).model_dump_json().encode())
        for record in sorted(self.records, key=lambda one: (one.level, one.phase, one.index)):
            digest.update(record.model_dump_json(exclude={"run_id", *_IN_CHUNKS}).encode())
        for name in sorted(self.tables):
            digest.update(f"{name}{hashlib.sha256(self.tables[name]).hexdigest()}".encode())
        return digest.hexdigest()


def collect_bundle(db: sqlite3.Connection, paths: StatePaths, run_id: str) -> RunBundle:
    """The stored run as a bundle. The log is redacted and, when long, loses its middle."""
    run_dir = paths.run_dir(run_id)
    run = rows.select_run(db, run_id)
    with storage_errors(run_dir):
        tables = {name: (run_dir / name).read_bytes() for name in samples.stored_tables(run_dir)}
        log = _read_log(Path(run.log)) if run.log else None
    records = samples.whole_records(run_dir, rows.select_records(db, run_id))
    return RunBundle(run=run, records=records, tables=tables, log=log)


def unpack(data: bytes) -> RunBundle:
    """A bundle from the bytes of a zip file. InputError names what is wrong and with which member."""
    if len(data) > IMPORT_MAX_BYTES:
        raise InputError(f"The file has {len(data):,} bytes; an exported run has at most {IMPORT_MAX_BYTES:,}.")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = _checked_members(archive)
    except _BAD_ZIP as error:
        raise InputError(f"This is not a run that Slipstream exported: {error}. Export it again.") from error
    run = _ended(_decode(RUN, members[RUN], StoredRun.model_validate_json))
    require_safe_id(run.id)
    records = _decode(REQUESTS, members[REQUESTS], _records)
    tables = {name: members[name] for name in samples.TABLES if name in members}
    if samples.LIVE in tables:
        _decode(samples.LIVE, tables[samples.LIVE], partial(_table_rows, LivePoint))
    if samples.TELEMETRY in tables:
        _decode(samples.TELEMETRY, tables[samples.TELEMETRY], partial(_table_rows, TelemetrySample))
    if samples.CHUNKS in tables:
        chunks = _decode(samples.CHUNKS, tables[samples.CHUNKS], partial(_table_rows, samples.ChunkRow))
        records = samples.with_chunks(records, chunks)
    return RunBundle(run=run, records=records, tables=tables, log=members.get(LOG))


def _checked_members(archive: zipfile.ZipFile) -> dict[str, bytes]:
    infos = {info.filename: info for info in archive.infolist()}
    strange = [name for name in infos if name not in {MANIFEST, *_REQUIRED, *_OPTIONAL}]
    if strange or len(infos) != len(archive.infolist()):
        raise InputError(f"The file holds {strange[0] if strange else 'a member twice'!r}: no export of ours does.")
    if MANIFEST not in infos:
        raise InputError(f"The file has no {MANIFEST}: it is not a run that Slipstream exported.")
    unpacked = sum(info.file_size for info in infos.values())
    if unpacked > IMPORT_MAX_UNPACKED_BYTES:
        raise InputError(f"The file unpacks to {unpacked:,} bytes; the limit is {IMPORT_MAX_UNPACKED_BYTES:,}.")
    manifest = _decode(MANIFEST, _read(archive, infos[MANIFEST]), Manifest.model_validate_json)
    if manifest.format > FORMAT:
        raise InputError(
            f"The file has format {manifest.format}, written by Slipstream {manifest.slipstream}; this version reads "
            f"up to {FORMAT}. Update Slipstream and import it again."
        )
    for name in (*_REQUIRED, *manifest.members):
        if name not in infos or name not in manifest.members:
            raise InputError(f"The file lacks its member {name}: it was cut or edited. Export the run again.")
    return {name: _verified(name, archive, infos[name], manifest) for name in infos if name != MANIFEST}


def _verified(name: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, manifest: Manifest) -> bytes:
    content = _read(archive, info)
    if manifest.members.get(name) != _member(content):
        raise InputError(f"Member {name} is damaged: its checksum is not the manifest's. Export the run again.")
    return content


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """One member; never more than it declared, whatever the compressed data would give."""
    try:
        with archive.open(info) as member:
            return member.read(info.file_size)
    except _BAD_ZIP as error:
        raise InputError(f"Member {info.filename} is damaged: {error}. Export the run again.") from error


def _decode(name: str, content: bytes, decoder: Callable[[bytes], T]) -> T:
    try:
        return decoder(content)
    except (ValidationError, pa.ArrowException, StorageError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"Member {name} cannot be read: {first_line(error)}. Export the run again.") from error


def _records(content: bytes) -> list[RequestRecord]:
    return [RequestRecord.model_validate_json(line) for line in content.splitlines() if line]


def _ended(run: StoredRun) -> StoredRun:
    """A run that was exported while it ran will never go on here."""
    if run.finished_at_utc is not None:
        return run
    return run.model_copy(update={"state": LoadState.INTERRUPTED, "finished_at_utc": run.started_at_utc})


def _table_rows(model: type[samples.Sample], content: bytes) -> list[samples.Sample]:
    file = pq.ParquetFile(io.BytesIO(content))
    groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
    if sum(group.total_byte_size for group in groups) > IMPORT_MAX_TABLE_BYTES:
        raise StorageError(f"it unpacks to more than {IMPORT_MAX_TABLE_BYTES:,} bytes")
    return samples.decode(content, model)[0]


def _member(content: bytes) -> Member:
    return Member(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


def _read_log(path: Path) -> bytes | None:
    """The log without secrets, at most EXPORT_LOG_MAX_BYTES of it; None when it is no longer there."""
    if not path.is_file():
        return None
    size, half = path.stat().st_size, EXPORT_LOG_MAX_BYTES // 2
    with path.open("rb") as file:
        content = file.read(size if size <= EXPORT_LOG_MAX_BYTES else half)
        if size > EXPORT_LOG_MAX_BYTES:
            file.seek(size - half)
            content += _CUT % (size - 2 * half) + file.read(half)
    return redact_text(content.decode(errors="replace")).encode()
