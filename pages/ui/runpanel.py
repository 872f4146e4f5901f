"""One stored run on the Runs page: results, charts, configuration, requests, notes and export."""

import streamlit as st

from backend.agent.client import AgentClient
from backend.schema.run import RunDetail, RunPatch
from pages.ui import charts, commands, components, form, session, tables
from pages.ui import format as fmt
from pages.ui.labels import VERDICTS
from pages.ui.loadform import tags_of

# More rows than this are in the export, not on the page: one message to the browser stays below a few MB.
SHOWN_REQUESTS = 2000


def draw(agent: AgentClient, run_id: str) -> None:
    detail = agent.run(run_id)
    _headline(detail)
    names = ["Results", "Charts", "Configuration", "Requests", "Notes and export"]
    results, stored, configuration, requests, notes = st.tabs(names, key="run_tab", on_change="rerun")
    if results.open:
        with results:
            components.levels_table(detail.bench.levels, key="run_levels")
            components.glossary()
    if stored.open:
        with stored:
            _charts(agent, run_id)
    if configuration.open:
        with configuration:
            _configuration(detail)
    if requests.open:
        with requests:
            _requests(agent, run_id)
    if notes.open:
        with notes:
            _notes(agent, detail)


def _headline(detail: RunDetail) -> None:
    row = detail.row
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(f"Run {row.id}", width="content")
        components.verdict_badge(row.verdict)
        for tag in row.tags:
            st.badge(tag, color="gray", icon=":material/label:")
        if row.pinned:
            st.badge("pinned", color="violet", icon=":material/keep:")
    parts = [fmt.when(row.started_at_utc), fmt.plain(row.engine), fmt.plain(fmt.name_of_path(row.model))]
    st.markdown(" · ".join([*parts, *([fmt.plain(row.note)] if row.note else [])]))
    components.reference_note(detail.bench.engine.kind)
    if detail.bench.failure:
        st.error(fmt.plain(detail.bench.failure), title=VERDICTS[row.verdict].capitalize())


def _charts(agent: AgentClient, run_id: str) -> None:
    live = agent.run_live(run_id)
    if live.points:
        components.chart(charts.throughput(live.points), "run_throughput")
        components.chart(charts.acceptance(live.points, live.per_position), "run_acceptance")
        components.chart(charts.latency(live.points), "run_latency")
    else:
        st.info("No live readings were stored with this run.")
    telemetry = agent.run_telemetry(run_id)
    for device in charts.devices(telemetry.samples):
        if charts.component_bytes(telemetry.samples[-1], device):
            components.chart(charts.memory(telemetry.samples, device), f"run_memory_{device}")
    st.caption(fmt.plain(telemetry.source))


def _configuration(detail: RunDetail) -> None:
    engine, request = detail.bench.engine, detail.bench.request
    st.markdown("**Command line of the engine**")
    st.code(form.command_text(engine.argv) or "unknown: the server was started by somebody else", language=None)
    left, right = st.columns(2)
    with left:
        _pairs("Load test", {**request.model_dump(mode="json"), "seed": detail.seed})
        _pairs("Environment set for the engine", engine.env)
        _pairs("Memory ledger", {name: fmt.memory(value) for name, value in engine.ledger.items()})
    with right:
        _pairs("Versions", {**detail.versions, "engine": engine.version})
        _pairs("Host", {name: value for name, value in detail.host.items() if name != "environment"})
        _pairs("Effective settings of the engine", engine.effective)
    inherited = detail.host.get("environment")
    with st.expander("Environment that the engine inherited"):
        _pairs("Inherited, secrets redacted", dict(inherited) if isinstance(inherited, dict) else {})
    if engine.config_hash:
        st.markdown(f"Configuration hash {fmt.code_word(engine.config_hash)}")
    st.markdown("**Engine log** " + (fmt.code_word(detail.log) if detail.log else "not known"))


def _pairs(title: str, mapping: dict[str, object] | dict[str, str] | dict[str, str | None]) -> None:
    st.markdown(f"**{title}**")
    if mapping:
        components.table(tables.pairs(mapping), f"{title}, {len(mapping)} values", height="auto")
    else:
        st.caption("none stored")


def _requests(agent: AgentClient, run_id: str) -> None:
    records = agent.run_records(run_id)
    failed = sum(not record.ok for record in records)
    st.caption(f"{len(records)} requests, {failed} failed; warm-up requests are marked and not counted in the results.")
    rows = tables.record_rows(records[:SHOWN_REQUESTS])
    if len(records) > SHOWN_REQUESTS:
        st.caption(f"The first {SHOWN_REQUESTS} are shown; the export holds all.")
    config = {name: st.column_config.NumberColumn(name, format="%.1f") for name in ("TTFT (ms)", "Total (ms)")} | {
        "Accept length": st.column_config.NumberColumn("Accept length", format="%.2f")
    }
    st.dataframe(
        rows,
        hide_index=True,
        placeholder="n/a",
        alt=f"{len(records)} requests, {failed} failed",
        column_config=config,
        key="run_requests",
    )


def _notes(agent: AgentClient, detail: RunDetail) -> None:
    row = detail.row
    note, tags = f"note_{row.id}", f"tags_{row.id}"
    st.session_state.setdefault(note, row.note)
    st.session_state.setdefault(tags, ", ".join(row.tags))
    st.text_area("Note", key=note, persist_state="session", height=90)
    st.text_input("Tags", key=tags, persist_state="session", help="Separated by commas.")
    with st.container(horizontal=True):
        st.button(
            "Save note and tags", key="save_note", type="primary", on_click=_save, args=(agent, row.id, note, tags)
        )
        st.button(
            "Unpin" if row.pinned else "Pin",
            key="pin",
            icon=":material/keep_off:" if row.pinned else ":material/keep:",
            on_click=commands.patch_run,
            args=(agent, row.id, RunPatch(pinned=not row.pinned)),
        )
        st.download_button(
            "Download export",
            data=lambda: agent.export_run(row.id),
            file_name=f"{row.id}.zip",
            mime="application/zip",
            key="export",
            icon=":material/download:",
            on_click="ignore",
            help="The whole run in one file; another Slipstream reads it with Import.",
        )


def _save(agent: AgentClient, run_id: str, note: str, tags: str) -> None:
    state = st.session_state
    commands.patch_run(agent, run_id, RunPatch(note=str(state[note]), tags=tags_of(str(state[tags]))))


def import_upload(agent: AgentClient) -> None:
    """The upload field for an exported run."""
    with st.expander("Import an exported run", icon=":material/upload:"):
        st.file_uploader("Exported run", type=["zip"], key=session.UPLOAD, help="A file that Download export wrote.")
        st.button(
            "Import",
            key="import",
            disabled=st.session_state.get(session.UPLOAD) is None,
            on_click=commands.import_run,
            args=(agent,),
        )
