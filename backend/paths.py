"""Where Slipstream keeps things: one state directory, `$SLIPSTREAM_HOME` or the platform's user-data folder.

agent.json       URL and token of the live agent (mode 0600)
slipstream.db    SQLite store
runs/ID/         Parquet samples and the spool of a run
logs/            one file per engine launch
engines/         one JSON per launched engine, for adoption after a crash of the agent
cache/           derived data that may be deleted at any time
"""

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs


@dataclass(frozen=True)
class StatePaths:
    """Paths under one state directory. Nothing is created by looking."""

    home: Path

    @property
    def agent_file(self) -> Path:
        return self.home / "agent.json"

    @property
    def database(self) -> Path:
        return self.home / "slipstream.db"

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def engines(self) -> Path:
        return self.home / "engines"

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    def run_dir(self, run_id: str) -> Path:
        return self.runs / run_id


def state_paths() -> StatePaths:
    """The state directory of this user, from the environment as it is now."""
    chosen = os.environ.get("SLIPSTREAM_HOME")
    return StatePaths(Path(chosen).expanduser() if chosen else Path(platformdirs.user_data_dir("slipstream")))


PROJECT_ROOT = Path(__file__).resolve().parent.parent
TINY_CHECKPOINT = PROJECT_ROOT / "assets" / "tiny-qwen3.5-moe"
