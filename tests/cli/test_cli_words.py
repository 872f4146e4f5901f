import subprocess
import sys

import pytest

from backend import __main__ as top
from backend import __version__, errors
from backend.cli.parser import build_parser
from tests.cli.cli_examples import status

COMMANDS = (
    "doctor agent inspect scan trace check diagnose launch status stop bench runs compare export import-run".split()
)


def every_error_class() -> list[type[errors.SlipstreamError]]:
    found = [errors.SlipstreamError]
    for error_class in found:
        found += error_class.__subclasses__()
    return found


@pytest.mark.parametrize("error_class", every_error_class())
def test_every_error_is_one_line_and_its_own_exit_status(run, agent, error_class):
    agent.on("GET /v1/status", error_class("what happened; what to do"))
    outcome = run("status", "--json")
    assert outcome.status == error_class.exit_status
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert "Traceback" not in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_refused_token_is_explained(run, agent):
    agent.on("GET /v1/status", errors.TokenError("x"))
    assert "SLIPSTREAM_AGENT_TOKEN" in run("status").err


def test_an_unreachable_agent_is_exit_1(run):
    outcome = run("status", lives=False)
    assert (outcome.status, outcome.err) == (1, "error: no agent runs here\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run, capsys, command):
    assert run(command, "--help").status == 0
    assert f"python -m backend {command}" in capsys.readouterr().out


def test_the_list_of_commands_is_complete(run):
    outcome = run()
    assert outcome.status == 2
    assert outcome.out == ""
    assert [name for name in COMMANDS if f"    {name}" not in outcome.err] == []
    (commands,) = [action for action in build_parser()._actions if action.dest == "command"]
    assert sorted(commands.choices) == sorted(COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        "nonsense",
        "status --nonsense",
        "launch --port 0",
        "launch --port 65536",
        "launch --env NOVALUE",
        "launch --kind attach",
        "launch a b",
        "bench --concurrency one",
        "bench --concurrency ,",
        "bench --requests 3 --duration 4",
        "bench --url http://x --id e1",
        "stop --id e1 --all",
        "compare onlyone",
        "runs --pin --unpin",
        "runs --tag a --tag b",
        "status -- --some-flag",
        "launch --js",
    ],
)
def test_wrong_words_are_exit_2_with_nothing_on_stdout(run, capfd, agent, words):
    outcome = run(*words.split())
    assert outcome.status == 2
    assert outcome.out + capfd.readouterr().out == ""
    assert agent.calls == []


def test_the_value_of_a_variable_is_never_repeated(run, capfd):
    assert run("launch", "--env", "=s3cret").status == 2
    assert "s3cret" not in capfd.readouterr().err


def test_json_after_the_dashes_belongs_to_the_engine(run, agent):
    agent.on("GET /v1/status", status())
    assert run("status", "--", "--json").status == 2


def started(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "backend", *words], capture_output=True, text=True, timeout=30)


def test_the_process_prints_its_version_and_exits_0():
    done = started("--version")
    assert (done.returncode, done.stdout) == (0, f"slipstream {__version__}\n")


def test_a_missing_log_is_a_message_and_exit_1_without_a_traceback(tmp_path):
    done = started("diagnose", str(tmp_path / "absent.log"), "--json")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: cannot read the log")


def test_a_reader_that_leaves_early_gets_no_traceback():
    """As in `python -m backend scan | head -1`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "backend", "scan"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 1
    assert error == ""


def test_a_defect_is_one_line_and_its_traceback_only_on_demand(monkeypatch, capsys):
    """The top of the process: whatever a command raises."""

    def defective(_: object) -> int:
        raise RuntimeError("what nobody thought of")

    assert top.run(defective) == 1
    assert capsys.readouterr().err.startswith("error: RuntimeError: what nobody thought of (a defect;")
    monkeypatch.setenv("SLIPSTREAM_DEBUG", "1")
    assert top.run(defective) == 1
    assert "Traceback" in capsys.readouterr().err
