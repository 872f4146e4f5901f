"""What the buttons do. Each is a callback: it runs once per click, before the page is drawn again.

A callback reads the form from the session, not from its arguments, which are one run old. What the agent refuses
becomes a notice on the page; the form keeps what was typed.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import streamlit as st

from backend.agent.client import AgentClient
from backend.errors import SlipstreamError
from backend.schema.engine import EngineStatus, LaunchRequest
from backend.schema.host import Status
from backend.schema.run import RunPatch
from pages.ui import client, form, session
from pages.ui.live import current_engine, is_moving
from pages.ui.loadform import bench_request


def start_engine(agent: AgentClient) -> None:
    """Launches what the form holds, in place of the engine that runs."""

    def launch() -> None:
        status = agent.status()
        scan, _ = client.scan(agent, status.agent.boot, *session.chosen_engine())
        draft = session.draft(scan)
        made = form.plan(scan, draft)
        if made.problems:
            session.notify("error", "Not started", next(iter(made.problems.values())))
            return
        _launch(agent, status, form.launch_request(draft, made))

    _said("The engine was not started", launch)


def start_last_good(agent: AgentClient) -> None:
    """Launches the last configuration that became ready, and shows it in the form."""

    def launch() -> None:
        status = agent.status()
        if status.last_good is None:
            session.notify("error", "Not started", "No configuration has become ready on this host yet.")
            return
        session.refill(status.last_good)
        _launch(agent, status, status.last_good)

    _said("The engine was not started", launch)


def stop_engine(agent: AgentClient, engine_id: str) -> None:
    _said("The engine was not stopped", lambda: agent.stop_engine(engine_id))


def start_load(agent: AgentClient, engine_id: str) -> None:
    def start() -> None:
        request, problems = bench_request(session.load_draft(), engine_id)
        if request is None:
            session.notify("error", "Not started", next(iter(problems.values())))
            return
        agent.start_load(request)

    _said("The load test was not started", start)


def stop_load(agent: AgentClient, load_id: str) -> None:
    _said("The load test was not stopped", lambda: agent.stop_load(load_id))


def patch_run(agent: AgentClient, run_id: str, patch: RunPatch) -> None:
    _said("The run was not changed", lambda: agent.patch_run(run_id, patch))


def import_run(agent: AgentClient) -> None:
    """Stores the uploaded export and opens it."""
    upload = st.session_state.get(session.UPLOAD)
    if upload is None:
        return

    def read() -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "run.zip"
            file.write_bytes(upload.getvalue())
            run_id = agent.import_run(file).run_id
        st.query_params[session.RUN] = run_id
        session.notify("success", "Imported", f"Run {run_id} is stored on this host.")

    _said("The file was not imported", read)


def _launch(agent: AgentClient, status: Status, request: LaunchRequest) -> None:
    """A second click while the first one's launch is under way starts nothing."""
    engine = current_engine(status)
    if is_moving(engine):
        session.notify("info", "Already under way", "An engine is being started or stopped; wait for it or cancel it.")
        return
    agent.launch(request.model_copy(update={"replace": _replaced(engine), "owner": session.dashboard_owner()}))


def _replaced(engine: EngineStatus | None) -> str | None:
    return None if engine is None or engine.state.ended else engine.id


def _said(title: str, act: Callable[[], object]) -> None:
    try:
        act()
    except SlipstreamError as error:
        session.notify("error", title, str(error))
