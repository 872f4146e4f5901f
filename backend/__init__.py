"""Slipstream's backend: launch, measure and explain SGLang. Never imports streamlit, never imports sglang."""

__version__ = "0.1.0"
