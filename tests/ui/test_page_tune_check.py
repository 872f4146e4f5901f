"""Findings about the configuration, inline on Tune, and the fix that one click applies."""

from streamlit.testing.v1 import AppTest

from backend.errors import InputError
from backend.schema.engine import LaunchRequest
from backend.schema.validate import Check, CheckFinding, Evidence
from pages.ui.checkpanel import fix_words, fixed
from tests.fakes import documents
from tests.fakes.fake_agent import FakeAgent
from tests.ui.test_page_tune import run, texts

REFUSED = CheckFinding(
    rule="radix_refused",
    severity="error",
    message="cannot speculate beside the prefix cache",
    flags=["--disable-radix-cache"],
    fix={"--disable-radix-cache": "true"},
    evidence=Evidence(file="sglang/srt/server_args.py", line=2569),
)


def choose_sglang(app: AppTest) -> AppTest:
    run(app)
    app.radio(key="tune_kind").set_value("sglang")
    run(app)
    app.text_input(key="tune_engine").set_value("/sgl/python")
    return run(app)


def test_a_finding_stands_below_the_command_and_its_fix_changes_the_form(fake: FakeAgent, app: AppTest) -> None:
    fake.check = Check(
        verdict="reject",
        engine="/sgl",
        version="1",
        findings=[REFUSED],
        effective={"--max-running-requests": "48"},
        argv=[],
    )
    choose_sglang(app)
    shown = texts(app)
    assert "cannot speculate beside the prefix cache" in shown
    assert "`sglang/srt/server_args.py:2569`" in shown
    assert "Will run as: `--max-running-requests 48`" in shown
    assert fake.called("check")[-1].engine == "/sgl/python"
    app.button(key="fix_0_radix_refused").click()
    run(app)
    assert "--disable-radix-cache" in app.code[0].value


def test_the_reference_engine_and_a_form_with_faults_are_not_asked_about(fake: FakeAgent, app: AppTest) -> None:
    run(app)
    assert fake.called("check") == []


def test_a_checkpoint_that_cannot_be_read_is_said_and_nothing_else_breaks(fake: FakeAgent, app: AppTest) -> None:
    fake.refuse["check"] = InputError("model /m does not exist")
    choose_sglang(app)
    assert "Not checked: model /m does not exist" in texts(app).replace("\\", "")
    assert not app.button(key="start_engine").disabled


def test_a_fix_takes_the_place_of_what_was_given() -> None:
    request = LaunchRequest(flags=["--max-running-requests", "8", "--disable-radix-cache", "--enable-metrics"])
    fix = {"--max-running-requests": "48", "--disable-radix-cache": "true"}
    changed = fixed(documents.SCAN, request, fix)
    assert changed.flags == ["--enable-metrics", "--max-running-requests", "48", "--disable-radix-cache"]
    assert fix_words(fix) == "--max-running-requests 48 --disable-radix-cache"
