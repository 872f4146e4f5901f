"""The frame of every page: configuration, navigation, and the state of the host in the sidebar."""

import streamlit as st

from backend.paths import PROJECT_ROOT
from pages.ui import sidebar

# An icon of our own: a Material one would be fetched from the internet.
icon = str(PROJECT_ROOT / "assets" / "icon.svg")
st.set_page_config(page_title="Slipstream", page_icon=icon, layout="wide", initial_sidebar_state=220)
st.logo(str(PROJECT_ROOT / "assets" / "logo.svg"), size="large", icon_image=icon)

tune = st.Page(
    "tune.py",
    title="Tune",
    icon=":material/tune:",
    url_path="",
    default=True,
    help="Choose MTP, draft steps and backends, restart the engine, run a load test and watch it.",
)


def to_tune() -> None:
    """The first page is at the server's root; who writes its name into the address arrives there too."""
    st.switch_page(tune)


page = st.navigation(
    [
        tune,
        st.Page(to_tune, title="Tune", url_path="tune", visibility="hidden"),
        st.Page(
            "runs.py",
            title="Runs",
            icon=":material/history:",
            url_path="runs",
            help="Every stored load test with its configuration, results and requests. Export, import, notes and tags.",
        ),
        st.Page(
            "compare.py",
            title="Compare A/B",
            icon=":material/compare_arrows:",
            url_path="compare",
            help="Two runs side by side: how their configurations differ, and which differences in the figures count.",
        ),
        st.Page(
            "trace.py",
            title="Trace",
            icon=":material/account_tree:",
            url_path="trace",
            help="Would this engine use this checkpoint's MTP layer? Step by step, with file, line and source.",
        ),
        st.Page(
            "host.py",
            title="Host",
            icon=":material/dns:",
            url_path="host",
            help="What the machine has: GPUs, engines, memory, disk, and the agent itself.",
        ),
    ]
)
sidebar.draw()
page.run()
