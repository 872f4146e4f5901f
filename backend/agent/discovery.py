"""Finding the agent of a state directory, or starting one.

`agent.json` (mode 0600) holds URL and token. It outlives the agent, so that a restarted agent keeps both and open pages
find it again; whether an agent lives is told by the lock on `agent.lock`, which the kernel drops with the process.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from backend import thresholds
from backend.agent.client import AgentClient
from backend.errors import AgentError, ConflictError, StorageError
from backend.files import replace_file
from backend.paths import PROJECT_ROOT, StatePaths
from backend.schema.base import Document


class AgentFile(Document):
    """What `agent.json` says. The token is a secret: the file is readable by its owner alone."""

    url: str
    token: str
    pid: int


def read_agent_file(paths: StatePaths) -> AgentFile | None:
    """The last agent's address and token, living or not; None when there is none or it is damaged."""
    try:
        return AgentFile.model_validate_json(paths.agent_file.read_bytes())
    except (OSError, ValidationError):
        return None


def write_agent_file(paths: StatePaths, entry: AgentFile) -> None:
    """Atomically, and never readable by others, not even for a moment."""
    replace_file(paths.agent_file, json.dumps(entry.model_dump()).encode(), 0o600)


@contextlib.contextmanager
def agent_lock(paths: StatePaths) -> Iterator[IO[str]]:
    """Held for the life of an agent. ConflictError when another one holds it."""
    with _open_state_file(paths, _lock_file(paths)) as file:
        if not _take(file):
            known = read_agent_file(paths)
            where = f" at {known.url} (pid {known.pid})" if known else ""
            raise ConflictError(
                f"an agent already runs for {paths.home}{where}; use it, or set SLIPSTREAM_HOME to another directory"
            )
        yield file


def _take(file: IO[str]) -> bool:
    """Takes the lock. Whoever merely looks (`agent_lives`) holds it for an instant, so one refusal is no answer."""
    for _ in range(20):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def agent_lives(paths: StatePaths) -> bool:
    """Whether some process holds the agent's lock."""
    try:
        with _lock_file(paths).open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def find_agent(paths: StatePaths, url: str | None = None) -> AgentClient:
    """A client of the agent at `url`, else of $SLIPSTREAM_AGENT_URL, else of the one that lives here.

    Raises AgentError when there is none. Nothing is called yet: a dead address shows at the first request.
    """
    wanted = url or os.environ.get("SLIPSTREAM_AGENT_URL")
    known = read_agent_file(paths)
    if wanted:
        token = os.environ.get("SLIPSTREAM_AGENT_TOKEN")
        if token is None and known is not None and known.url == wanted.rstrip("/"):
            token = known.token
        if token is None:
            raise AgentError(
                f"no token for the agent at {wanted}; set SLIPSTREAM_AGENT_TOKEN to the one in its agent.json"
            )
        return AgentClient(wanted, token)
    if known is None or not agent_lives(paths):
        raise AgentError(f"no agent runs for {paths.home}; start one with `python -m backend agent`")
    return AgentClient(known.url, known.token)


def find_or_start_agent(paths: StatePaths, *, started_by: str, url: str | None = None) -> AgentClient:
    """As `find_agent`, but with none named and none running a detached one is started and waited for."""
    if url or os.environ.get("SLIPSTREAM_AGENT_URL") or agent_lives(paths):
        return find_agent(paths, url)
    process = _start_detached(paths, started_by)
    deadline = time.monotonic() + thresholds.AGENT_START_TIMEOUT_S
    while time.monotonic() < deadline:
        known = read_agent_file(paths)
        if known is not None and agent_lives(paths) and _answers(known):
            return AgentClient(known.url, known.token)
        if process.poll() not in (None, 0) and not agent_lives(paths):
            break  # it died; a lock held by somebody else means that another start won the race
        time.sleep(0.05)
    raise AgentError(f"the agent did not start ({_last_words(paths)}); its log is {_agent_log(paths)}")


def _answers(known: AgentFile) -> bool:
    with AgentClient(known.url, known.token) as client:
        try:
            client.status()
        except AgentError:
            return False
    return True


def _start_detached(paths: StatePaths, started_by: str) -> subprocess.Popen[bytes]:
    """An agent of its own session, so that neither a closed terminal nor a Ctrl-C in it reaches the engines."""
    with _open_state_file(paths, _agent_log(paths)) as log:
        return subprocess.Popen(
            [sys.executable, "-m", "backend", "agent", "--started-by", started_by],
            cwd=PROJECT_ROOT,
            env={**os.environ, "SLIPSTREAM_HOME": str(paths.home.absolute())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _open_state_file(paths: StatePaths, file: Path) -> IO[str]:
    """A file of the state directory, made with it if need be, open for adding to its end."""
    try:
        paths.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return file.open("a")
    except OSError as error:
        raise StorageError(
            f"cannot use the state directory {paths.home}: {error.strerror}; set SLIPSTREAM_HOME to a writable one"
        ) from error


def _lock_file(paths: StatePaths) -> Path:
    return paths.home / "agent.lock"


def _last_words(paths: StatePaths) -> str:
    """The last line of the agent's log: what it ended with."""
    lines = _agent_log(paths).read_text(encoding="utf-8", errors="replace").splitlines()
    return lines[-1].removeprefix("error: ") if lines else "it said nothing"


def _agent_log(paths: StatePaths) -> Path:
    return paths.home / "agent.log"
