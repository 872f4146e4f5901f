"""The fixture of the agent's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.agent_process import AgentStarter


@pytest.fixture
def agents(tmp_path: Path, tmp_home: Path) -> Iterator[AgentStarter]:
    starter = AgentStarter(tmp_path)
    yield starter
    starter.end()
