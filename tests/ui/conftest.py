"""A page under test and the fake agent that it speaks to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.fakes import documents
from tests.fakes.fake_agent import FakeAgent

FRAME = Path(__file__).resolve().parents[2] / "pages" / "frame.py"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAgent]:
    """A fake agent that the pages find as if it were this machine's."""
    with FakeAgent() as agent:
        agent.scan = documents.SCAN
        monkeypatch.setenv("SLIPSTREAM_AGENT_URL", agent.url)
        monkeypatch.setenv("SLIPSTREAM_AGENT_TOKEN", agent.token)
        yield agent
    st.cache_resource.clear()
    st.cache_data.clear()


@pytest.fixture
def app() -> AppTest:
    """The frame, not yet run. Its first page is Tune."""
    return AppTest.from_file(str(FRAME), default_timeout=30)
