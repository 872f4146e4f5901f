"""The list of runs: filters, the table, and the field that picks one."""

from collections.abc import Sequence

import streamlit as st

from backend.schema.engine import EngineKind
from backend.schema.run import RunRow
from pages.ui import components, session, tables
from pages.ui import format as fmt
from pages.ui.labels import VERDICTS

SHOWN_ROWS = 1000


def filtered(runs: Sequence[RunRow]) -> list[RunRow]:
    """The filter fields, and the runs that pass them."""
    tags = sorted({tag for run in runs for tag in run.tags})
    left, middle, right = st.columns(3)
    with left:
        tag = st.selectbox("Tag", tags, index=None, placeholder="any", key=session.FILTER_TAG, persist_state="session")
    with middle:
        verdict = st.selectbox(
            "Verdict",
            list(VERDICTS),
            index=None,
            placeholder="any",
            format_func=lambda name: VERDICTS[name],
            key=session.FILTER_VERDICT,
            persist_state="session",
        )
    with right:
        note = st.text_input("Note contains", key=session.FILTER_NOTE, persist_state="session", type="search")
    return tables.filter_runs(runs, tag, verdict, note)


def table(runs: Sequence[RunRow]) -> None:
    """Newest first. Choosing a row opens that run, as the field below does."""
    shown = list(runs[:SHOWN_ROWS])
    if not shown:
        st.info("No run passes these filters.")
        return
    number = st.column_config.NumberColumn
    st.dataframe(
        tables.run_rows(shown),
        hide_index=True,
        placeholder="n/a",
        key="runs_table",
        on_select=lambda: _open(shown),
        selection_mode="single-row",
        alt=f"{len(runs)} runs, newest first",
        height="auto" if len(shown) > 10 else "content",
        column_config={
            "Best tok/s": number("Best tok/s", format="%.1f", help="Of the level with most output tok/s."),
            "tok/s per user": number("tok/s per user", format="%.1f", help="At that level."),
            "Accept length": number("Accept length", format="%.2f", help="At that level."),
            "Draft steps": st.column_config.TextColumn("Draft steps", help="Of speculative decoding (MTP)."),
            "Tags": st.column_config.ListColumn("Tags"),
            "Pinned": st.column_config.CheckboxColumn("Pinned"),
        },
    )
    if any(run.engine.startswith(EngineKind.REFERENCE.value) for run in shown):
        components.reference_note(EngineKind.REFERENCE)
    if len(runs) > SHOWN_ROWS:
        st.caption(f"The newest {SHOWN_ROWS:,} of {len(runs):,} runs are listed; filter to see others.")


def choice(shown: Sequence[RunRow], runs: Sequence[RunRow], param: str, label: str) -> str | None:
    """A field whose value is the query parameter `param`, so that the address of the page names the run.

    `bind="query-params"` would put the option's label there. A linked run is offered even if the filters hide it.
    """
    known = {run.id: run for run in runs}
    key = f"{param}_choice"
    wanted = st.query_params.get(param)
    if wanted in known:
        st.session_state[key] = wanted
    elif wanted is not None:
        st.warning(f"There is no run {fmt.code_word(wanted)} on this host; choose another.", title="Run not found")
    options = [run.id for run in shown[:SHOWN_ROWS]]
    kept = st.session_state.get(key)
    if kept in known and kept not in options:
        options.insert(0, kept)
    elif kept not in known:
        st.session_state[key] = None
    picked: str | None = st.selectbox(
        label,
        options,
        index=None,
        placeholder="choose a run",
        format_func=lambda run_id: describe(known[run_id]),
        key=key,
        persist_state="session",
        on_change=_into_address,
        args=(param, key),
    )
    if picked is not None and wanted != picked:
        st.query_params[param] = picked
    return picked


def _into_address(param: str, key: str) -> None:
    picked = st.session_state[key]
    if picked is None:
        st.query_params.pop(param, None)
    else:
        st.query_params[param] = picked


def describe(run: RunRow) -> str:
    """`20261130-220200-abcd · reference 0.1.0 · draft steps 3 · mtp · three steps`."""
    steps = tables.draft_steps(run)
    parts = (run.id, run.engine, steps and f"draft steps {steps}", ", ".join(run.tags), run.note[:40])
    return " · ".join(part for part in parts if part)


def _open(shown: Sequence[RunRow]) -> None:
    rows = st.session_state["runs_table"].selection.rows
    if rows:
        st.query_params[session.RUN] = shown[rows[0]].id
