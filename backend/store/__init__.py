"""Stored runs: SQLite in WAL mode with one writer, samples in Parquet, and runs as files to carry elsewhere."""

from backend.store.ids import new_run_id
from backend.store.reader import StoreReader
from backend.store.store import Store

__all__ = ["Store", "StoreReader", "new_run_id"]
