"""Tune: configure, restart, load-test, watch."""

import streamlit as st

from pages.ui import client, commands, components, launch, livepanel, loadpanel, session, sidebar
from pages.ui.live import current_engine, is_moving, is_serving, signature, tick_interval

st.title("Tune", anchor=False)
with components.page_errors():
    host = sidebar.chosen_host()
    agent = client.agent(host)
    status = agent.status()
    st.session_state[session.SEEN] = signature(status)
    components.state_strip(status, host.name)
    components.show_notice()
    engine = current_engine(status)
    left, right = st.columns([5, 7], gap="medium")
    watch = st.fragment(livepanel.draw, run_every=tick_interval(status), key="live")
    with left:
        launch.draw(agent, status)
    with right:
        if engine is None:
            components.first_steps()
        else:
            livepanel.failure(agent, engine)
        if status.last_good is not None and not is_serving(engine):
            components.last_good(status.last_good, commands.start_last_good, agent)
        if is_moving(engine):  # a launch is watched above the load form, a load test below it
            watch(agent)
            loadpanel.draw(agent, status)
        else:
            loadpanel.draw(agent, status)
            watch(agent)
        if is_serving(engine):
            livepanel.launch_details(agent, engine)
