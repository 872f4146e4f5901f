"""Trace: would an engine use a checkpoint's MTP layer, and what does the checkpoint hold?"""

import streamlit as st

from pages.ui import client, components, sidebar, tracepanel

st.title("Trace", anchor=False)
with components.page_errors():
    host = sidebar.chosen_host()
    agent = client.agent(host)
    status = agent.status()
    question = tracepanel.ask(status)
    if question is not None:
        found = client.trace(agent, status.agent.boot, question)
        tracepanel.verdict(found)
        tracepanel.steps(found)
        tracepanel.after_launch(found)
        tracepanel.checkpoint(client.inspect(agent, status.agent.boot, found.model))
