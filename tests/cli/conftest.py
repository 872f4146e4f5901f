"""A command run in this process against an agent that answers from a script."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from backend.agent.client import AgentClient
from backend.cli import Context, main
from backend.errors import AgentError, SlipstreamError
from backend.paths import StatePaths

URL = "http://agent.test"


@dataclass
class ScriptedAgent:
    """Answers each route with the next of its documents, the last one again and again. Keeps what it was asked."""

    answers: dict[str, list[Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    bodies: dict[str, Any] = field(default_factory=dict)

    def on(self, route: str, *answers: BaseModel | SlipstreamError | bytes) -> None:
        self.answers[route] = list(answers)

    def handle(self, request: httpx.Request) -> httpx.Response:
        query = f"?{request.url.query.decode()}" if request.url.query else ""
        route = f"{request.method} {request.url.path}{query}"
        self.calls.append(route)
        if request.headers.get("content-type") == "application/json":
            self.bodies[route] = json.loads(request.content)
        waiting = self.answers[route]
        answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(answer, SlipstreamError):
            body = {"error": str(answer), "kind": type(answer).__name__}
            return httpx.Response(answer.http_status, json=body)
        if isinstance(answer, BaseModel):
            return httpx.Response(200, content=answer.model_dump_json(by_alias=True))
        return httpx.Response(200, content=answer)


@dataclass
class Outcome:
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The last line of stdout, which --json promises to be one JSON document."""
        return json.loads(self.out.splitlines()[-1])


@pytest.fixture
def agent() -> ScriptedAgent:
    return ScriptedAgent()


@pytest.fixture
def run(
    agent: ScriptedAgent, tmp_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Outcome]:
    """Runs one command line. `lives=False`: no agent runs. `sleep`: what happens instead of waiting."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run_command(*argv: str, lives: bool = True, sleep: Callable[[float], None] = lambda _: None) -> Outcome:
        def client(*_: object, **__: object) -> AgentClient:
            if not lives:
                raise AgentError("no agent runs here")
            return AgentClient(URL, "token", transport=httpx.MockTransport(agent.handle))

        out, err = io.StringIO(), io.StringIO()
        context = Context(out=out, err=err, paths=StatePaths(tmp_home), find=client, find_or_start=client, sleep=sleep)
        return Outcome(main(list(argv), context), out.getvalue(), err.getvalue())

    return run_command
