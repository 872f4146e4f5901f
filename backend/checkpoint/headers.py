"""Headers of safetensors files: what tensors a file holds, without reading one.

A file begins with the header's length (8 bytes, little-endian) and the header, a JSON object from tensor name to dtype,
shape and place in the data behind it (https://github.com/huggingface/safetensors, "Format").
"""

import gc
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import orjson

from backend.errors import InputError
from backend.thresholds import SAFETENSORS_HEADER_LIMIT_BYTES

# Bits per element, by the names that the format uses.
DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Dtype, shape and size in bytes; one object for all tensors that have them in common, hence its own key."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass
class Kinds:
    """Every Kind once."""

    known: dict[tuple[object, ...], Kind] = field(default_factory=dict)

    def add(self, dtype: object, shape: object) -> Kind:
        """Raises ValueError for what no tensor can have."""
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            raise ValueError(f"dtype {dtype!r}, which the format does not know")
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"shape {shape!r}, which is no list of sizes")
        bits = prod(shape) * DTYPE_BITS[dtype]
        if bits % 8:
            raise ValueError(f"shape {shape!r} of {dtype}, which fills no whole number of bytes")
        kind = self.known[(dtype, *shape)] = Kind(dtype, tuple(shape), bits // 8)
        return kind


def read_header(file: Path, kinds: Kinds) -> dict[str, Kind]:
    """The tensors of one file. Raises InputError that names the file and what is wrong with it."""
    try:
        raw, data_bytes = _read(file)
    except OSError as error:
        raise InputError(f"{file.name} cannot be read: {error.strerror}; copy it anew") from error
    try:
        header = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InputError(f"{file.name} has a header that is no JSON ({error}); copy it anew") from error
    if not isinstance(header, dict):
        raise InputError(f"{file.name} has a header that is a {type(header).__name__}, no object; copy it anew")
    header.pop("__metadata__", None)
    if raw.count(b'"data_offsets"') > len(header):
        raise InputError(f"{file.name} names a tensor twice in its header; copy it anew")
    return _tensors(file, header, data_bytes, kinds)


def _read(file: Path) -> tuple[bytes, int]:
    """The header's text and the number of bytes behind it."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not wait for a writer
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{file.name} is no regular file; copy it anew")
        size = status.st_size
        length = int.from_bytes(os.read(descriptor, 8), "little")
        if size < 8:
            raise InputError(f"{file.name} is {size} bytes long, too short for a header; copy it anew")
        if length > SAFETENSORS_HEADER_LIMIT_BYTES or length > size - 8:
            raise InputError(
                f"{file.name} claims a header of {length:,} bytes and is {size:,} bytes long: it is cut off or no "
                "safetensors file; copy it anew"
            )
        raw = os.read(descriptor, length)
        while len(raw) < length and (more := os.read(descriptor, length - len(raw))):
            raw += more
        return raw, size - 8 - length
    finally:
        os.close(descriptor)


def _tensors(file: Path, header: dict[str, Any], data_bytes: int, kinds: Kinds) -> dict[str, Kind]:
    """Runs once for each of hundreds of thousands of tensors: as little as possible stands in the loop."""
    known, tensors = kinds.known, {}
    name = ""
    try:
        for name, entry in header.items():
            dtype, shape = entry["dtype"], entry["shape"]
            begin, end = entry["data_offsets"]
            kind = known.get((dtype, *shape)) or kinds.add(dtype, shape)
            if end - begin != kind.bytes or not 0 <= begin <= end <= data_bytes:
                break
            tensors[name] = kind
        else:
            return tensors
    except (TypeError, KeyError) as error:
        wrong = "an entry without dtype, shape and data_offsets"
        raise InputError(f"{file.name}: tensor {name} has {wrong}; copy the file anew") from error
    except ValueError as error:
        raise InputError(f"{file.name}: tensor {name} has {error}; copy the file anew") from error
    raise InputError(f"{file.name}: tensor {name} has {_misplaced(begin, end, kind, data_bytes)}; copy the file anew")


def _misplaced(begin: int, end: int, kind: Kind, data_bytes: int) -> str:
    if end > data_bytes:
        return f"data up to byte {end:,} of {data_bytes:,} that are there: the file is cut off"
    return f"{end - begin:,} bytes of data where {kind.dtype} {list(kind.shape)} takes {kind.bytes:,}"


@contextmanager
def no_collection() -> Iterator[None]:
    """Parsing makes a million objects that live: looking for garbage among them takes longer than making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
