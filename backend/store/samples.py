"""Samples of a run in Parquet, one file per kind under `runs/ID/`; written whole or not at all.

chunks.parquet     one row per request: level, phase, index, t_ns[] (CLOCK_MONOTONIC), tokens[] (cumulative)
live.parquet       one row per LivePoint; per-position acceptance is in the file's metadata
telemetry.parquet  one row per TelemetrySample with nested devices and components; the source is in the metadata

Columns are derived from the documents, so that a new field is stored without a change here. A file that lacks a column
of today reads with the document's default.
"""

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, TypeVar, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from backend.errors import StorageError
from backend.schema.base import Document
from backend.schema.load import RequestRecord
from backend.store.faults import storage_errors

CHUNKS, LIVE, TELEMETRY = "chunks.parquet", "live.parquet", "telemetry.parquet"
TABLES = (CHUNKS, LIVE, TELEMETRY)

Sample = TypeVar("Sample", bound=Document)

_SCALARS: dict[object, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
_NOTES_KEY = b"slipstream"  # our entry in a file's key-value metadata


class ChunkRow(Document):
    """The chunks of one request."""

    level: int
    phase: str
    index: int
    t_ns: list[int]
    tokens: list[int]


def add_chunks(run_dir: Path, records: Sequence[RequestRecord]) -> None:
    """Adds the chunks of these records to the run's file, replacing those of the same requests.

    The file is written anew each time, so records are best added in few, large calls.
    """
    rows = {_key(row): row for row in _chunk_rows(run_dir / CHUNKS)}
    for record in records:
        rows[_key(record)] = ChunkRow(
            level=record.level,
            phase=record.phase,
            index=record.index,
            t_ns=record.chunk_ns,
            tokens=record.chunk_tokens,
        )
    write(run_dir / CHUNKS, ChunkRow, list(rows.values()))


def whole_records(run_dir: Path, bare: Sequence[tuple[RequestRecord, int]]) -> list[RequestRecord]:
    """Records with their chunks put back; `bare` pairs each record with the number of chunks it had.

    StorageError when samples are missing: a record that silently lost its chunks would be another measurement.
    """
    whole = with_chunks([record for record, _ in bare], _chunk_rows(run_dir / CHUNKS))
    for record, (_, count) in zip(whole, bare, strict=True):
        if len(record.chunk_ns) != count:
            raise StorageError(
                f"{run_dir / CHUNKS} lacks the samples of request {record.index} of level {record.level}. Restore the "
                "file from a copy, or import the run again; the run's results are intact."
            )
    return whole


def with_chunks(bare: Sequence[RequestRecord], rows: Sequence[ChunkRow]) -> list[RequestRecord]:
    """Records with the chunks that `rows` holds for them."""
    found = {_key(row): {"chunk_ns": row.t_ns, "chunk_tokens": row.tokens} for row in rows}
    return [record.model_copy(update=found.get(_key(record))) for record in bare]


def write(path: Path, model: type[Sample], rows: Sequence[Sample], notes: Mapping[str, object] | None = None) -> None:
    """Writes rows (zstd) beside `path` and renames: a full disk or a crash leaves the earlier file, no half one."""
    schema = pa.schema(_arrow_fields(model), metadata={_NOTES_KEY: json.dumps(dict(notes or {})).encode()})
    table = pa.Table.from_pylist([row.model_dump() for row in rows], schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with storage_errors(path):
            pq.write_table(table, unfinished, compression="zstd")
            with unfinished.open("rb+") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: Path, model: type[Sample]) -> tuple[list[Sample], dict[str, object]]:
    """Rows and notes of a file; nothing when there is no such file."""
    if not path.exists():
        return [], {}
    with storage_errors(path):
        return decode(path.read_bytes(), model)


def decode(content: bytes, model: type[Sample]) -> tuple[list[Sample], dict[str, object]]:
    """Rows and notes from a Parquet file's bytes. Arrow's errors and pydantic's ValidationError pass through."""
    # One thread: the tables are small, and Arrow's pools can abort a process that ends right after using them.
    table = pq.ParquetFile(io.BytesIO(content), pre_buffer=False).read(use_threads=False)
    notes = json.loads((table.schema.metadata or {}).get(_NOTES_KEY, b"{}"))
    return [model.model_validate(row) for row in table.to_pylist()], notes


def stored_tables(run_dir: Path) -> list[str]:
    """Names of the sample files that this run has."""
    return [name for name in TABLES if (run_dir / name).exists()]


def _key(one: ChunkRow | RequestRecord) -> tuple[int, str, int]:
    return (one.level, one.phase, one.index)


def _chunk_rows(path: Path) -> list[ChunkRow]:
    return read(path, ChunkRow)[0]


def _arrow_fields(model: type[BaseModel]) -> list[tuple[str, pa.DataType]]:
    return [(name, _arrow_type(field.annotation)) for name, field in model.model_fields.items()]


def _arrow_type(annotation: object) -> pa.DataType:
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return pa.string()
    if origin is list:
        return pa.list_(_arrow_type(arguments[0]))
    if origin is UnionType and NoneType in arguments:
        return _arrow_type(next(argument for argument in arguments if argument is not NoneType))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return pa.struct(_arrow_fields(annotation))
    raise TypeError(f"no Parquet column for {annotation}")
