"""`streamlit run app.py` opens the dashboard.

A launcher, not a page: `pages/frame.py` is the script that runs, so that deep links work on a fresh server. Its end
stops the reference engine that this dashboard started, unless a load test runs on it.
"""

import contextlib
from collections.abc import AsyncIterator

import streamlit as st
from starlette.concurrency import run_in_threadpool

from backend.agent.discovery import agent_lives, find_agent
from backend.errors import SlipstreamError
from backend.paths import state_paths
from pages.ui.session import dashboard_owner


@contextlib.asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    yield
    await run_in_threadpool(_leave)


def _leave() -> None:
    """Tells the agent that this dashboard ends. An agent that is gone already needs no word."""
    paths = state_paths()
    if not agent_lives(paths):
        return
    with contextlib.suppress(SlipstreamError), find_agent(paths) as client:
        client.close_session(dashboard_owner())


app = st.App("pages/frame.py", lifespan=lifespan)
