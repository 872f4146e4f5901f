"""The files of a checkpoint and the tensors in them: the index on one side, the headers on the other.

They disagree in the wild, so both are read and every difference is told.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from operator import eq
from pathlib import Path

import orjson

from backend.checkpoint.headers import Kind, Kinds, no_collection, read_header
from backend.errors import InputError
from backend.schema.checkpoint import Shards, Warned

_NUMBERED = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors")
_EXAMPLES = 3  # names that a message shows


@dataclass
class Tensors:
    """All tensors of a checkpoint. `files` maps each file that could be read to its tensors; `indexed` are the names
    in the index, None without one."""

    files: dict[str, dict[str, Kind]] = field(default_factory=dict)
    indexed: dict[str, str] | None = None
    shards: Shards = field(default_factory=lambda: Shards(declared=0, present=0, missing=[]))
    warnings: list[Warned] = field(default_factory=list)

    def unindexed(self) -> dict[str, str]:
        """Tensors that stand in a header and not in the index, with their files."""
        if self.indexed is None or not any(warning.code == "not_indexed" for warning in self.warnings):
            return {}
        return {n: file for file, tensors in self.files.items() for n in tensors if n not in self.indexed}


def read_tensors(folder: Path) -> Tensors:
    """Reads the index and every header in `folder`. What is wrong with one file is a warning; the others are read.

    Raises InputError for an index that cannot be read.
    """
    kinds = Kinds()
    with no_collection():
        found = Tensors(indexed=_read_index(folder))
        for name in _files(folder, found):
            try:
                found.files[name] = read_header(folder / name, kinds)
            except InputError as error:
                found.warnings.append(Warned(code="shard_unreadable", message=str(error), evidence=name))
        _compare(found)
    return found


def _read_index(folder: Path) -> dict[str, str] | None:
    """Tensor name to file name of the one `*.safetensors.index.json`; None without one."""
    files = sorted(folder.glob("*.safetensors.index.json"))
    file = next((f for f in files if f.name == "model.safetensors.index.json"), files[0] if files else None)
    if file is None:
        return None
    try:
        index = orjson.loads(file.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{file} is not valid JSON ({error}); copy it anew") from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or set(map(type, weight_map.values())) - {str}:
        raise InputError(f"{file} has no weight_map from tensor names to file names; copy it anew, or remove it")
    return weight_map


def _files(folder: Path, found: Tensors) -> list[str]:
    """The files to read, in order; notes which are missing and which are left out."""
    there = {path.name for path in folder.glob("*.safetensors")}
    declared = set(found.indexed.values()) if found.indexed is not None else _numbered(there)
    outside = {name for name in declared if "/" in name or name in ("", ".", "..")}
    if outside:
        found.warnings.append(
            Warned(
                code="index_leaves_folder",
                message=f"the index names {_some(outside)}, which is no file of this folder; it is not followed",
                evidence="model.safetensors.index.json",
            )
        )
    missing = sorted(name for name in declared if name not in there)
    copies = {name for name in there if name.startswith("consolidated")}
    if copies and there - copies:
        found.warnings.append(
            Warned(
                code="second_copy",
                message=f"{_some(copies)} holds the same weights in another layout; not counted",
                evidence=min(copies),
            )
        )
        there -= copies
    found.shards = Shards(declared=len(declared) or len(there), present=len(there), missing=missing)
    if missing:
        found.warnings.append(
            Warned(
                code="shard_missing",
                message=f"{len(missing)} of {len(declared)} files are missing: {_some(missing)}; copy them too",
                evidence=missing[0],
            )
        )
    if not there:
        found.warnings.append(
            Warned(code="no_weights", message="there is no *.safetensors file in this folder", evidence=None)
        )
    return sorted(there)


def _numbered(there: Iterable[str]) -> set[str]:
    """Without an index: the files that names like model-00002-of-00005 promise, and the others that are there."""
    names = set(there)
    for name in tuple(names):
        if match := _NUMBERED.fullmatch(name):
            stem, number, count = match.groups()
            if int(count) <= 10_000:  # a larger count is no file count
                names |= {f"{stem}-{n:0{len(number)}}-of-{count}.safetensors" for n in range(1, int(count) + 1)}
    return names


def _compare(found: Tensors) -> None:
    """Tensors that two files hold, and the differences between index and headers."""
    if _agrees(found):
        return
    holders: dict[str, int] = Counter(name for tensors in found.files.values() for name in tensors)
    twice = {name for name, count in holders.items() if count > 1}
    if twice:
        found.warnings.append(
            Warned(
                code="duplicate_tensors",
                message=f"{len(twice)} tensors stand in more than one file: {_some(twice)}; which one an engine "
                "loads depends on the order of files",
                evidence=min(twice),
            )
        )
    if found.indexed is not None:
        found.warnings += _differences(found.files, found.indexed, holders.keys(), twice)


def _agrees(found: Tensors) -> bool:
    """Whether the index names exactly what the headers hold: then no tensor stands twice either. Counted without a
    loop, as it is asked for hundreds of thousands of tensors and nearly always so."""
    if found.indexed is None:
        return False
    named = found.indexed
    total = sum(map(len, found.files.values()))
    right = sum(sum(map(eq, map(named.get, names), repeat(file))) for file, names in found.files.items())
    return right == total == len(named)


def _differences(
    files: Mapping[str, Mapping[str, Kind]], indexed: Mapping[str, str], held: Collection[str], twice: set[str]
) -> Iterator[Warned]:
    absent = {name for name, file in indexed.items() if name not in held and file in files}
    if absent:
        yield Warned(
            code="indexed_not_in_header",
            message=f"the index names {len(absent)} tensors that their files do not hold: {_some(absent)}",
            evidence=min(absent),
        )
    extra = {name for name in held if name not in indexed}
    if extra:
        where = {file for file, tensors in files.items() if not extra.isdisjoint(tensors)}
        yield Warned(
            code="not_indexed",
            message=f"{len(extra)} tensors stand in {_some(where)} and not in the index: {_some(extra)}; an engine "
            "that follows the index does not load them",
            evidence=min(where),
        )
    moved = {n for file, tensors in files.items() for n in tensors if indexed.get(n, file) != file} - twice
    if moved:
        yield Warned(
            code="indexed_elsewhere",
            message=f"the index places {len(moved)} tensors in another file than holds them: {_some(moved)}",
            evidence=min(moved),
        )


def _some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    ordered = sorted(names)
    more = len(ordered) - _EXAMPLES
    return ", ".join(ordered[:_EXAMPLES]) + (f" and {more} more" if more > 0 else "")
