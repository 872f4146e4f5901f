"""The sidebar under the navigation: which host, and what it is doing."""

import streamlit as st

from backend.errors import SlipstreamError
from pages.ui import client, components, session
from pages.ui import format as fmt
from pages.ui.labels import KINDS, LOAD_STATES
from pages.ui.live import current_engine, current_load, is_loading


def chosen_host() -> client.Host:
    """The host that the pages look at. One that has left the secrets file falls back to this machine."""
    wanted = st.session_state.get(session.HOST, client.LOCAL)
    return next((host for host in client.hosts() if host.name == wanted), client.Host(client.LOCAL))


def draw() -> None:
    """Never stops a page: what is wrong is said there, with the remedy."""
    with st.sidebar:
        try:
            _host_choice()
            _state()
        except SlipstreamError:
            st.badge("agent unreachable", color="red", icon=":material/link_off:")


def _host_choice() -> None:
    names = [host.name for host in client.hosts()]
    if len(names) > 1:
        st.selectbox(
            "Host",
            names,
            key=session.HOST,
            persist_state="session",
            on_change=session.forget_fetched,
            help="Hosts come from `.streamlit/secrets.toml`. Jobs on the other hosts keep running.",
        )


def _state() -> None:
    status = client.agent(chosen_host()).status()
    engine, load = current_engine(status), current_load(status)
    st.markdown("**Engine**")
    components.engine_badge(engine)
    if engine is not None:
        st.caption(f"{KINDS[engine.kind]} · {fmt.plain(fmt.name_of_path(engine.model))}")
    st.markdown("**Load test**")
    if load is None or not is_loading(load):
        st.badge("none running", color="gray", icon=":material/remove:")
    else:
        label, color, icon = LOAD_STATES[load.state]
        st.badge(label, color=color, icon=icon)
    st.caption(f"Agent {status.agent.version} on {fmt.plain(status.agent.host)}")
    if status.agent.store_error:
        st.error(fmt.plain(status.agent.store_error), title="The store has a problem")
