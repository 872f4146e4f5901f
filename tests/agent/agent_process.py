"""A real agent process per test, in a state directory of its own, ended by its pid."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from backend.agent.client import AgentClient
from backend.agent.discovery import find_agent
from backend.errors import AgentError
from backend.paths import PROJECT_ROOT, state_paths
from backend.schema.engine import EngineState, EngineStatus, LaunchRequest

START_LIMIT_S = 30.0
ENGINE_LIMIT_S = 60.0


@dataclass
class AgentProcess:
    """A foreground agent started by a test."""

    process: subprocess.Popen[bytes]
    client: AgentClient
    log: Path

    def kill(self) -> None:
        """kill -9, as a crash would."""
        self.process.kill()
        self.process.wait(10)


class AgentStarter:
    """Starts agents of this test's state directory; ends them and what they launched."""

    def __init__(self, tmp_path: Path) -> None:
        self._tmp_path = tmp_path
        self._started: list[AgentProcess] = []

    def start(self, *arguments: str) -> AgentProcess:
        log = self._tmp_path / f"agent-{len(self._started)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "backend", "agent", *arguments],
                cwd=PROJECT_ROOT,
                env=dict(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        agent = AgentProcess(process, self._wait_for(process, log), log)
        self._started.append(agent)
        return agent

    def end(self) -> None:
        for agent in self._started:
            agent.client.close()
            if agent.process.poll() is None:
                agent.process.terminate()
                agent.process.wait(20)
        for record in state_paths().engines.glob("*.json"):
            _end_engine(record)

    def _wait_for(self, process: subprocess.Popen[bytes], log: Path) -> AgentClient:
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                client = find_agent(state_paths())
                client.status()
            except AgentError:
                time.sleep(0.05)
            else:
                return client
        process.kill()
        process.wait(10)
        raise AssertionError(f"the agent did not start:\n{log.read_text()}")


def _end_engine(record: Path) -> None:
    """An engine that outlived its agent on purpose is ended here, if it is still the recorded process."""
    pid = json.loads(record.read_text())["root"]["pid"]
    try:
        process = psutil.Process(pid)
        assert "backend.reference" in process.cmdline(), "the pid was given to another process"
        process.kill()
        process.wait(10)
    except psutil.NoSuchProcess:
        return


def wait_engine(
    client: AgentClient, engine_id: str, *states: EngineState, limit_s: float = ENGINE_LIMIT_S
) -> EngineStatus:
    """Polls until the engine is in one of `states`."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        status = client.engine(engine_id)
        if status.state in states:
            return status
        time.sleep(0.05)
    log = client.engine_log(engine_id)
    raise AssertionError(f"engine is {status.state} after {limit_s} s: {status.failure}\n" + "\n".join(log.lines[-40:]))


def launch_ready(client: AgentClient, *flags: str) -> EngineStatus:
    """The embedded engine with these flags, ready."""
    started = client.launch(LaunchRequest(flags=list(flags)))
    status = wait_engine(client, started.id, EngineState.READY, EngineState.FAILED)
    assert status.state is EngineState.READY, status.failure
    return status
