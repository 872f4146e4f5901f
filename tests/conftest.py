"""What every test gets: an environment without this machine's settings, and a state directory of its own."""

import contextlib
import importlib.metadata
import os
import platform
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

# The versions that explain most differences between two machines.
REPORTED = ("streamlit", "plotly", "torch", "starlette", "uvicorn", "pydantic", "pyarrow", "playwright")


def pytest_report_header() -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in REPORTED)
    return f"slipstream: Python {platform.python_version()}, {versions}, {os.cpu_count()} cores"


@pytest.fixture(autouse=True)
def tmp_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The state directory of this test. Nothing of the person who runs the tests is read or written."""
    for name in [name for name in os.environ if name.startswith("SLIPSTREAM_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("SLIPSTREAM_HOME", str(home))
    return home


@pytest.fixture(autouse=True, scope="session")
def no_process_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Agents, engines and workers run detached: one that a test forgot would slow down whatever runs next."""
    yield
    here = str(tmp_path_factory.getbasetemp())
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLIPSTREAM_HOME", "").startswith(here) and process.pid != os.getpid():
                left.append(process.cmdline())
                process.kill()
    assert left == []


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A function that returns a loopback port nobody listens on; each call another one."""
    given: set[int] = set()

    def pick() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in given:
                given.add(port)
                return port

    return pick
