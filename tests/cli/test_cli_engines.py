import pytest

from backend.errors import InputError, ModelNotFoundError, PortInUseError
from backend.schema.engine import EngineState, LaunchResult, Phase, Stopped
from backend.schema.host import Status
from tests.cli.cli_examples import engine, failed_engine, starting, status


def test_launch_waits_tells_each_phase_and_answers_with_the_engine(run, agent):
    agent.on("POST /v1/engines", starting())
    agent.on(
        "GET /v1/engines/e1",
        starting(Phase(name="init", seconds=0.5), Phase(name="load_target")),
        starting(Phase(name="init", seconds=0.5), Phase(name="load_target", seconds=0.004)),
        engine(warnings=["attention backend changed"]),
    )
    outcome = run("launch", "--json")
    assert outcome.status == 0
    assert LaunchResult.model_validate(outcome.document).url == "http://127.0.0.1:30000"
    assert outcome.document["ready_seconds"] == 4.25
    assert [line.split() for line in outcome.err.splitlines()[1:]] == [
        ["init", "0.50", "s"],
        ["load_target", "<0.01", "s"],
    ]
    assert len(outcome.out.splitlines()) == 1


def test_launch_sends_the_flags_behind_the_dashes_and_the_rest_as_it_was_given(run, agent, tmp_path):
    (tmp_path / "model").mkdir()
    agent.on("POST /v1/engines", engine())
    words = ["launch", "model", "--port", "31000", "--gpus", "0,2", "--env", "A=1=2", "--env", "B=", "--"]
    assert run(*words, "--speculative-num-steps", "3", "--json").status == 0
    assert agent.bodies["POST /v1/engines"] == {
        "model": str(tmp_path / "model"),
        "kind": None,
        "engine": None,
        "python": None,
        "host": "127.0.0.1",
        "port": 31000,
        "gpus": ["0", "2"],
        "env": {"A": "1=2", "B": ""},
        "flags": ["--speculative-num-steps", "3", "--json"],
        "replace": None,
        "owner": "cli",
    }


def test_a_model_that_is_no_path_here_is_passed_on_as_it_is(run, agent):
    agent.on("POST /v1/engines", engine())
    run("launch", "org/name")
    assert agent.bodies["POST /v1/engines"]["model"] == "org/name"


def test_a_failed_launch_is_exit_1_with_its_failure(run, agent):
    agent.on("POST /v1/engines", starting())
    agent.on("GET /v1/engines/e1", failed_engine())
    outcome = run("launch", "--json")
    assert outcome.status == 1
    assert outcome.document["failure"] == {
        "class": "oom_device",
        "cause": "out of memory",
        "line": 12,
        "advice": "lower --mem-fraction-static",
    }
    text = run("launch").out
    assert "failure: oom_device (log line 12)" in text
    assert "log: /state/logs/e1.log" in text


def test_a_launch_that_somebody_stopped_is_exit_1(run, agent):
    agent.on("POST /v1/engines", engine(EngineState.STOPPED))
    outcome = run("launch", "--json")
    assert (outcome.status, outcome.document["failure"]["class"]) == (1, "unknown")


@pytest.mark.parametrize(
    ("refusal", "name"),
    [
        (ModelNotFoundError("model /x does not exist"), "model_not_found"),
        (PortInUseError("port 30000 is taken"), "port_in_use"),
        (InputError("cannot read /x"), "unknown"),
    ],
)
def test_a_refused_launch_is_exit_1_with_a_failure_for_scripts_and_a_message_for_people(run, agent, refusal, name):
    agent.on("POST /v1/engines", refusal)
    outcome = run("launch", "--json")
    assert (outcome.status, outcome.document["failure"]["class"]) == (1, name)
    assert outcome.err == f"error: {refusal}\n"
    assert run("launch").out == ""


def test_ctrl_c_during_a_launch_cancels_it(run, agent):
    agent.on("POST /v1/engines", starting())
    agent.on("POST /v1/engines/e1/stop", engine(EngineState.STOPPING))

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    outcome = run("launch", "--json", sleep=interrupt)
    assert outcome.status == 130
    assert agent.calls[-1] == "POST /v1/engines/e1/stop"
    assert outcome.out == ""


def test_secrets_are_not_printed(run, agent):
    agent.on(
        "POST /v1/engines",
        engine(argv=["python", "-m", "engine", "--api-key", "s3cret"], env={"HF_TOKEN": "hf_s3cret", "OMP": "2"}),
    )
    outcome = run("launch")
    assert "s3cret" not in outcome.out + outcome.err
    assert "OMP=2" in outcome.out


def test_status_lists_engines_and_their_alarms(run, agent):
    agent.on("GET /v1/status", status(engine(EngineState.DEGRADED, alarms=["a child process died"])))
    assert Status.model_validate(run("status", "--json").document).engines[0].id == "e1"
    text = run("status").out
    assert "degraded" in text
    assert "a child process died" in text


def test_status_without_engines_says_so(run, agent):
    agent.on("GET /v1/status", status())
    assert "no engine runs" in run("status").out


def test_stop_without_an_id_stops_the_only_engine_and_waits(run, agent):
    agent.on("GET /v1/status", status(engine(), engine(EngineState.STOPPED, "e0")))
    agent.on("POST /v1/engines/e1/stop", engine(EngineState.STOPPING))
    agent.on("GET /v1/engines/e1", engine(EngineState.STOPPING), engine(EngineState.STOPPED))
    outcome = run("stop", "--json")
    assert outcome.status == 0
    assert [e.state for e in Stopped.model_validate(outcome.document).engines] == [EngineState.STOPPED]


def test_stop_all_stops_every_engine_that_runs(run, agent):
    agent.on("GET /v1/status", status(engine(), engine(EngineState.STARTING, "e2")))
    for name in ("e1", "e2"):
        agent.on(f"POST /v1/engines/{name}/stop", engine(EngineState.STOPPING, name))
        agent.on(f"GET /v1/engines/{name}", engine(EngineState.STOPPED, name))
    outcome = run("stop", "--all")
    assert (outcome.status, outcome.out) == (0, "engine e1 stopped\nengine e2 stopped\n")


def test_stop_all_with_nothing_running_is_a_success(run, agent):
    agent.on("GET /v1/status", status())
    assert run("stop", "--all", "--json").document == {"engines": []}


def test_stop_without_an_id_is_wrong_while_several_run_and_fails_while_none_does(run, agent):
    agent.on("GET /v1/status", status(engine(), engine(EngineState.READY, "e2")))
    outcome = run("stop")
    assert outcome.status == 2
    assert "e1" in outcome.err
    assert "e2" in outcome.err
    agent.on("GET /v1/status", status())
    assert run("stop").status == 1


def test_an_engine_that_does_not_end_is_exit_1(run, agent):
    agent.on("POST /v1/engines/e1/stop", engine(EngineState.STOPPING))
    agent.on("GET /v1/engines/e1", failed_engine())
    outcome = run("stop", "--id", "e1", "--json")
    assert outcome.status == 1
    assert "did not end cleanly: out of memory" in outcome.err
