import pytest

from backend.schema.load import Bench, BenchRequest, LoadState
from tests.cli.cli_examples import engine, level, load, result, status


@pytest.fixture
def bench(run, agent):
    """A load test on the only engine that runs, done at the second look."""
    agent.on("GET /v1/status", status(engine()))
    agent.on("POST /v1/loads", load(LoadState.WARMUP))
    agent.on("GET /v1/loads/l1", load(LoadState.RUNNING, 3), load(LoadState.FINISHED, 8))
    agent.on("GET /v1/loads/l1/result", result())
    return lambda *words, **more: run("bench", *words, **more)


def test_bench_waits_and_answers_with_the_result(bench):
    outcome = bench("--json")
    assert outcome.status == 0
    assert Bench.model_validate(outcome.document).run_id == "r1"
    assert [line.split() for line in outcome.err.splitlines()[1:]] == [
        ["warmup", "2", "s", "0", "of", "8", "requests"],
        ["running", "2", "s", "3", "of", "8", "requests"],
    ]
    assert len(outcome.out.splitlines()) == 1


def test_the_text_shows_what_was_measured_and_why_the_rest_was_not(bench):
    text = bench().out
    assert "180.2" in text  # total tok/s
    assert "2.75" in text  # accept length
    assert "58%" in text
    assert "ttft_ms: the server did not stream" in text


def test_without_options_the_defaults_of_the_request_apply_to_the_running_engine(bench, agent):
    bench()
    assert BenchRequest.model_validate(agent.bodies["POST /v1/loads"]) == BenchRequest(engine_id="e1")


def test_every_option_reaches_the_request(bench, agent, tmp_path):
    (tmp_path / "mine.jsonl").write_text("{}")
    words = (
        "--url http://h:1 --endpoint chat --concurrency 1,4,16 --dataset mine.jsonl --input-len 100 --output-len 32 "
        "--duration 2.5 --warmup 0 --temperature 0.7 --top-p 0.9 --seed 5 --no-chat-template --no-flush "
        "--respect-eos --timeout 9 --tag a --tag b --note night"
    )
    assert bench(*words.split()).status == 0
    assert agent.bodies["POST /v1/loads"] == {
        "url": "http://h:1",
        "engine_id": None,
        "endpoint": "chat",
        "concurrency": [1, 4, 16],
        "dataset": str(tmp_path / "mine.jsonl"),
        "input_len": 100,
        "output_len": 32,
        "requests": None,
        "duration_s": 2.5,
        "warmup_requests": 0,
        "temperature": 0.7,
        "top_p": 0.9,
        "ignore_eos": False,
        "chat_template": False,
        "flush_cache": False,
        "seed": 5,
        "timeout_s": 9.0,
        "tags": ["a", "b"],
        "note": "night",
    }


@pytest.mark.parametrize("state", [LoadState.FAILED, LoadState.INTERRUPTED, LoadState.STOPPED])
def test_a_test_that_did_not_finish_is_exit_1_and_still_answers(bench, agent, state):
    agent.on("GET /v1/loads/l1", load(state))
    agent.on("GET /v1/loads/l1/result", result(state, failure="the engine went away"))
    outcome = bench("--json")
    assert (outcome.status, outcome.document["state"]) == (1, state)
    assert "the engine went away; what was measured is kept as run r1" in outcome.err


def test_a_test_without_one_successful_request_is_exit_1(bench, agent):
    agent.on("GET /v1/loads/l1/result", result(LoadState.FINISHED, level(ok=0, failed=8)))
    outcome = bench()
    assert outcome.status == 1
    assert "no request succeeded (server_lost: the engine ended)" in outcome.err


def test_ctrl_c_stops_the_test_and_names_the_run_that_is_kept(bench, agent):
    agent.on("POST /v1/loads/l1/stop", load(LoadState.STOPPING))

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    outcome = bench("--json", sleep=interrupt)
    assert outcome.status == 130
    assert agent.calls[-1] == "POST /v1/loads/l1/stop"
    assert "kept as run r1" in outcome.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--output-len 0", "output-len"),
        ("--concurrency 0", "concurrency levels must be 1 to 4096"),
        ("--top-p 2", "top-p"),
        ("--duration 0", "duration: "),
    ],
)
def test_a_value_that_no_test_can_have_is_exit_2_before_the_agent_is_asked(bench, agent, words, complaint):
    outcome = bench(*words.split())
    assert outcome.status == 2
    assert complaint in outcome.err
    assert agent.calls == []


def test_without_an_engine_bench_fails_with_the_next_step(bench, agent):
    agent.on("GET /v1/status", status())
    outcome = bench()
    assert outcome.status == 1
    assert "launch" in outcome.err
