"""The parts of the Trace page."""

import shlex

import streamlit as st

from backend.errors import UsageError
from backend.paths import TINY_CHECKPOINT
from backend.schema.checkpoint import Inspection
from backend.schema.host import Status
from backend.schema.validate import Trace, TraceRequest, TraceStep
from backend.tracetext import trace_markdown
from pages.ui import components
from pages.ui import format as fmt
from pages.ui.labels import STEP_STATES, TRACE_VERDICTS
from pages.ui.live import current_engine

REFERENCE = "reference"


def ask(status: Status) -> TraceRequest | None:
    """The form. Its fields live in the address, so that a trace can be shared as a link."""
    engine = current_engine(status)
    request = engine.request if engine is not None else None
    known = st.query_params
    with st.form("trace"):
        left, right = st.columns(2)
        model = left.text_input(
            "Checkpoint",
            known.get("model", (engine.model if engine is not None else None) or str(TINY_CHECKPOINT)),
            help="A directory on the engine's host, or a hub id in its local cache. Only headers are read.",
        )
        path = right.text_input(
            "Engine",
            known.get("engine", (request.engine if request is not None else None) or REFERENCE),
            help="An SGLang source tree, site-packages directory, environment or interpreter; or `reference`.",
        )
        flags = st.text_input(
            "Flags",
            known.get("flags", shlex.join(request.flags) if request is not None else ""),
            help="As on the command line. Without --speculative-algorithm, NEXTN is assumed.",
        )
        if st.form_submit_button("Trace", type="primary", icon=":material/account_tree:"):
            st.query_params.from_dict({"model": model, "engine": path, "flags": flags})
    if not model.strip() or not path.strip():
        st.info("Name a checkpoint and an engine.")
        return None
    return TraceRequest(model=model.strip(), engine=path.strip(), flags=_words(flags))


def _words(text: str) -> list[str]:
    """UsageError for quotes that do not close."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the flags cannot be split into words ({error}): close the quotes") from error


def verdict(found: Trace) -> None:
    """The answer on top, and what was taken for granted."""
    word, color, icon = TRACE_VERDICTS[found.verdict]
    with st.container(border=True, key="trace_verdict"):
        st.markdown(f"### :{color}-badge[{icon} {word}] {fmt.plain(_sentence(found.summary))}")
        version = f", version {found.version}" if found.version else ""
        st.caption(fmt.plain(f"{found.architecture or 'no architecture'} · {found.model} · {found.engine}{version}"))
        for assumed in found.assumed:
            st.caption(fmt.plain(f"Assumed: {assumed}."))
        st.download_button(
            "Markdown",
            trace_markdown(found),
            file_name="mtp-trace.md",
            mime="text/markdown",
            icon=":material/download:",
            on_click="ignore",
        )


def steps(found: Trace) -> None:
    """Every proposition; its source opens on a click."""
    st.subheader("Steps")
    for step in found.steps:
        _, color, icon = STEP_STATES[step.status]
        title = f":{color}[{icon}] {fmt.plain(_sentence(step.proposition))}"
        with st.expander(title, expanded=step.status == "refuted"):
            st.markdown(fmt.plain(_sentence(step.detail)))
            _evidence(step)


def _evidence(step: TraceStep) -> None:
    if step.file is None:
        return
    place = f"{step.file}:{step.line}" if step.line else step.file
    st.caption(fmt.plain(place))
    if step.excerpt:
        st.code(step.excerpt, language="python", line_numbers=False)


def after_launch(found: Trace) -> None:
    """What source cannot settle."""
    st.subheader("To be verified after launch")
    for item in found.verify_after_launch:
        st.markdown(f"- {fmt.plain(_sentence(item.question))} {fmt.plain(_sentence(item.look_at))}.")


def checkpoint(found: Inspection) -> None:
    """What the checkpoint holds, part by part."""
    st.subheader("Checkpoint")
    quantization = found.quantization
    said = f"{quantization.method}, {quantization.algo}" if quantization.method else "not quantised"
    files = f"{found.shards.present} of {found.shards.declared} files"
    st.caption(fmt.plain(f"{found.parameters:,} parameters · {fmt.memory(found.bytes)} · {said} · {files}"))
    for warning in found.warnings:
        st.warning(fmt.plain(_sentence(warning.message)), icon=":material/warning:")
    rows = [
        {
            "Of": part.owner,
            "Part": part.role.replace("_", " "),
            "Tensors": f"{part.tensors:,}",
            "Parameters": f"{part.parameters:,}",
            "Memory": fmt.memory(part.bytes),
            "Stored as": " ".join(part.dtypes),
        }
        for part in found.parts
    ]
    if rows:
        components.table(rows, f"{len(rows)} parts")
    if found.mtp.why:
        st.caption(fmt.plain(f"MTP layer: {found.mtp.why}."))


def _sentence(text: str) -> str:
    """With a capital, unless it begins with the name of a file or a flag."""
    first = text.split(" ", 1)[0]
    return text if "." in first or "_" in first else f"{text[:1].upper()}{text[1:]}"
