"""The launch form on the Tune page: controls that the engine declares, the command line, Start and Stop."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from backend.agent.client import AgentClient
from backend.schema.engine import EngineKind, EngineStatus, Flag, LaunchRequest, Scan
from backend.schema.host import Status
from pages.ui import checkpanel, client, commands, form, session
from pages.ui import format as fmt
from pages.ui.labels import KINDS
from pages.ui.live import current_engine, current_load, is_loading, is_moving, is_serving

GROUPS = (("backends", "Backends"), ("memory", "Memory and batch"))


def draw(agent: AgentClient, status: Status) -> None:
    """The whole card."""
    engine = current_engine(status)
    _first_values(agent, status, engine)
    scan, unreadable = client.scan(agent, status.agent.boot, *session.chosen_engine())
    session.start_controls(scan)
    draft = session.draft(scan)
    made = form.plan(scan, draft)
    request = form.launch_request(draft, made)
    changed = _changes(scan, request, engine)
    with st.container(border=True, key="launch_form"):
        st.subheader("Engine configuration")
        _engine_fields(agent, status, unreadable)
        _speculation(scan, draft, made, changed)
        for group, title in GROUPS:
            _group(scan, draft, made, changed, group, title)
        _free_fields(made)
        st.caption("Command line")
        st.code(form.command_text(form.command_line(request)), language=None, wrap_lines=True)
        if not made.problems:
            checkpanel.draw(agent, status, scan, request)
        _buttons(agent, status, engine, made, changed)


def _first_values(agent: AgentClient, status: Status, engine: EngineStatus | None) -> None:
    """Once per session and host: the newest engine's settings, or the last that ran well, or the defaults."""
    wanted = st.session_state.pop(session.REFILL, None)
    if wanted is None and st.session_state.get(session.FILLED):
        return
    known = wanted or (engine.request if engine is not None else None) or status.last_good
    if known is None or known.kind is EngineKind.ATTACH:
        session.fill(form.Draft())
        return
    st.session_state[session.KIND] = (known.kind or EngineKind.REFERENCE).value
    st.session_state[session.ENGINE] = known.engine or ""
    scan, _ = client.scan(agent, status.agent.boot, *session.chosen_engine())
    session.fill(form.draft_from(scan, known))


def differs(agent: AgentClient, status: Status, request: LaunchRequest) -> bool:
    """Whether the form holds something else than this configuration."""
    scan, _ = client.scan(agent, status.agent.boot, *session.chosen_engine())
    draft = session.draft(scan)
    return bool(form.changes(scan, form.launch_request(draft, form.plan(scan, draft)), request))


def _changes(scan: Scan, request: LaunchRequest, engine: EngineStatus | None) -> list[str]:
    if engine is None or engine.request is None or not is_serving(engine):
        return []
    return form.changes(scan, request, engine.request)


def _engine_fields(agent: AgentClient, status: Status, unreadable: str | None) -> None:
    st.radio(
        "Engine",
        [EngineKind.REFERENCE.value, EngineKind.SGLANG.value],
        format_func=lambda kind: KINDS[EngineKind(kind)],
        key=session.KIND,
        horizontal=True,
        persist_state="session",
        help="The reference engine is a small real engine on the CPU, for trying everything without a GPU.",
    )
    if st.session_state[session.KIND] == EngineKind.SGLANG.value:
        _sglang_fields(agent, status)
    if unreadable:
        problem(f"Its flags could not be read: {unreadable}")
    st.text_input(
        "Model",
        key=session.MODEL,
        persist_state="session",
        placeholder="empty: the embedded tiny checkpoint",
        help="Checkpoint directory on the agent's machine. Empty serves the tiny Qwen3.5-MoE checkpoint in `assets/`.",
    )


def _sglang_fields(agent: AgentClient, status: Status) -> None:
    found = client.doctor(agent, status.agent.boot).engines
    paths = [env.python for env in found if env.kind == EngineKind.SGLANG.value]
    st.text_input(
        "SGLang",
        key=session.ENGINE,
        persist_state="session",
        placeholder=paths[0] if paths else "/path/to/venv/bin/python",
        help="Interpreter, source tree or site-packages folder of the SGLang to launch, on the agent's machine.",
    )
    if paths:
        st.caption(f"Found on this host: {', '.join(fmt.code_word(path) for path in paths)}")
    else:
        st.caption("No SGLang environment was found on this host; the Host page says where was looked.")
    left, right = st.columns(2)
    with left:
        st.text_input(
            "Interpreter",
            key=session.PYTHON,
            persist_state="session",
            placeholder="for a source tree",
            help="The Python that runs a source tree; needless where an interpreter was given above.",
        )
    with right:
        st.text_input(
            "GPUs",
            key=session.GPUS,
            persist_state="session",
            placeholder="all",
            help="GPU numbers in bus order, as the Host page lists them: `0, 1`.",
        )


def _speculation(scan: Scan, draft: form.Draft, made: form.Plan, changed: Sequence[str]) -> None:
    if not form.has_mtp(scan):
        return
    algorithm = scan.flag(form.ALGORITHM)
    st.toggle(
        label_of("MTP speculative decoding", form.ALGORITHM in changed),
        key=session.MTP,
        persist_state="session",
        help=help_of(algorithm),
    )
    controls = [(c, f) for c, f in form.declared(scan) if c.group == "speculation"]
    for column, (control, flag) in zip(st.columns(max(len(controls), 1)), controls, strict=False):
        with column:
            _control(control, flag, draft, made, changed)


def _group(scan: Scan, draft: form.Draft, made: form.Plan, changed: Sequence[str], group: str, title: str) -> None:
    controls = [(c, f) for c, f in form.declared(scan) if c.group == group]
    if not controls:
        return
    st.markdown(f"**{title}**")
    for start in range(0, len(controls), 2):
        for column, (control, flag) in zip(st.columns(2), controls[start : start + 2], strict=False):
            with column:
                _control(control, flag, draft, made, changed)


def _control(control: form.Control, flag: Flag, draft: form.Draft, made: form.Plan, changed: Sequence[str]) -> None:
    """The widget that fits the flag's type."""
    key = session.control_key(draft.kind, control.key)
    derived = control is form.TOKENS and draft.values.get("topk") in (None, 1)
    if derived:
        st.session_state[key] = form.draft_tokens(draft.values.get("steps"))
    common: dict[str, Any] = {
        "key": key,
        "persist_state": "session",
        "help": help_of(flag, "At top-k 1 this is draft steps + 1 and follows them." if derived else ""),
        "disabled": derived or (control.key in form.NEED_MTP and not draft.mtp),
    }
    label = label_of(control.label, flag.flag in changed)
    default = "not set" if flag.default is None else f"default: {flag.default}"
    if flag.choices:
        _choice(label, flag, default, common)
    elif flag.type == "bool":
        st.toggle(label, **common)
    elif flag.type == "int":
        st.number_input(label, value=None, step=1, placeholder=default, **common)
    elif flag.type == "float":
        st.number_input(label, value=None, step=0.01, format="%.2f", placeholder=default, **common)
    else:
        st.text_input(label, placeholder=default, **common)
    if control.key in made.problems:
        problem(made.problems[control.key])


def _choice(label: str, flag: Flag, default: str, common: dict[str, Any]) -> None:
    """A select box; a value that the engine does not know any more stays visible instead of vanishing."""
    typed = [form.typed_word(flag, choice) for choice in flag.choices or []]
    present = st.session_state.get(str(common["key"]))
    extra = [present] if present is not None and present not in typed else []
    st.selectbox(
        label,
        [*typed, *extra],
        index=None,
        placeholder=default,
        accept_new_options=not flag.choices_complete,
        **common,
    )


def _free_fields(made: form.Plan) -> None:
    with st.expander("Environment variables, other flags, port", expanded=bool({"env", "other"} & set(made.problems))):
        st.text_area(
            "Environment variables",
            key=session.ENV,
            persist_state="session",
            placeholder="KEY=VALUE, one per line",
            height=80,
            help="Set for the engine process, on top of the agent's own environment. Stored with every run.",
        )
        if "env" in made.problems:
            problem(made.problems["env"])
        st.text_area(
            "Any other flag",
            key=session.OTHER,
            persist_state="session",
            placeholder="--flag value --switch",
            height=80,
            help="Words of a command line, split as a shell would but never run by one. "
            "Each flag is checked against what the engine declares.",
        )
        if "other" in made.problems:
            problem(made.problems["other"])
        st.number_input(
            "Port",
            value=None,
            min_value=1,
            max_value=65535,
            step=1,
            key=session.PORT,
            persist_state="session",
            placeholder="the agent picks a free one",
            help="Tested before anything is loaded.",
        )


def _buttons(
    agent: AgentClient, status: Status, engine: EngineStatus | None, made: form.Plan, changed: Sequence[str]
) -> None:
    load = current_load(status)
    serving, moving = is_serving(engine), is_moving(engine)
    blocked = _why_not(made, moving, is_loading(load))
    if changed:
        listed = ", ".join(fmt.code_word(name) for name in changed)
        st.markdown(f":orange[:material/restart_alt: changed: needs a restart] {listed}")
    with st.container(horizontal=True):
        st.button(
            "Restart engine" if serving else "Start engine",
            key="start_engine",
            type="primary",
            icon=":material/restart_alt:" if serving else ":material/play_arrow:",
            disabled=blocked is not None,
            help=blocked or "Stops the engine that runs, waits for its memory, and launches this configuration.",
            on_click=commands.start_engine,
            args=(agent,),
        )
        if engine is not None and (serving or moving):
            st.button(
                "Cancel launch" if moving and not serving else "Stop engine",
                key="stop_engine",
                icon=":material/stop:",
                disabled=engine.state == "stopping",
                on_click=commands.stop_engine,
                args=(agent, engine.id),
            )


def _why_not(made: form.Plan, moving: bool, loading: bool) -> str | None:
    if made.problems:
        return "Correct the marked fields first."
    if moving:
        return "An engine is being started or stopped."
    return "A load test runs on the engine; stop it first." if loading else None


def label_of(label: str, changed: bool) -> str:
    return f"{label} :orange-badge[changed]" if changed else label


def help_of(flag: Flag | None, more: str = "") -> str:
    """The engine's own help text, and where it stands in the engine's source."""
    if flag is None:
        return more
    where = f"{flag.file}:{flag.line}" if flag.file and flag.line else flag.file or ""
    source = fmt.code_word(flag.flag) + (f" at {fmt.code_word(where)}" if where else "")
    parts = [fmt.plain(flag.help), more, source]
    return "\n\n".join(part for part in parts if part)


def problem(text: str) -> None:
    """A message under the field that it is about."""
    st.markdown(f":red[:material/error: {fmt.plain(text)}]")
