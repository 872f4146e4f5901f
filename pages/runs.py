"""runs."""

import streamlit as st

st.title("runs")
