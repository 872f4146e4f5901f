"""Fixtures: an empty store in this test's home, and a reader of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.paths import StatePaths
from backend.store import Store, StoreReader


@pytest.fixture
def paths(tmp_home: Path) -> StatePaths:
    return StatePaths(tmp_home)


@pytest.fixture
def store(paths: StatePaths) -> Iterator[Store]:
    with Store(paths) as opened:
        yield opened


@pytest.fixture
def reader(paths: StatePaths) -> StoreReader:
    return StoreReader(paths)
