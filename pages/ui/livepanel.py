"""The right side of the Tune page: what the engine and the load test are doing. Only reads; the agent does the work."""

from collections.abc import Sequence

import streamlit as st

from backend.agent.client import AgentClient
from backend.schema.engine import EngineState, EngineStatus
from backend.schema.host import Status
from backend.schema.load import Bench, LivePoint, LoadState, LoadStatus
from pages.ui import charts, components, live, session, tables
from pages.ui import format as fmt
from pages.ui.labels import ENGINE_STATES, LOAD_STATES, PHASE_ICONS, PHASE_WORDS, component_label

LOG_LINES = 30
STALE_POINTS = 3  # a reading of the last three ticks still counts as the present one

# label, field of a live point, % if a share, why there may be none
KPIS = (
    ("Output (tok/s)", "output_tok_s", "", "no token in the last seconds"),
    ("Per user (tok/s)", "tok_s_user", "", "no stream of two tokens yet"),
    ("Accept length", "accept_length", "", "the engine reports no speculation (MTP off)"),
    ("Accept rate", "accept_rate", "%", "the engine reports no speculation (MTP off)"),
    ("TTFT (ms)", "ttft_ms", "", "no first token in the last seconds"),
    ("ITL (ms)", "itl_ms", "", "no second token in the last seconds"),
)


def draw(agent: AgentClient) -> None:
    """The body of the ticking fragment. Draws the whole page anew when something began or ended."""
    with components.page_errors():
        status = agent.status()
        if live.signature(status) != st.session_state.get(session.SEEN):
            st.rerun()
        engine, load = live.current_engine(status), live.current_load(status)
        if engine is not None and live.is_moving(engine):
            _launch_progress(agent, engine)
        elif load is not None:
            _load(agent, load, engine)
        if live.is_serving(engine):
            _memory(agent)
        _updated(status)


def failure(engine: EngineStatus) -> None:
    """Why a launch failed or an engine went away."""
    found = engine.failure
    if engine.state is not EngineState.FAILED or found is None:
        return
    where = f" (log line {found.line})" if found.line else ""
    st.error(
        f"**Cause**{where}: {fmt.plain(found.cause)}\n\n**What to do**: {fmt.plain(found.advice)}",
        title=f"The engine failed: {found.failure_class.replace('_', ' ')}",
        icon=":material/error:",
    )


def failure_details(agent: AgentClient, engine: EngineStatus) -> None:
    """How far a failed launch came, and the end of its log."""
    if engine.state is EngineState.FAILED:
        _phases(engine)
        _log_tail(agent, engine)


def launch_details(agent: AgentClient, engine: EngineStatus) -> None:
    """How the launch of a serving engine went: phases, memory ledger, warnings, log."""
    for alarm in engine.alarms:
        st.warning(fmt.plain(alarm), title="The engine needs a look")
    for warning in engine.warnings:
        st.caption(f":material/warning: {fmt.plain(warning)}")
    title = f"Ready in {fmt.seconds(engine.ready_seconds)}: phases, memory and log"
    with st.expander(title, key="launch_details", on_change="rerun") as expander:
        if expander.open:
            _phases(engine)
            if engine.ledger:
                rows = [
                    {
                        "Component": component_label(name),
                        "Memory": fmt.memory(item.bytes),
                        "Read from": f"log line {item.line}" if item.line else "the engine's report",
                    }
                    for name, item in engine.ledger.items()
                ]
                components.table(rows, f"Memory of {len(rows)} components", numbers=["Memory"])
            _log_tail(agent, engine)


# ---- a launch


def _launch_progress(agent: AgentClient, engine: EngineStatus) -> None:
    label = ENGINE_STATES[engine.state][0]
    with st.container(border=True):
        st.subheader(f"Engine: {label}, {fmt.seconds(engine.elapsed_s)}")
        _phases(engine)
        _log_tail(agent, engine)


def _phases(engine: EngineStatus) -> None:
    lines = ["| Phase | State | Time |", "|:---|:---|---:|"]
    for row in tables.phase_rows(engine):
        state = PHASE_WORDS[row.state] + (f", {fmt.plain(row.detail)}" if row.detail else "")
        lines.append(f"| {PHASE_ICONS[row.state]} {row.label} | {state} | {row.seconds} |")
    st.markdown("\n".join(lines))


def _log_tail(agent: AgentClient, engine: EngineStatus) -> None:
    buffer = session.log_buffer(engine.id)
    buffer.add(agent.engine_log(engine.id, buffer.cursor))
    tail = buffer.tail(LOG_LINES)
    st.caption(f"Log {fmt.plain(engine.log or '')}" + ("" if tail else ": no line yet"))
    if tail:
        with st.container(height=230, autoscroll=True, key=f"log_{engine.id}"):
            st.code(tail, language=None, wrap_lines=True)


# ---- a load test


def _load(agent: AgentClient, load: LoadStatus, engine: EngineStatus | None) -> None:
    buffer = session.load_buffer(load.id)
    if live.is_loading(load) or buffer.status is None or live.is_loading(buffer.status):
        buffer.add(agent.load_live(load.id, buffer.cursor, buffer.boot))
    points = list(buffer.points)
    if live.is_loading(load):
        _progress(load)
        _kpis(points)
    else:
        _summary(agent, load, engine)
    if points:
        components.chart(charts.throughput(points), "live_throughput")
        if any(point.accept_length is not None for point in points):
            components.chart(charts.acceptance(points, buffer.per_position), "live_acceptance")
        components.chart(charts.latency(points), "live_latency")


def _progress(load: LoadStatus) -> None:
    progress = load.progress
    label, color, icon = LOAD_STATES[load.state]
    parts = [f"level {progress.level_index + 1} of {progress.levels}"] if progress.levels else []
    parts += [fmt.users(progress.level)] if progress.level else []
    parts += [f"{progress.done} of {progress.total} requests" if progress.total else f"{progress.done} requests done"]
    parts += [fmt.seconds(progress.elapsed_s)]
    if progress.message and load.state is not LoadState.RUNNING:  # while it runs, the parts above say it
        parts.append(fmt.plain(progress.message))
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader("Load test", width="content")
        st.badge(label, color=color, icon=icon)
        st.markdown(" · ".join(parts), width="content")
    if progress.fraction is not None:
        st.progress(min(max(progress.fraction, 0.0), 1.0))


def _kpis(points: Sequence[LivePoint]) -> None:
    absent: dict[str, list[str]] = {}
    with st.grid(4, min_column_width=110):
        for label, name, unit, reason in KPIS:
            value = recent(points, name)
            if value is None:
                absent.setdefault(reason, []).append(label)
            shown = fmt.share(value) if unit == "%" else fmt.number(value)
            st.metric(label, shown, border=True)
        last = points[-1] if points else None
        st.metric("In flight", fmt.NA if last is None else str(last.in_flight), border=True)
        st.metric("Failed", fmt.NA if last is None else str(last.failed), border=True)
    if absent:
        listed = (f"{', '.join(labels)}: {reason}" for reason, labels in absent.items())
        st.caption("n/a: " + " · ".join(listed))


def recent(points: Sequence[LivePoint], name: str) -> float | None:
    """The newest reading of a live figure, unless it is older than a few ticks."""
    for point in reversed(points[-STALE_POINTS:]):
        value: float | None = getattr(point, name)
        if value is not None:
            return value
    return None


def _summary(agent: AgentClient, load: LoadStatus, engine: EngineStatus | None) -> None:
    label, color, icon = LOAD_STATES[load.state]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader("Last load test", width="content")
        st.badge(label, color=color, icon=icon)
        st.page_link(
            "runs.py", label=f"Open run {load.run_id}", icon=":material/history:", query_params={"run": load.run_id}
        )
    if load.failure:
        title = "The load test failed" if load.state is LoadState.FAILED else "The load test ended early"
        st.error(fmt.plain(load.failure), title=title)
    result = _result(agent, load)
    measured = result.engine.config_hash
    if engine is not None and measured and engine.config_hash and measured != engine.config_hash:
        st.info(f"Measured with configuration {fmt.code_word(measured)}, not with the engine's present one.")
    components.levels_table(result.levels, key="summary")


def _result(agent: AgentClient, load: LoadStatus) -> Bench:
    """The final result never changes, so it is asked for once."""
    kept = st.session_state.get(session.RESULT)
    if not isinstance(kept, tuple) or kept[0] != load.id:
        kept = st.session_state[session.RESULT] = (load.id, agent.load_result(load.id))
    bench: Bench = kept[1]
    return bench


# ---- memory


def _memory(agent: AgentClient) -> None:
    buffer = session.telemetry_buffer(agent.url)
    buffer.add(agent.telemetry(buffer.cursor, buffer.boot))
    samples = list(buffer.samples)
    if not samples:
        return
    for device in charts.devices(samples):
        if charts.component_bytes(samples[-1], device):
            components.chart(charts.memory(samples, device, live=True), f"live_memory_{device}")
    whole = [
        f"{fmt.plain(d.name)}: {fmt.memory(d.memory_used_bytes)} of {fmt.memory(d.memory_total_bytes)} used"
        for d in samples[-1].devices
    ]
    st.caption(" · ".join([*whole, fmt.plain(buffer.source)]))


def _updated(status: Status) -> None:
    interval = live.tick_interval(status)
    if interval is not None:
        st.caption(f"Updated {fmt.clock_now()}, every {interval:.0f} s")
