"""Real SGLang releases and small trees to edit."""

import pytest

from backend.engine_scan import open_source, scan_source
from tests.fakes.releases import installed


@pytest.fixture(scope="session")
def release():
    return installed


@pytest.fixture(scope="session")
def scanned():
    """The scan of a release, made once."""
    known = {}

    def scan(name):
        if name not in known:
            known[name] = scan_source(open_source(str(installed(name))))
        return known[name]

    return scan


@pytest.fixture
def tree(tmp_path):
    """Writes a tree of the files given, `srt/x.py` to text, and returns its folder."""

    def write(files):
        for file, text in files.items():
            path = tmp_path / "engine" / "sglang" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "engine"

    return write
