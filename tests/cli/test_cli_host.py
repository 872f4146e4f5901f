from pathlib import Path

from backend.cli.table import figure, percent, size, table
from backend.errors import AgentError
from backend.schema.engine import Diagnosis, Scan
from backend.schema.host import Doctor
from tests.cli.cli_examples import status


def test_doctor_answers_without_an_agent_and_exits_0(run):
    outcome = run("doctor", "--json", lives=False)
    document = Doctor.model_validate(outcome.document)
    assert outcome.status == 0
    assert next(f for f in document.findings if f.id == "agent").status == "absent"


def test_doctor_knows_the_agent_that_lives(run, agent):
    agent.on("GET /v1/status", status())
    finding = next(f for f in run("doctor", "--json").document["findings"] if f["id"] == "agent")
    assert finding["status"] == "ok"
    assert "8700" in finding["message"]


def test_doctor_still_answers_when_the_agent_does_not(run, agent):
    agent.on("GET /v1/status", AgentError("it hangs"))
    outcome = run("doctor", "--json")
    assert outcome.status == 0
    assert "it hangs" in outcome.err


def test_doctor_asks_the_named_agent_about_its_machine(run, agent):
    agent.on("GET /v1/doctor", Doctor(findings=[], gpus=[], engines=[]))
    assert run("doctor", "--agent", "http://far", "--json").document == {"findings": [], "gpus": [], "engines": []}


def test_the_text_of_doctor_has_one_line_per_finding(run):
    lines = run("doctor", lives=False).out.splitlines()
    assert sum(line.startswith(("ok ", "WARN ", "FAIL ", "–  ")) for line in lines) == 14


def test_scan_lists_the_flags_of_the_reference_engine(run, agent):
    outcome = run("scan", "--json", lives=False)
    assert Scan.model_validate(outcome.document).flag("--speculative-num-steps") is not None
    assert agent.calls == []
    assert "--speculative-num-steps" in run("scan", lives=False).out


def test_scan_of_another_machine_asks_its_agent(run, agent):
    agent.on(
        "GET /v1/scan?kind=sglang&engine=%2Fopt%2Fsglang",
        Scan(version="1", style="argparse", root="/opt/sglang", flags=[]),
    )
    outcome = run("scan", "--engine", "/opt/sglang", "--agent", "http://far", "--json")
    assert outcome.document["root"] == "/opt/sglang"


def test_diagnose_explains_a_log_and_exits_0_although_the_launch_failed(run, tmp_path: Path):
    log = tmp_path / "engine.log"
    log.write_text("usage: launch_server.py\nlaunch_server.py: error: unrecognized arguments: --nope\n")
    outcome = run("diagnose", str(log), "--json")
    assert outcome.status == 0
    assert Diagnosis.model_validate(outcome.document).failure.failure_class == "unknown_flag"
    assert "--nope" in run("diagnose", str(log)).out


def test_figures_line_up_on_the_right_and_words_on_the_left():
    assert table(("name", "tok/s"), [("a", "9.5"), ("long", "120.0"), ("x", "–")]) == (
        "name  tok/s\na       9.5\nlong  120.0\nx         –"
    )
    assert table(("run", "size"), [("2026-a", "1.5 KiB")]) == "run        size\n2026-a  1.5 KiB"


def test_what_was_not_measured_is_a_dash_and_never_a_zero():
    assert (figure(None), percent(None), size(None)) == ("–", "–", "–")
    assert (figure(0.0), percent(0.125), size(0)) == ("0.0", "12%", "0 B")


def test_sizes_are_in_binary_units():
    # 1536 = 1.5 * 1024; 141 * 2**30 bytes are 141 GiB
    assert (size(1023), size(1536), size(141 << 30)) == ("1023 B", "1.5 KiB", "141.0 GiB")
