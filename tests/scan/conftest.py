"""Real SGLang releases, installed once into a cache that outlives the run, and small trees to edit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backend.engine_scan import open_source, scan_source

RELEASES = ("0.5.9", "0.5.12.post1", "0.5.20")
NEWEST = "0.5.23"


def installed(release):
    """Folder with this release, downloaded without its dependencies."""
    cache = os.environ.get("SLIPSTREAM_TEST_CACHE") or Path.home() / ".cache" / "slipstream-tests"
    folder = Path(cache) / f"sglang-{release}"
    if not (folder / "done").exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-compile",
            "--target",
            str(part),
        ]
        subprocess.run([*command, f"sglang=={release}"], check=True, timeout=300)
        (part / "done").write_text("")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            part.rename(folder)
        except OSError:  # another test process was faster
            shutil.rmtree(part)
    return folder


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
