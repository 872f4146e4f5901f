"""The Compare A/B page."""

import pytest
from streamlit.testing.v1 import AppTest

from tests.fakes import documents
from tests.fakes.fake_agent import FakeAgent
from tests.ui.test_page_tune import run, texts

A, B = "20261130-213000-beef", "20261130-220200-abcd"


def open_page(app: AppTest, **params: str) -> AppTest:
    run(app)
    app.switch_page("compare.py")
    for name, value in params.items():
        app.query_params[name] = value
    return run(app)


@pytest.fixture
def pair(fake: FakeAgent) -> FakeAgent:
    fake.runs = [documents.run_row(B), documents.run_row(A, tags=["plain"])]
    fake.details = {A: documents.run_detail(A, speculative=False), B: documents.run_detail(B)}
    fake.points = documents.points()
    fake.comparison = documents.comparison(A, B)
    return fake


def test_with_fewer_than_two_runs_the_page_says_how_to_get_them(fake: FakeAgent, app: AppTest) -> None:
    fake.runs = [documents.run_row(A)]
    open_page(app)
    assert "Nothing to compare yet" in texts(app)


def test_nothing_is_compared_before_both_sides_are_chosen(pair: FakeAgent, app: AppTest) -> None:
    open_page(app)
    assert "Choose a run on both sides" in texts(app)
    open_page(app, a=A, b=A)
    assert "Choose two different runs" in texts(app)


def test_a_link_shows_verdict_confounds_differences_and_figures(pair: FakeAgent, app: AppTest) -> None:
    open_page(app, a=A, b=B)
    shown = texts(app)
    assert "Run B is better" in shown
    assert "31 minutes apart" in shown
    assert list(app.dataframe[0].value.iloc[0]) == ["--speculative-algorithm", "not set", "NEXTN"]
    figures = app.dataframe[1].value
    assert list(figures["Figure"]) == ["Output (tok/s)", "TTFT (ms)", "Accept length (tok/step)"]
    assert list(figures["Verdict"]) == ["B is better", "not distinguishable", "not comparable"]
    assert "bootstrap" in shown


def test_pictures_have_a_text_alternative_with_both_values(pair: FakeAgent, app: AppTest) -> None:
    open_page(app, a=A, b=B)
    alts = [chart.proto.alt for chart in app.get("plotly_chart")]
    assert "Output. 1 user: A 41.0 tok/s, B 61.2 tok/s." in alts
    assert all(alts)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("a_better", "Run A is better"),
        ("not_distinguishable", "not distinguishable"),
        ("not_comparable", "not comparable"),
    ],
)
def test_every_verdict_is_said_in_words(pair: FakeAgent, app: AppTest, verdict: str, words: str) -> None:
    pair.comparison = documents.comparison(A, B, verdict)
    open_page(app, a=A, b=B)
    assert words in texts(app)


def test_choosing_both_runs_puts_them_into_the_address(pair: FakeAgent, app: AppTest) -> None:
    open_page(app)
    app.selectbox(key="a_choice").set_value(A)
    app.selectbox(key="b_choice").set_value(B)
    run(app)
    assert (app.query_params["a"], app.query_params["b"]) == (A, B)
    assert "Run B is better" in texts(app)
