"""The last configuration that became ready, one click away when the present one did not."""

import streamlit as st

from backend.agent.client import AgentClient
from backend.schema.engine import EngineState
from backend.schema.host import Status
from pages.ui import commands, form, launch
from pages.ui.live import current_engine, is_moving, is_serving


def is_offered(agent: AgentClient, status: Status) -> bool:
    """After a failure always; with no engine only if the form holds something else, for Start does the same."""
    engine = current_engine(status)
    if status.last_good is None or is_serving(engine) or is_moving(engine):
        return False
    failed = engine is not None and engine.state is EngineState.FAILED
    return failed or launch.differs(agent, status, status.last_good)


def draw(agent: AgentClient, status: Status) -> None:
    if status.last_good is None:
        return
    with st.container(border=True, key="last_good"):
        st.markdown("**Last good configuration**")
        st.code(form.command_text(form.command_line(status.last_good)), language=None, wrap_lines=True)
        st.button(
            "Start last good configuration",
            key="start_last_good",
            icon=":material/settings_backup_restore:",
            on_click=commands.start_last_good,
            args=(agent,),
        )
