"""The agent's doors: token, bad requests, one agent per state directory."""

import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from backend.agent.client import AgentClient
from backend.agent.discovery import agent_lives, find_or_start_agent, read_agent_file
from backend.errors import AgentError, ConflictError, EngineError, NotFoundError, TokenError, UsageError
from backend.paths import PROJECT_ROOT, state_paths
from backend.schema.engine import LaunchRequest
from backend.schema.load import BenchRequest
from tests.agent.agent_process import AgentStarter

ROUTES = [
    ("GET", "/v1/status"),
    ("GET", "/v1/scan"),
    ("GET", "/v1/inspect"),
    ("POST", "/v1/trace"),
    ("POST", "/v1/check"),
    ("POST", "/v1/engines"),
    ("GET", "/v1/engines/x/log"),
    ("POST", "/v1/loads"),
    ("GET", "/v1/telemetry"),
    ("GET", "/v1/doctor"),
    ("POST", "/v1/close"),
    ("GET", "/v1/runs"),
    ("POST", "/v1/runs/import"),
    ("GET", "/no/such/route"),
]


def test_every_route_wants_the_token_and_the_token_is_only_in_a_private_file(agents: AgentStarter) -> None:
    agent = agents.start()
    url = agent.client.url
    with httpx.Client(base_url=url, trust_env=False) as http:
        for method, path in ROUTES:
            assert http.request(method, path).status_code == 401, path
            assert http.request(method, path, headers={"Authorization": "Bearer wrong"}).status_code == 401, path
    known = read_agent_file(state_paths())
    assert known is not None
    assert stat.S_IMODE(state_paths().agent_file.stat().st_mode) == 0o600
    assert known.token not in agent.log.read_text()
    with AgentClient(url, "wrong") as stranger, pytest.raises(TokenError, match=r"agent\.json"):
        stranger.status()


def test_the_agent_listens_on_loopback_only(agents: AgentStarter) -> None:
    assert agents.start().client.status().agent.url.startswith("http://127.0.0.1:")


def test_bad_requests_say_what_is_wrong_and_change_nothing(agents: AgentStarter) -> None:
    client = agents.start().client
    with pytest.raises(NotFoundError, match="e-none"):
        client.engine("e-none")
    with pytest.raises(NotFoundError, match="l-none"):
        client.load("l-none")
    with pytest.raises(UsageError, match="--no-such-flag"):
        client.launch(LaunchRequest(flags=["--no-such-flag", "1"]))
    with pytest.raises(UsageError, match="cursor"):
        client._get(type(client.status()), "/v1/telemetry", cursor="minus one")
    answer = client._http.post("/v1/engines", content=b'{"flag": []}')
    assert (answer.status_code, answer.json()["kind"]) == (400, "UsageError")
    assert "flag" in answer.json()["error"]
    answer = client._http.post("/v1/loads", content=b"{" + b" " * (1 << 20))
    assert answer.status_code == 400
    assert client.status().engines == []
    assert client.status().loads == []


IMPOSSIBLE = [
    ("engines", {"host": ""}),
    ("engines", {"host": "127.0.0.1\0"}),
    ("engines", {"gpus": ["0\0"]}),
    ("engines", {"gpus": [" "]}),
    ("engines", {"model": "/" + "a" * 5000}),
    ("engines", {"model": "~nobody-of-that-name/model"}),
    ("engines", {"python": "/" + "a" * 300}),
    ("engines", {"kind": "sglang", "engine": "/" + "a" * 300}),
    ("loads", {"url": "http://127.0.0.1:99999"}),
    ("loads", {"url": "http://127.0.0.1:1/\0"}),
    ("loads", {"url": "http://a b"}),
    ("loads", {"url": "http://name:password@127.0.0.1:1"}),
    ("loads", {"url": "file:///etc/passwd"}),
    ("loads", {"url": "http://127.0.0.1:1", "seed": 2**63}),
    ("loads", {"url": "http://127.0.0.1:1", "output_len": 2**31}),
    ("loads", {"url": "http://127.0.0.1:1", "duration_s": 1e300}),
]


def test_a_request_that_cannot_be_is_refused_and_is_no_fault_of_the_agent(agents: AgentStarter) -> None:
    """400 or 422, never 500 or 502: the fault is in the request, whatever the system calls it."""
    http = agents.start().client._http
    answers = {
        f"{route} {field}"[:80]: http.post(f"/v1/{route}", json=field).status_code for route, field in IMPOSSIBLE
    }
    assert {what: status for what, status in answers.items() if status not in (400, 422)} == {}
    assert http.get("/v1/telemetry", params={"cursor": "9" * 5000}).status_code == 400


def test_a_load_test_without_a_ready_engine_is_refused_with_what_to_do(agents: AgentStarter) -> None:
    client = agents.start().client
    with pytest.raises(ConflictError, match="launch one first"):
        client.start_load(BenchRequest())
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
        client.start_load(BenchRequest(url="http://127.0.0.1:9"))
    assert client.runs().runs == []


def test_a_second_agent_for_the_same_directory_is_refused_and_the_first_goes_on(agents: AgentStarter) -> None:
    first = agents.start()
    second = subprocess.run(
        [sys.executable, "-m", "backend", "agent"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 1
    assert first.client.url in second.stderr
    assert first.client.status().agent.pid == first.process.pid


def test_a_restarted_agent_keeps_address_and_token(agents: AgentStarter) -> None:
    first = agents.start()
    before = read_agent_file(state_paths())
    first.kill()
    assert not agent_lives(state_paths())
    agents.start()
    after = read_agent_file(state_paths())
    assert before is not None
    assert after is not None
    assert (after.url, after.token) == (before.url, before.token)
    assert first.client.status().agent.pid == after.pid


def test_an_agent_that_cannot_start_says_why_to_whoever_started_it(tmp_home: Path) -> None:
    paths = state_paths()
    paths.home.mkdir(parents=True, exist_ok=True)
    (paths.home / "slipstream.db").write_bytes(b"no database" * 1000)
    with pytest.raises(AgentError, match=r"slipstream\.db is damaged") as refused:
        find_or_start_agent(paths, started_by="test")
    assert "Traceback" not in str(refused.value)
    assert "Traceback" not in (paths.home / "agent.log").read_text()
