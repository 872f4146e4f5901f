"""host."""

import streamlit as st

st.title("host")
