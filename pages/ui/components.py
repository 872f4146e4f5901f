"""Streamlit composites that several pages use."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import streamlit as st

from backend.errors import AgentError, SlipstreamError, TokenError
from backend.schema.engine import EngineKind, EngineStatus
from backend.schema.host import Status
from backend.schema.load import LevelResult
from pages.ui import client, session, tables
from pages.ui import format as fmt
from pages.ui.charts import Chart
from pages.ui.labels import ENGINE_STATES, KINDS, REFERENCE_NOTE, VERDICT_SIGNS, VERDICTS
from pages.ui.live import current_engine

log = logging.getLogger(__name__)

# Dragging zooms and a double click ends it; the row of buttons would cover titles and legends.
CHART_CONFIG = {"displayModeBar": False}


@contextmanager
def page_errors() -> Iterator[None]:
    """The top of every page: what goes wrong below becomes a message with a remedy, never a traceback."""
    try:
        yield
    except SlipstreamError as error:
        show_error(error)
    except Exception:  # the top of a page; the log keeps the traceback
        log.exception("a page failed")
        st.error(
            "This is a fault of Slipstream. The terminal that runs the dashboard shows the details; "
            "running jobs are not affected.",
            title="This page could not be drawn",
            icon=":material/bug_report:",
        )
        retry_button()


def show_error(error: SlipstreamError) -> None:
    """One of our own errors, with what to do about it."""
    if isinstance(error, TokenError):
        title, remedy = "The agent refused the token", "Correct the host's `token` in `.streamlit/secrets.toml`."
    elif isinstance(error, AgentError) and "answered with something that is no" in str(error):
        title, remedy = "The agent is of another version", "Update Slipstream on that host and start its agent again."
    elif isinstance(error, AgentError):
        title = "The agent cannot be reached"
        remedy = "Retry looks again, and starts an agent on this machine if none runs."
    else:
        title, remedy = "That did not work", ""
    st.error(f"{fmt.plain(str(error))}\n\n{remedy}".strip(), title=title, icon=":material/error:")
    retry_button()


def retry_button() -> None:
    """Looks for the agent again. The whole page is drawn anew, also from within a fragment: it holds the old client."""
    if st.button("Retry", key="retry", icon=":material/refresh:"):
        client.forget_agents()
        st.rerun()


def show_notice() -> None:
    """What the last command answered; shown until the next one."""
    notice = session.take_notice()
    if notice is None:
        return
    kind, title, text = notice
    {"error": st.error, "success": st.success}.get(kind, st.info)(fmt.plain(text), title=title)


def chart(made: Chart, key: str) -> None:
    """A still or live figure with its text alternative."""
    st.plotly_chart(made.figure, key=key, alt=made.alt, config=CHART_CONFIG, height=int(made.figure.layout.height))


def engine_badge(engine: EngineStatus | None) -> None:
    if engine is None:
        st.badge("no engine", color="gray", icon=":material/power_off:")
        return
    label, color, icon = ENGINE_STATES[engine.state]
    st.badge(label, color=color, icon=icon)


def state_strip(status: Status, host_name: str) -> None:
    """One line: where, what, which model, in which state."""
    engine = current_engine(status)
    with st.container(horizontal=True, vertical_alignment="center", border=True, gap="small", key="state_strip"):
        engine_badge(engine)
        parts = [f"**Host** {fmt.plain(status.agent.host)}" + ("" if host_name == client.LOCAL else f" ({host_name})")]
        if engine is not None:
            version = f" {engine.version.removeprefix(f'{engine.kind}-')}" if engine.version else ""
            parts += [
                f"**Engine** {KINDS[engine.kind].split(' (')[0]}{version}",
                f"**Model** {fmt.plain(fmt.name_of_path(engine.model))}",
                f"**Configuration** {fmt.code_word(engine.config_hash)}" if engine.config_hash else "",
            ]
        st.markdown(" · ".join(part for part in parts if part), width="content")
        if engine is not None:
            reference_note(engine.kind)


def verdict_badge(verdict: str) -> None:
    color, icon = VERDICT_SIGNS[verdict]
    st.badge(VERDICTS[verdict], color=color, icon=icon)


def glossary() -> None:
    """What the figures mean, from their declarations."""
    with st.expander("What the figures mean", icon=":material/menu_book:", key="glossary", on_change="rerun") as closed:
        if closed.open:
            rows = tables.glossary_rows()
            lines = ["| Figure | How it is computed | Needs |", "|:---|:---|:---|"]
            for row in rows:
                unit = f" ({row['Unit']})" if row["Unit"] else ""
                cells = (row["Figure"] + unit, row["How it is computed"], row["Needs"])
                lines.append("| " + " | ".join(fmt.plain(cell) for cell in cells) + " |")
            st.markdown("\n".join(lines))


def reference_note(kind: EngineKind) -> None:
    """Wherever numbers of the reference engine are shown."""
    if kind is EngineKind.REFERENCE:
        st.caption(f":material/info: {REFERENCE_NOTE}", width="content")


def table(
    rows: Sequence[object],
    alt: str,
    key: str | None = None,
    numbers: Sequence[str] = (),
    height: Literal["content", "auto"] = "content",
) -> None:
    """Rows of text; the columns in `numbers` are right-aligned. `auto` scrolls within ten rows."""
    config = {name: st.column_config.TextColumn(name, alignment="right") for name in numbers}
    st.dataframe(
        rows, hide_index=True, placeholder="n/a", alt=alt, key=key, column_config=config, height=height, row_height=29
    )


def levels_table(levels: Sequence[LevelResult], key: str) -> None:
    """Every metric of every level, the reasons for what is missing, and the failed requests by class."""
    if not levels:
        st.info("No level was finished, so there are no figures.")
        return
    heads = tables.level_heads(levels)
    best = max(levels, key=lambda level: level.metrics.output_tok_s or 0.0)
    alt = f"Results of {len(levels)} levels; most output tok/s: {fmt.number(best.metrics.output_tok_s)}"
    rows = tables.level_rows(levels)
    table(rows, alt, key=key, numbers=heads)
    reasons = tables.absences(levels)
    if reasons:
        st.caption("n/a: " + " · ".join(fmt.plain(reason) for reason in reasons))
    client_verdict(levels)
    failed = tables.failures(levels)
    if failed:
        st.markdown("**Failed requests by class**")
        table(failed, f"{len(failed)} classes of failed requests", key=f"{key}_failed")


def client_verdict(levels: Sequence[LevelResult]) -> None:
    """Whether the load client itself was the limit: then the figures are the client's, not the engine's."""
    bound = [h for h, lv in zip(tables.level_heads(levels), levels, strict=True) if lv.client.verdict == "client_bound"]
    if bound:
        st.warning(
            f"At {', '.join(bound)} the load client did not keep up; these figures are a lower bound of the engine's.",
            title=VERDICTS["client_bound"].capitalize(),
        )


def first_steps() -> None:
    """What a newcomer does next."""
    st.info(
        "1. **Start engine**: the built-in reference engine serves a tiny model in a few seconds.\n"
        "2. **Start load test**: tokens, latency, acceptance and memory appear here while it runs.\n"
        "3. Turn **MTP speculative decoding** on, restart, test again, and compare the two runs under Compare A/B.",
        title="No engine runs yet",
        icon=":material/flag:",
    )
