"""Slipstream's backend: launch, measure and explain SGLang. Never imports streamlit, never imports sglang."""
