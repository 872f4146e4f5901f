"""The Tune page in each of its states, against a fake agent over HTTP."""

from streamlit.testing.v1 import AppTest

from backend.errors import ConflictError, InputError
from backend.schema.engine import EngineState, Failure, LaunchRequest
from backend.schema.load import LoadState
from pages.ui.labels import REFERENCE_NOTE
from tests.fakes import documents
from tests.fakes.fake_agent import FakeAgent


def texts(app: AppTest) -> str:
    """All text of the page, for looking words up."""
    elements = [*app.markdown, *app.caption, *app.subheader, *app.error, *app.info, *app.warning, *app.success]
    titles = [getattr(alert.proto, "title", "") for alert in [*app.error, *app.info, *app.warning, *app.success]]
    return "\n".join([str(e.value) for e in elements] + titles)


def metrics(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def run(app: AppTest) -> AppTest:
    app.run()
    assert not app.exception
    return app


def with_engine(fake: FakeAgent, state: EngineState = EngineState.READY, **changes: object) -> None:
    fake.engines = [documents.engine(state, **changes)]
    fake.samples = documents.samples()


def with_load(fake: FakeAgent, state: LoadState = LoadState.RUNNING, *, speculative: bool = True) -> None:
    with_engine(fake)
    fake.loads = [documents.load_status(state)]
    fake.points = documents.points(speculative=speculative)
    fake.per_position = [0.8, 0.55, 0.36] if speculative else []
    fake.result = documents.bench(speculative=speculative)


# ---- no engine


def test_without_an_engine_the_page_says_what_to_do_first(fake: FakeAgent, app: AppTest) -> None:
    run(app)
    assert "No engine runs yet" in texts(app)
    assert not app.button(key="start_engine").disabled
    assert app.button(key="start_load").disabled
    assert not app.get("plotly_chart")


def test_controls_are_those_that_the_engine_declares_with_its_help_and_source(fake: FakeAgent, app: AppTest) -> None:
    run(app)
    labels = [widget.label for widget in [*app.number_input, *app.selectbox, *app.toggle]]
    assert "FP4 GEMM backend" not in labels
    assert "MTP speculative decoding" in labels
    backend = app.selectbox(key="tune_reference_moe")
    assert backend.options == ["auto", "loop", "grouped"]
    assert "How the experts are multiplied." in backend.help
    assert "`backend/reference/flags.py:31`" in backend.help


def test_every_input_has_a_label(fake: FakeAgent, app: AppTest) -> None:
    with_load(fake)
    run(app)
    for widget in [*app.text_input, *app.number_input, *app.selectbox, *app.toggle, *app.text_area, *app.radio]:
        assert widget.label.strip()


def test_the_command_line_follows_the_form(fake: FakeAgent, app: AppTest) -> None:
    run(app)
    assert "--speculative" not in app.code[0].value
    app.toggle(key="tune_mtp").set_value(True)
    run(app)
    app.number_input(key="tune_reference_steps").set_value(2)
    run(app)
    assert "--speculative-num-steps 2 \\" in app.code[0].value
    assert "--speculative-num-draft-tokens 3" in app.code[0].value
    assert app.number_input(key="tune_reference_tokens").disabled
    assert app.number_input(key="tune_reference_tokens").value == 3


def test_start_sends_what_the_form_holds(fake: FakeAgent, app: AppTest) -> None:
    fake.on_launch = lambda request: with_engine(fake, EngineState.STARTING, request=request)
    run(app)
    app.toggle(key="tune_mtp").set_value(True)
    app.text_area(key="tune_env").set_value("OMP_NUM_THREADS=2")
    app.text_area(key="tune_other").set_value("--random-seed 7")
    app.number_input(key="tune_port").set_value(31000)
    app.button(key="start_engine").click()
    run(app)
    (sent,) = fake.called("launch")
    assert isinstance(sent, LaunchRequest)
    assert sent.flags == [*documents.MTP_FLAGS, "--random-seed", "7"]
    assert (sent.env, sent.port, sent.replace) == ({"OMP_NUM_THREADS": "2"}, 31000, None)
    assert sent.owner.startswith("ui")
    assert "Engine: starting" in texts(app)


def test_a_bad_flag_is_explained_under_its_field_and_nothing_can_be_started(fake: FakeAgent, app: AppTest) -> None:
    run(app)
    app.text_area(key="tune_other").set_value("--random-sead 7")
    run(app)
    assert "did you mean" in texts(app)
    assert app.button(key="start_engine").disabled
    assert app.text_area(key="tune_other").value == "--random-sead 7"


def test_what_the_agent_refuses_is_shown_and_the_form_keeps_its_input(fake: FakeAgent, app: AppTest) -> None:
    fake.refuse["launch"] = InputError("/no/such/model is not a directory; give a checkpoint directory")
    run(app)
    app.text_input(key="tune_model").set_value("/no/such/model")
    app.button(key="start_engine").click()
    run(app)
    assert "/no/such/model is not a directory" in texts(app)
    assert app.text_input(key="tune_model").value == "/no/such/model"


def test_inputs_survive_a_visit_to_another_page(fake: FakeAgent, app: AppTest) -> None:
    run(app)
    app.toggle(key="tune_mtp").set_value(True)
    run(app)
    app.number_input(key="tune_reference_steps").set_value(5)
    app.text_input(key="load_levels").set_value("8")
    run(app)
    app.switch_page("host.py")
    run(app)
    app.switch_page("tune.py")
    run(app)
    assert app.toggle(key="tune_mtp").value is True
    assert app.number_input(key="tune_reference_steps").value == 5
    assert app.text_input(key="load_levels").value == "8"


# ---- starting


def test_a_launch_shows_its_phases_its_log_and_cancel(fake: FakeAgent, app: AppTest) -> None:
    with_engine(fake, EngineState.STARTING)
    fake.log = [f"line {i}" for i in range(50)]
    run(app)
    shown = texts(app)
    assert "Engine: starting, 4.2 s" in shown
    assert "Load MTP | running" in shown
    tail = app.code[-1].value.splitlines()
    assert (tail[0], tail[-1], len(tail)) == ("line 20", "line 49", 30)
    assert app.button(key="stop_engine").label == "Cancel launch"
    assert app.button(key="start_engine").disabled


def test_cancel_stops_the_launch(fake: FakeAgent, app: AppTest) -> None:
    with_engine(fake, EngineState.STARTING)
    run(app)
    app.button(key="stop_engine").click()
    run(app)
    assert fake.called("stop_engine") == ["e1"]


def test_a_second_click_while_a_launch_is_under_way_starts_nothing(fake: FakeAgent, app: AppTest) -> None:
    run(app)
    with_engine(fake, EngineState.STARTING)  # another browser was faster
    app.button(key="start_engine").click()
    run(app)
    assert fake.called("launch") == []
    assert "Already under way" in texts(app)


# ---- running


def test_a_running_engine_is_described_and_fills_the_form(fake: FakeAgent, app: AppTest) -> None:
    with_engine(fake)
    run(app)
    shown = texts(app)
    assert REFERENCE_NOTE in shown
    assert "a1b2c3d4e5f6" in shown
    assert app.toggle(key="tune_mtp").value is True
    assert app.button(key="start_engine").label == "Restart engine"
    assert not app.button(key="start_load").disabled
    assert "needs a restart" not in shown


def test_a_changed_setting_is_marked_until_the_restart(fake: FakeAgent, app: AppTest) -> None:
    with_engine(fake)
    run(app)
    app.number_input(key="tune_reference_steps").set_value(5)
    run(app)
    shown = texts(app)
    assert "changed: needs a restart" in shown
    assert "`--speculative-num-steps`" in shown
    assert "changed" in app.number_input(key="tune_reference_steps").label


def test_restart_replaces_the_engine_that_runs(fake: FakeAgent, app: AppTest) -> None:
    with_engine(fake)
    run(app)
    app.button(key="start_engine").click()
    run(app)
    (sent,) = fake.called("launch")
    assert sent.replace == "e1"


def test_memory_by_component_and_its_source_are_shown(fake: FakeAgent, app: AppTest) -> None:
    with_engine(fake)
    run(app)
    (chart,) = app.get("plotly_chart")
    assert "target weights 110 MiB, MTP weights 20.0 MiB, KV pool 64.0 MiB" in chart.proto.alt
    assert "no NVIDIA driver" in texts(app)


def test_alarms_of_a_degraded_engine_are_shown(fake: FakeAgent, app: AppTest) -> None:
    with_engine(fake, EngineState.DEGRADED, alarms=["a worker process died"], ready_seconds=7.4)
    run(app)
    assert "a worker process died" in texts(app)


# ---- failed launch


def test_a_failed_launch_shows_cause_advice_log_and_the_last_good_configuration(fake: FakeAgent, app: AppTest) -> None:
    failure = Failure(
        **{"class": "port_in_use", "cause": "port 30000 is taken", "line": 7, "advice": "leave the port empty"}
    )
    with_engine(fake, EngineState.FAILED, failure=failure)
    fake.log = ["bind: address already in use"]
    fake.last_good = LaunchRequest(flags=["--moe-runner-backend", "loop"])
    run(app)
    shown = texts(app)
    assert "The engine failed: port in use" in shown
    assert "port 30000 is taken" in shown
    assert "leave the port empty" in shown
    assert "bind: address already in use" in [code.value for code in app.code]
    app.button(key="start_last_good").click()
    run(app)
    (sent,) = fake.called("launch")
    assert (sent.flags, sent.replace) == (["--moe-runner-backend", "loop"], None)
    assert app.selectbox(key="tune_reference_moe").value == "loop"


# ---- load test


def test_start_load_test_sends_the_form_for_the_running_engine(fake: FakeAgent, app: AppTest) -> None:
    with_engine(fake)
    fake.refuse["start_load"] = ConflictError("a load test runs already; stop it first")
    run(app)
    app.text_input(key="load_levels").set_value("2 8")
    app.selectbox(key="load_stop").set_value("requests")
    run(app)
    app.number_input(key="load_requests").set_value(5)
    app.text_input(key="load_tags").set_value("mtp, five")
    app.button(key="start_load").click()
    run(app)
    (sent,) = fake.called("start_load")
    assert (sent.concurrency, sent.requests, sent.duration_s) == ([2, 8], 5, None)
    assert (sent.engine_id, sent.tags) == ("e1", ["mtp", "five"])
    assert "a load test runs already" in texts(app)


def test_a_bad_level_is_explained_and_keeps_start_locked(fake: FakeAgent, app: AppTest) -> None:
    with_engine(fake)
    run(app)
    app.text_input(key="load_levels").set_value("one")
    run(app)
    assert "is not a number of users" in texts(app)
    assert app.button(key="start_load").disabled


def test_a_running_load_test_shows_live_figures_and_charts(fake: FakeAgent, app: AppTest) -> None:
    with_load(fake)
    run(app)
    # the last of 30 points: 60 × 1.6² + 29 % 3 = 155.6; 60 × 0.8² = 38.4; 40 + 5 + 60 = 105
    assert metrics(app) == {
        "Output (tok/s)": "156",
        "Per user (tok/s)": "38.4",
        "Accept length": "2.80",
        "Accept rate": "55.0 %",
        "TTFT (ms)": "105",
        "ITL (ms)": "24.0",
        "In flight": "4",
        "Failed": "0",
    }
    assert "level 2 of 3 · 2 users · 12 requests done · 21.5 s" in texts(app)
    alts = [chart.proto.alt for chart in app.get("plotly_chart")]
    assert len(alts) == 4
    assert all(alts)
    assert app.button(key="start_engine").disabled
    app.button(key="stop_load").click()
    run(app)
    assert fake.called("stop_load") == ["l1"]


def test_a_figure_that_was_not_observed_is_absent_with_its_reason(fake: FakeAgent, app: AppTest) -> None:
    with_load(fake, speculative=False)
    run(app)
    assert metrics(app)["Accept length"] == "n/a"
    assert "n/a: Accept length, Accept rate: the engine reports no speculation (MTP off)" in texts(app)
    assert not any("Accept length" in chart.proto.alt for chart in app.get("plotly_chart"))


def test_a_second_look_asks_only_for_new_points(fake: FakeAgent, app: AppTest) -> None:
    with_load(fake)
    run(app)
    run(app)
    assert fake.called("live") == [0, 30]


def test_the_summary_of_a_finished_test_stays(fake: FakeAgent, app: AppTest) -> None:
    with_load(fake, LoadState.FINISHED)
    run(app)
    table = app.dataframe[0].value.set_index("Figure")
    assert table.loc["Output", "4 users"] == "154"
    assert table.loc["Accept length", "1 user"] == "2.71"
    assert table.loc["Load client", "1 user"] == "kept up"
    assert app.get("page_link")[0].proto.label == "Open run 20261130-220200-abcd"
    run(app)
    assert app.dataframe[0].value.set_index("Figure").loc["Output", "1 user"] == "61.2"


def test_a_failed_test_names_the_reason_and_its_failed_requests(fake: FakeAgent, app: AppTest) -> None:
    with_load(fake, LoadState.FAILED)
    fake.loads = [documents.load_status(LoadState.FAILED, failure="the engine was killed (signal 9)")]
    fake.result = documents.bench(levels=[documents.level(4, 50.0, failed=3, verdict="client_bound")])
    run(app)
    shown = texts(app)
    assert "the engine was killed (signal 9)" in shown
    assert "did not keep up" in shown
    assert list(app.dataframe[1].value.iloc[0]) == ["4 users", "server_lost", "3"]


# ---- other engines and configurations


def test_sglang_has_fields_of_its_own_and_its_flags_are_those_it_declares(fake: FakeAgent, app: AppTest) -> None:
    run(app)
    app.radio(key="tune_kind").set_value("sglang")
    run(app)
    app.text_input(key="tune_engine").set_value("/sgl/python")
    app.text_input(key="tune_gpus").set_value("0, 1")
    run(app)
    app.text_input(key="tune_model").set_value("/models/m")
    app.button(key="start_engine").click()
    fake.on_launch = lambda request: with_engine(fake, EngineState.STARTING, request=request)
    run(app)
    (sent,) = fake.called("launch")
    assert (sent.kind, sent.engine, sent.gpus, sent.model) == ("sglang", "/sgl/python", ["0", "1"], "/models/m")
    assert "backend.reference" not in app.code[0].value
    assert "/sgl/python -m sglang.launch_server" in app.code[0].value
    assert set(fake.called("scan")) == {"reference", "sglang"}


def test_an_engine_whose_flags_cannot_be_read_can_still_be_started(fake: FakeAgent, app: AppTest) -> None:
    fake.refuse["scan"] = InputError("/opt/sgl holds no sglang package")
    run(app)
    assert "/opt/sgl holds no sglang package" in texts(app)
    assert not app.toggle
    app.text_area(key="tune_other").set_value("--anything 1")
    run(app)
    assert not app.button(key="start_engine").disabled


def test_an_attached_server_leaves_the_form_with_its_defaults(fake: FakeAgent, app: AppTest) -> None:
    with_engine(fake, request=LaunchRequest(kind="attach"))
    run(app)
    assert app.radio(key="tune_kind").value == "reference"


def test_the_last_good_configuration_is_offered_once_the_form_differs_from_it(fake: FakeAgent, app: AppTest) -> None:
    fake.last_good = LaunchRequest(kind="reference", flags=documents.MTP_FLAGS)
    run(app)
    assert app.toggle(key="tune_mtp").value is True  # the form opens with it
    assert not [button for button in app.button if button.key == "start_last_good"]
    app.toggle(key="tune_mtp").set_value(False)
    run(app)
    assert app.button(key="start_last_good").label == "Start last good configuration"
