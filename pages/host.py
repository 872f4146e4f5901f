"""Host: what the machine has, and the agent itself."""

import streamlit as st

from pages.ui import client, components, hostpanel, sidebar

st.title("Host", anchor=False)
with components.page_errors():
    host = sidebar.chosen_host()
    agent = client.agent(host)
    status = agent.status()
    found = client.doctor(agent, status.agent.boot)
    hostpanel.findings(found)
    hostpanel.gpus(found)
    hostpanel.telemetry(agent)
    hostpanel.engines(found)
    hostpanel.agent_info(status)
