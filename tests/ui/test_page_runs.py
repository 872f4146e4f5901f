"""The Runs page: an empty store, a list, one run in full, notes, filters."""

import pytest
from streamlit.testing.v1 import AppTest

from pages.ui.labels import REFERENCE_NOTE
from tests.fakes import documents
from tests.fakes.fake_agent import FakeAgent
from tests.ui.test_page_tune import run, texts

RUN = "20261130-220200-abcd"
OTHER = "20261130-213000-beef"


def open_page(app: AppTest, run_id: str | None = None, tab: str | None = None) -> AppTest:
    run(app)
    app.switch_page("runs.py")
    if run_id:
        app.query_params["run"] = run_id
    if tab:
        app.session_state["run_tab"] = tab
    return run(app)


@pytest.fixture
def stored(fake: FakeAgent) -> FakeAgent:
    fake.runs = [documents.run_row(RUN), documents.run_row(OTHER, tags=["plain"], note="no MTP", verdict="failed")]
    fake.details = {RUN: documents.run_detail(RUN), OTHER: documents.run_detail(OTHER, speculative=False)}
    fake.records = documents.records(RUN)
    fake.points = documents.points()
    fake.samples = documents.samples()
    return fake


def test_an_empty_store_says_how_runs_come_about(fake: FakeAgent, app: AppTest) -> None:
    open_page(app)
    assert "No runs yet" in texts(app)


def test_runs_are_listed_with_their_best_level(stored: FakeAgent, app: AppTest) -> None:
    open_page(app)
    table = app.dataframe[0].value
    assert list(table["Run"]) == [RUN, OTHER]
    assert list(table["Best tok/s"]) == [153.9, 153.9]
    assert list(table["Verdict"]) == ["ok", "failed"]


def test_filters_narrow_the_list(stored: FakeAgent, app: AppTest) -> None:
    open_page(app)
    app.selectbox(key="runs_tag").set_value("plain")
    run(app)
    assert list(app.dataframe[0].value["Run"]) == [OTHER]
    app.selectbox(key="runs_verdict").set_value("ok")
    run(app)
    assert "No run passes these filters" in texts(app)


def test_a_link_opens_its_run(stored: FakeAgent, app: AppTest) -> None:
    open_page(app, RUN)
    shown = texts(app)
    assert f"Run {RUN}" in shown
    assert REFERENCE_NOTE in shown
    assert app.dataframe[1].value.set_index("Figure").loc["Output", "2 users"] == "98.4"


def test_choosing_a_run_puts_it_into_the_address(stored: FakeAgent, app: AppTest) -> None:
    open_page(app)
    app.selectbox(key="run_choice").set_value(OTHER)
    run(app)
    assert app.query_params["run"] == OTHER
    assert f"Run {OTHER}" in texts(app)


def test_a_linked_run_stays_open_when_a_filter_hides_it(stored: FakeAgent, app: AppTest) -> None:
    open_page(app, RUN)
    app.selectbox(key="runs_tag").set_value("plain")
    run(app)
    assert f"Run {RUN}" in texts(app)


def test_a_link_to_a_run_that_is_not_here_says_so(stored: FakeAgent, app: AppTest) -> None:
    open_page(app, "gone")
    assert "Run not found" in texts(app)


def test_the_stored_charts_are_drawn(stored: FakeAgent, app: AppTest) -> None:
    open_page(app, RUN, "Charts")
    alts = [chart.proto.alt for chart in app.get("plotly_chart")]
    assert len(alts) == 4
    assert any("Accept length" in alt for alt in alts)


def test_the_configuration_shows_command_line_versions_seed_and_log(stored: FakeAgent, app: AppTest) -> None:
    open_page(app, RUN, "Configuration")
    assert "--speculative-num-steps 3" in app.code[0].value
    settings = {row["Setting"]: row["Value"] for table in app.dataframe[1:] for _, row in table.value.iterrows()}
    assert settings["torch"] == "2.13.0"
    assert settings["OMP_NUM_THREADS"] == "2"
    assert settings["seed"] == "7"
    assert settings["mem_fraction_static"] == "0.5"
    assert "/state/logs/e1.log" in texts(app)


def test_every_request_is_listed_with_its_error(stored: FakeAgent, app: AppTest) -> None:
    open_page(app, RUN, "Requests")
    table = app.dataframe[1].value
    assert list(table["Result"]) == ["ok", "server_lost"]
    assert list(table["Error"])[1] == "the connection was closed"
    assert "2 requests, 1 failed" in texts(app)


def test_note_tags_and_pin_are_saved(stored: FakeAgent, app: AppTest) -> None:
    open_page(app, RUN, "Notes and export")
    app.text_area(key=f"note_{RUN}").set_value("better than before")
    app.text_input(key=f"tags_{RUN}").set_value("mtp, keep")
    app.button(key="save_note").click()
    run(app)
    app.button(key="pin").click()
    run(app)
    assert stored.called("patch") == [
        (RUN, {"note": "better than before", "tags": ["mtp", "keep"], "pinned": None}),
        (RUN, {"note": None, "tags": None, "pinned": True}),
    ]


def test_an_upload_is_imported(stored: FakeAgent, app: AppTest) -> None:
    open_page(app)
    app.file_uploader(key="runs_upload").upload("run.zip", b"an exported run")
    run(app)
    app.button(key="import").click()
    run(app)
    assert stored.called("import") == [b"an exported run"]
    assert "imported-run" in texts(app)


def test_a_run_that_failed_tells_why(stored: FakeAgent, app: AppTest) -> None:
    broken = documents.bench(OTHER, failure="the engine was killed (signal 9)")
    stored.details[OTHER] = stored.details[OTHER].model_copy(update={"bench": broken})
    open_page(app, OTHER)
    assert "the engine was killed (signal 9)" in texts(app)


def test_thousands_of_runs_are_listed_in_part(stored: FakeAgent, app: AppTest) -> None:
    stored.runs = [documents.run_row(f"run-{i:05d}") for i in range(5000)]
    open_page(app)
    assert len(app.dataframe[0].value) == 1000
    assert "newest 1,000 of 5,000 runs" in texts(app)
