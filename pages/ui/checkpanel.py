"""What the engine would refuse or change about the configuration in the form, with fixes that one click applies."""

import streamlit as st

from backend.agent.client import AgentClient
from backend.flagwords import split_flags
from backend.schema.engine import EngineKind, LaunchRequest, Scan
from backend.schema.host import Status
from backend.schema.validate import Check, CheckFinding, CheckRequest
from pages.ui import client, session
from pages.ui import format as fmt
from pages.ui.labels import SEVERITIES


def draw(agent: AgentClient, status: Status, scan: Scan, request: LaunchRequest) -> None:
    """Findings below the command line. The reference engine's own words stand under its fields already."""
    if request.kind is not EngineKind.SGLANG or not (request.engine or request.python):
        return
    found, unreadable = client.check(agent, status.agent.boot, question(agent, status, request))
    if unreadable is not None:
        st.caption(fmt.plain(f"Not checked: {unreadable}"))
    if found is None:
        return
    for number, finding in enumerate(found.findings):
        _finding(number, finding, scan, request)
    _effective(found, scan, request)


def question(agent: AgentClient, status: Status, request: LaunchRequest) -> CheckRequest:
    """The configuration as `check` takes it, with the GPUs of the host."""
    gpus = client.doctor(agent, status.agent.boot).gpus
    return CheckRequest(
        model=request.model,
        engine=request.engine or request.python,
        env=request.env,
        flags=request.flags,
        gpu=gpus[0].name if gpus else None,
        gpu_count=len(gpus) or None,
    )


def _finding(number: int, finding: CheckFinding, scan: Scan, request: LaunchRequest) -> None:
    word, color, icon = SEVERITIES[finding.severity]
    place = finding.evidence
    where = f" {fmt.code_word(f'{place.file}:{place.line}')}" if place is not None and place.line else ""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f":{color}-badge[{icon} {word}] {fmt.plain(finding.message)}{where}")
        if finding.fix:
            words = fix_words(finding.fix)
            st.button(
                "Fix",
                key=f"fix_{number}_{finding.rule}",
                icon=":material/build:",
                help=f"Sets {fmt.code_word(words)}",
                on_click=_apply,
                args=(scan, request, finding.fix),
            )


def _effective(found: Check, scan: Scan, request: LaunchRequest) -> None:
    """Values that will run and were not asked for so."""
    asked = {_declared(scan, g.name): " ".join(g.values) or "true" for g in split_flags(request.flags, scan)}
    other = {flag: value for flag, value in found.effective.items() if asked.get(flag) != value}
    if other:
        listed = ", ".join(fmt.code_word(f"{flag} {value}") for flag, value in other.items())
        st.caption(f"Will run as: {listed}")


def fix_words(fix: dict[str, str]) -> str:
    """`--a 1 --b` of a fix; a switch has the value `true`."""
    return " ".join(f"{flag} {value}".removesuffix(" true") for flag, value in fix.items())


def fixed(scan: Scan, request: LaunchRequest, fix: dict[str, str]) -> LaunchRequest:
    """The request with the fix's flags in place of its own of the same name."""
    kept = [g for g in split_flags(request.flags, scan) if _declared(scan, g.name) not in fix]
    words = [word for given in kept for word in (given.name, *given.values)]
    return request.model_copy(update={"flags": [*words, *fix_words(fix).split()]})


def _declared(scan: Scan, name: str) -> str:
    flag = scan.flag(name)
    return flag.flag if flag is not None else name


def _apply(scan: Scan, request: LaunchRequest, fix: dict[str, str]) -> None:
    st.session_state[session.REFILL] = fixed(scan, request, fix)
