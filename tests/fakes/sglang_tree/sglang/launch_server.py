"""Lets `python -m sglang.launch_server` start the fake engine, with this folder's parent as the engine tree."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[2] / "fake_engine.py"), run_name="__main__")
