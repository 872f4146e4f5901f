"""A page under test and the fake agent that it speaks to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from backend.agent.client import AgentClient
from tests.fakes import documents
from tests.fakes.fake_agent import FakeAgent

FRAME = Path(__file__).resolve().parents[2] / "pages" / "frame.py"


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The pages keep their client as long as the server lives; a test ends before that and closes it."""
    made: list[AgentClient] = []
    construct = AgentClient.__init__

    def recorded(self: AgentClient, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(AgentClient, "__init__", recorded)
    yield
    st.cache_resource.clear()
    st.cache_data.clear()
    for client in made:
        client.close()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, clients: None) -> Iterator[FakeAgent]:
    """A fake agent that the pages find as if it were this machine's."""
    with FakeAgent() as agent:
        agent.scan = documents.SCAN
        monkeypatch.setenv("SLIPSTREAM_AGENT_URL", agent.url)
        monkeypatch.setenv("SLIPSTREAM_AGENT_TOKEN", agent.token)
        yield agent


@pytest.fixture
def app() -> AppTest:
    """The frame, not yet run. Its first page is Tune."""
    return AppTest.from_file(str(FRAME), default_timeout=30)
