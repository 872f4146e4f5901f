"""Commands that read files: inspect, trace and check."""

from backend.checkpoint import inspect_checkpoint
from backend.paths import TINY_CHECKPOINT
from backend.schema.checkpoint import Inspection


def test_inspect_tells_what_a_checkpoint_holds(run, agent):
    outcome = run("inspect", str(TINY_CHECKPOINT), "--json", lives=False)
    assert outcome.status == 0
    found = Inspection.model_validate(outcome.document)
    assert (found.mtp.tensors, found.mtp.complete, found.shards.present) == (19, True, 1)
    assert agent.calls == []
    text = run("inspect", str(TINY_CHECKPOINT), lives=False).out
    assert "MTP: 1 layer, complete: 19 tensors, 788,480 parameters" in text
    assert "NVFP4" in text


def test_inspect_of_another_machine_asks_its_agent(run, agent):
    agent.on("GET /v1/inspect?checkpoint=%2Fm", inspect_checkpoint(str(TINY_CHECKPOINT)))
    outcome = run("inspect", "/m", "--agent", "http://far", "--json")
    assert outcome.document["parameters"] == 9_777_380


def test_inspect_of_nothing_is_a_failure_and_no_traceback(run, tmp_path):
    outcome = run("inspect", str(tmp_path / "none"), "--json", lives=False)
    assert outcome.status == 1
    assert "does not exist" in outcome.err
    assert "Traceback" not in outcome.err


def test_trace_follows_the_tiny_checkpoint_through_the_reference_engine(run, agent):
    outcome = run("trace", "--engine", "reference", "--json", lives=False)
    assert (outcome.status, outcome.document["verdict"]) == (0, "supported")
    assert len(outcome.document["steps"]) == 10
    assert "supported: this engine drafts" in run("trace", "--engine", "reference", lives=False).out
    text = run("trace", "--engine", "reference", "--markdown", lives=False).out
    assert text.startswith("# MTP trace: supported")
    refused = run("trace", "--engine", "reference", "--json", "--", "--speculative-algorithm", "MEDUSA", lives=False)
    assert (refused.status, refused.document["verdict"]) == (0, "unsupported")


def test_trace_of_another_machine_asks_its_agent(run, agent):
    from backend.schema.engine import EngineKind
    from backend.schema.validate import TraceRequest
    from backend.validate import trace

    agent.on("POST /v1/trace", trace(EngineKind.REFERENCE, None, TraceRequest()))
    assert run("trace", "/m", "--agent", "http://far", "--json").document["engine"] == "reference"


def test_check_exits_1_when_the_configuration_would_be_refused(run, agent):
    good = run("check", "--engine", "reference", "--json", "--", "--moe-runner-backend", "grouped", lives=False)
    assert (good.status, good.document["verdict"]) == (0, "ok")
    bad = run("check", "--engine", "reference", "--", "--moe-runner-backend", "marlin", lives=False)
    assert bad.status == 1
    assert "error: --moe-runner-backend cannot be 'marlin'" in bad.out
    assert run("check", "--gpu-count", "0").status == 2
