"""Tune: configure, restart, load-test, watch."""

import streamlit as st

from pages.ui import client, components, lastgood, launch, livepanel, loadpanel, session, sidebar
from pages.ui.live import current_engine, is_moving, is_serving, signature, tick_interval

st.title("Tune", anchor=False)
with components.page_errors():
    host = sidebar.chosen_host()
    agent = client.agent(host)
    status = agent.status()
    st.session_state[session.SEEN] = signature(status)
    components.state_strip(status, host.name)
    with st.container():  # containers keep their place, so that what comes and goes in them moves no widget
        components.show_notice()
    engine = current_engine(status)
    watch = st.fragment(livepanel.draw, run_every=tick_interval(status), key="live")
    left, right = st.columns([5, 7], gap="medium")
    with left:
        launch.draw(agent, status)
    with right:
        above = st.container()
        loadpanel.draw(agent, status)
        below = st.container()
    with above:
        if engine is None:
            components.first_steps()
        else:
            livepanel.failure(engine)
        if lastgood.is_offered(agent, status):
            lastgood.draw(agent, status)
        if engine is not None:
            livepanel.failure_details(agent, engine)
    with above if is_moving(engine) else below:
        watch(agent)
    with below:
        if engine is not None and is_serving(engine):
            livepanel.launch_details(agent, engine)
