"""Compare A/B: two runs side by side."""

import streamlit as st

from pages.ui import client, comparepanel, components, runlist, session, sidebar

st.title("Compare A/B", anchor=False)
with components.page_errors():
    agent = client.agent(sidebar.chosen_host())
    runs = agent.runs().runs
    if len(runs) < 2:
        st.info(
            "Two stored runs are needed: test one configuration on the Tune page, change it, restart, test again.",
            title="Nothing to compare yet",
            icon=":material/compare_arrows:",
        )
    else:
        left, right = st.columns(2)
        with left:
            a = runlist.choice(runs, runs, session.RUN_A, "Run A (solid)")
        with right:
            b = runlist.choice(runs, runs, session.RUN_B, "Run B (dashed, hatched)")
        if a is not None and b is not None and a != b:
            comparepanel.draw(agent, a, b)
        else:
            st.info("Choose two different runs." if a == b and a else "Choose a run on both sides.")
