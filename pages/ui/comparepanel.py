"""Two runs side by side on the Compare page."""

import streamlit as st

from backend.agent.client import AgentClient
from backend.schema.run import Comparison, RunDetail
from pages.ui import charts, components, tables
from pages.ui import format as fmt
from pages.ui.labels import COMPARED

# The figures worth a picture, as `Comparison.metrics` names them.
PICTURES = ("output_tok_s", "tok_s_user", "ttft_ms_p50", "accept_length")
ICONS = {"a_better": ":material/arrow_back:", "b_better": ":material/arrow_forward:"}


def draw(agent: AgentClient, a: str, b: str) -> None:
    found = agent.compare(a, b)
    details = agent.run(a), agent.run(b)
    _verdict(found, *details)
    _configuration(found)
    st.subheader("Figures")
    components.table(
        tables.compared_rows(found.metrics), _alt(found), key="compared", numbers=["Users", "A", "B", "B / A"]
    )
    _pictures(agent, found, a, b)
    st.caption(f"How this was compared: {fmt.plain(found.design)}")
    components.glossary()


def _verdict(found: Comparison, a: RunDetail, b: RunDetail) -> None:
    """In words, with the confounds beside it: a difference that has another cause is none."""
    for detail in {d.bench.engine.kind: d for d in (a, b)}.values():
        components.reference_note(detail.bench.engine.kind)
    text = {
        "a_better": "Run A is better",
        "b_better": "Run B is better",
        "not_distinguishable": "The runs are not distinguishable: the differences are within their own scatter",
        "not_comparable": "The runs are not comparable",
    }[found.verdict]
    shown = {"a_better": st.success, "b_better": st.success, "not_comparable": st.warning}.get(found.verdict, st.info)
    shown(f"A is {fmt.code_word(found.a)}, B is {fmt.code_word(found.b)}.", title=text, icon=ICONS.get(found.verdict))
    if found.confounds:
        listed = "\n".join(f"- {fmt.plain(confound)}" for confound in found.confounds)
        st.warning(listed, title="Before you believe it", icon=":material/warning:")


def _configuration(found: Comparison) -> None:
    st.subheader("Configuration differences")
    if not found.config_diff:
        st.caption("None: both runs had the same configuration.")
        return
    rows = [
        {"Setting": d.setting, "A": "not set" if d.a is None else d.a, "B": "not set" if d.b is None else d.b}
        for d in found.config_diff
    ]
    components.table(rows, f"{len(rows)} settings differ", key="config_diff")


def _pictures(agent: AgentClient, found: Comparison, a: str, b: str) -> None:
    left, right = st.columns(2)
    drawn = 0
    for name in PICTURES:
        metrics = [m for m in found.metrics if m.name == name and (m.a is not None or m.b is not None)]
        if not metrics:
            continue
        labels = ["all" if m.concurrency is None else fmt.users(m.concurrency) for m in metrics]
        made = charts.bars(
            labels, [m.a for m in metrics], [m.b for m in metrics], tables.label_of(name), metrics[0].unit
        )
        with (left, right)[drawn % 2]:
            components.chart(made, f"bars_{name}")
        drawn += 1
    points_a, points_b = agent.run_live(a).points, agent.run_live(b).points
    if points_a and points_b:
        made = charts.overlay(points_a, points_b, "output_tok_s", "Output over the test", "tok/s")
        components.chart(made, "overlay_output")


def _alt(found: Comparison) -> str:
    counts = {words: sum(m.verdict == key for m in found.metrics) for key, words in COMPARED.items()}
    return "Figures of both runs: " + ", ".join(f"{n} {words}" for words, n in counts.items() if n)
