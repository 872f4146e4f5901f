"""A dashboard as a person starts it, with what it leaves running."""

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 30.0


class Dashboard:
    """`streamlit run app.py` on a free port with the test's own state directory."""

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self._log = home.parent / "streamlit.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["-m", "streamlit", "run", "app.py", "--server.headless=true", f"--server.port={self.port}"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the dashboard did not start\n{self.logs()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=1) as answer:  # noqa: S310 - loopback
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(timeout=20)

    def descendants(self) -> list[psutil.Process]:
        """Agent, engines and workers: detached, so found by this test's state directory in their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = any(word.split(".")[0] == "backend" for word in process.cmdline())
                if ours and process.environ().get("SLIPSTREAM_HOME") == str(self.home):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def end_everything(self) -> None:
        """Whatever the dashboard left running, it runs no longer than the test."""
        self.stop()
        for process in self.descendants():
            process.kill()

    def logs(self) -> str:
        """The ends of all logs, for a failure message."""
        files = [self._log, *sorted(self.home.rglob("*.log"))]
        return "\n".join(f"--- {f.name}\n{_tail(f)}" for f in files if f.is_file())


def _tail(file: Path, lines: int = 20) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])
