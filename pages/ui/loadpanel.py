"""The load-test form on the Tune page."""

from typing import Any

import streamlit as st

from backend.agent.client import AgentClient
from backend.schema.engine import EngineStatus
from backend.schema.host import Status
from backend.schema.load import Endpoint, LoadStatus
from pages.ui import commands, loadform, session
from pages.ui.launch import problem
from pages.ui.live import current_engine, current_load, is_loading, is_moving, is_serving


def draw(agent: AgentClient, status: Status) -> None:
    """The card: what to send, and Start or Stop."""
    engine, load = current_engine(status), current_load(status)
    session.start_load_form()
    draft = session.load_draft()
    request, problems = loadform.bench_request(draft, None)
    with st.container(border=True, key="load_form"):
        st.subheader("Load test")
        levels, dataset, stop = st.columns([4, 5, 5])
        with levels:
            _levels(problems)
        with dataset:
            _prompts(draft, problems)
        with stop:
            st.selectbox(
                "Each level ends after",
                list(loadform.STOPS),
                format_func=lambda stop: loadform.STOPS[stop],
                **_keyed("stop"),
            )
        _lengths(draft, problems)
        _more(problems)
        _buttons(agent, engine, load, request is not None)


def _keyed(name: str) -> dict[str, Any]:
    return {"key": session.load_key(name), "persist_state": "session"}


def _levels(problems: dict[str, str]) -> None:
    st.text_input(
        "Concurrent users",
        help="Concurrency levels, one after the other: `1, 2, 4`. Each user sends its next request when the last ends.",
        **_keyed("levels"),
    )
    _problem("levels", problems)


def _prompts(draft: loadform.LoadDraft, problems: dict[str, str]) -> None:
    st.selectbox(
        "Prompts", list(loadform.DATASETS), format_func=lambda name: loadform.DATASETS[name], **_keyed("dataset")
    )
    if draft.dataset == loadform.FILE:
        st.text_input(
            "Prompt file",
            placeholder="/path/to/prompts.jsonl",
            help="On the agent's machine: JSON Lines with a `prompt` in each line.",
            **_keyed("file"),
        )
    _problem("file", problems)


def _lengths(draft: loadform.LoadDraft, problems: dict[str, str]) -> None:
    input_len, output_len, stop = st.columns([4, 5, 5])
    with input_len:
        st.number_input(
            "Input tokens",
            value=None,
            min_value=1,
            step=1,
            placeholder="as they are",
            help="Prompts are cut or joined to this length. Empty leaves them as they are.",
            **_keyed("input_len"),
        )
        _problem("input_len", problems)
    with output_len:
        st.number_input("Output tokens", value=None, min_value=1, step=1, **_keyed("output_len"))
        _problem("output_len", problems)
    with stop:
        if draft.stop == loadform.BY_SECONDS:
            st.number_input(
                "Seconds per level", value=None, min_value=1.0, step=5.0, format="%.0f", **_keyed("seconds")
            )
        else:
            st.number_input("Requests per level", value=None, min_value=1, step=1, **_keyed("requests"))
        _problem(draft.stop, problems)


def _more(problems: dict[str, str]) -> None:
    with st.expander("Warm-up, temperature, seed, route, tags and note"):
        columns = st.columns(3)
        fields: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("warmup", "Warm-up requests", {"min_value": 0, "step": 1}),
            ("temperature", "Temperature", {"min_value": 0.0, "step": 0.1, "format": "%.2f"}),
            ("seed", "Seed", {"step": 1}),
        )
        for column, (name, label, limits) in zip(columns, fields, strict=True):
            with column:
                st.number_input(label, value=None, **limits, **_keyed(name))
                _problem(name, problems)
        st.selectbox(
            "Route",
            [endpoint.value for endpoint in Endpoint],
            help="`generate` is the only route that carries acceptance per request in every release.",
            **_keyed("endpoint"),
        )
        st.text_input(
            "Tags", placeholder="mtp, steps 3", help="Separated by commas; stored with the run.", **_keyed("tags")
        )
        st.text_input("Note", placeholder="why this test", **_keyed("note"))


def _buttons(agent: AgentClient, engine: EngineStatus | None, load: LoadStatus | None, valid: bool) -> None:
    loading = is_loading(load)
    if loading:
        blocked: str | None = "A load test runs."
    elif not is_serving(engine):
        blocked = "Wait until the engine is ready." if is_moving(engine) else "Start the engine first."
    else:
        blocked = None if valid else "Correct the marked fields first."
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Start load test",
            key="start_load",
            type="primary",
            icon=":material/play_arrow:",
            disabled=blocked is not None,
            on_click=commands.start_load,
            args=(agent, engine.id if engine else ""),
        )
        if loading and load is not None:
            st.button(
                "Stop load test",
                key="stop_load",
                icon=":material/stop:",
                disabled=load.state == "stopping",
                on_click=commands.stop_load,
                args=(agent, load.id),
            )
        if blocked:
            st.caption(blocked, width="content")


def _problem(name: str, problems: dict[str, str]) -> None:
    if name in problems:
        problem(problems[name])
