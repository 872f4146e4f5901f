"""The Trace page: the form lives in the address, the verdict stands on top, evidence opens on a click."""

import pytest
from streamlit.testing.v1 import AppTest

from backend.checkpoint import inspect_checkpoint
from backend.errors import InputError
from backend.paths import TINY_CHECKPOINT
from backend.schema.engine import EngineKind
from backend.schema.validate import TraceRequest
from backend.validate import trace
from tests.fakes.fake_agent import FakeAgent
from tests.ui.test_page_tune import run, texts


@pytest.fixture
def known(fake: FakeAgent) -> FakeAgent:
    """An agent that knows the tiny checkpoint."""
    fake.inspection = inspect_checkpoint(str(TINY_CHECKPOINT))
    fake.trace = trace(EngineKind.REFERENCE, None, TraceRequest())
    return fake


def open_page(app: AppTest) -> AppTest:
    run(app)
    app.switch_page("trace.py")
    return run(app)


def test_the_tiny_checkpoint_is_traced_at_once(known: FakeAgent, app: AppTest) -> None:
    open_page(app)
    shown = texts(app)
    assert "supported" in shown
    assert "Assumed: --speculative-algorithm NEXTN" in shown.replace("\\", "")
    assert len(app.expander) == 10
    assert any("class MtpModel" in block.value for block in app.code)
    assert "To be verified after launch" in [header.value for header in app.subheader]
    assert app.dataframe[-1].value["Parameters"].iloc[0] == "196,736"  # of the MTP layer's attention
    (request,) = known.called("trace")
    assert (request.model, request.engine, request.flags) == (str(TINY_CHECKPOINT), "reference", [])


def test_flags_are_sent_as_words_and_kept_in_the_address(known: FakeAgent, app: AppTest) -> None:
    open_page(app)
    app.text_input[2].set_value("--speculative-algorithm 'EAGLE'")
    app.button[0].click()
    run(app)
    assert known.called("trace")[-1].flags == ["--speculative-algorithm", "EAGLE"]
    assert app.query_params["flags"] in ("--speculative-algorithm 'EAGLE'", ["--speculative-algorithm 'EAGLE'"])


def test_a_refused_step_is_open_and_an_open_quote_is_explained(known: FakeAgent, app: AppTest) -> None:
    known.trace = trace(EngineKind.REFERENCE, None, TraceRequest(flags=["--speculative-algorithm", "MEDUSA"]))
    open_page(app)
    assert "It does not: MEDUSA is no algorithm" in texts(app).replace("\\", "")
    app.text_input[2].set_value("--x 'y")
    app.button[0].click()
    run(app)
    assert "close the quotes" in texts(app)


def test_a_checkpoint_that_is_not_there_is_said(known: FakeAgent, app: AppTest) -> None:
    known.refuse["trace"] = InputError("model /nowhere does not exist; give a checkpoint directory")
    open_page(app)
    assert "/nowhere does not exist" in texts(app).replace("\\", "")
