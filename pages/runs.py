"""Runs: every stored load test, and one of them in full."""

import streamlit as st

from pages.ui import client, components, runlist, runpanel, session, sidebar

st.title("Runs", anchor=False)
with components.page_errors():
    agent = client.agent(sidebar.chosen_host())
    components.show_notice()
    runs = agent.runs().runs
    if runs:
        shown = runlist.filtered(runs)
        runlist.table(shown)
        chosen = runlist.choice(shown, runs, session.RUN, "Open run")
        if chosen is not None:
            runpanel.draw(agent, chosen)
    else:
        st.info("A load test on the Tune page stores its run here.", title="No runs yet", icon=":material/history:")
    runpanel.import_upload(agent)
