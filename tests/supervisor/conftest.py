"""Fixtures of the supervisor's tests: a fake engine behind SGLang's command line, and a supervisor to run it."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from backend.schema.engine import EngineKind, LaunchRequest
from backend.supervisor import Limits
from tests.supervisor.supervisor_host import QUICK, Host, running_host

TREE = Path(__file__).parents[1] / "fakes" / "sglang_tree"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Tiny"]}')
    return folder


@pytest.fixture
def fake(checkpoint: Path) -> Callable[..., LaunchRequest]:
    """A request for the fake engine with this plan; see `tests/fakes/fake_engine.py`."""

    def request(plan: dict[str, object] | None = None, **more: object) -> LaunchRequest:
        return LaunchRequest(
            model=str(checkpoint),
            kind=EngineKind.SGLANG,
            python=sys.executable,
            engine=str(TREE),
            env={"FAKE_ENGINE": json.dumps(plan or {})},
            **more,
        )

    return request


@pytest.fixture
def on_host(tmp_home: Path) -> Callable[..., None]:
    """Runs a coroutine function with a `Host` whose engines are stopped at the end."""

    def run(test: Callable[[Host], Awaitable[None]], limits: Limits = QUICK) -> None:
        async def body() -> None:
            async with running_host(tmp_home, limits) as host:
                await test(host)

        asyncio.run(body())

    return run
