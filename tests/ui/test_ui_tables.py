from backend.schema.engine import EngineState
from backend.schema.run import ComparedMetric
from pages.ui import tables
from tests.fakes import documents


def by_label(rows: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {row["Figure"]: row for row in rows}


def test_a_launch_shows_every_phase_done_running_or_to_come() -> None:
    rows = {row.label: row.state for row in tables.phase_rows(documents.engine(EngineState.STARTING))}
    assert rows == {
        "Stop the old engine": "skipped",
        "Wait for its memory": "skipped",
        "Start the process": "done",
        "Load weights": "done",
        "Load MTP": "running",
        "Allocate caches": "waiting",
        "Capture graphs": "waiting",
        "Warm up": "waiting",
        "Ready": "waiting",
    }


def test_the_phase_in_which_a_launch_failed_is_marked() -> None:
    rows = {row.label: row.state for row in tables.phase_rows(documents.engine(EngineState.FAILED))}
    assert (rows["Load weights"], rows["Load MTP"]) == ("done", "failed")
    assert (rows["Allocate caches"], rows["Ready"]) == ("missed", "missed")


def test_phases_that_a_ready_engine_never_had_were_not_needed() -> None:
    rows = {row.label: row.state for row in tables.phase_rows(documents.engine())}
    assert (rows["Capture graphs"], rows["Ready"]) == ("skipped", "done")


def test_levels_are_columns_and_figures_are_rows() -> None:
    rows = by_label(tables.level_rows(documents.bench().levels))
    assert rows["Output"] == {
        "Figure": "Output",
        "1 user": "61.2",
        "2 users": "98.4",
        "4 users": "154",
        "Unit": "tok/s",
    }
    assert rows["TTFT, p99"]["2 users"] == "160"  # median 40 × 2, p99 twice that
    assert rows["Accept rate"]["1 user"] == "57.0"
    assert rows["Accepted at draft 1 / 2 / …"]["1 user"] == "80 / 55 / 36"


def test_without_speculation_accept_length_is_absent_with_its_reason() -> None:
    levels = documents.bench(speculative=False).levels
    assert by_label(tables.level_rows(levels))["Accept length"]["1 user"] == "n/a"
    assert tables.absences(levels) == ["Acceptance: the engine ran without speculation (1 user, 2 users, 4 users)"]


def test_a_level_measured_twice_gets_two_columns() -> None:
    levels = [documents.level(2, 50.0), documents.level(2, 51.0)]
    assert tables.level_heads(levels) == ["2 users (#1)", "2 users (#2)"]


def test_failed_requests_are_listed_by_class() -> None:
    assert tables.failures([documents.level(4, 50.0, failed=3)]) == [
        {"Level": "4 users", "Error class": "server_lost", "Requests": "3"}
    ]


def test_the_list_of_runs_shows_the_best_level() -> None:
    row = tables.run_rows([documents.run_row("r1")])[0]
    assert (row["Best tok/s"], row["tok/s per user"], row["Users"]) == (153.9, 38.5, "1, 4")
    empty = tables.run_rows([documents.run_row("r2", levels=[])])[0]
    assert empty["Best tok/s"] is None


def test_the_list_of_runs_tells_speculation_off_from_unknown() -> None:
    runs = [documents.run_row("r", draft_steps=steps) for steps in (3, 0, None)]
    assert [row["Draft steps"] for row in tables.run_rows(runs)] == ["3", "off", None]


def test_runs_are_filtered_by_tag_verdict_and_note() -> None:
    runs = [documents.run_row("a"), documents.run_row("b", tags=[], note="Plain", verdict="failed")]
    assert [r.id for r in tables.filter_runs(runs, "mtp", None, "")] == ["a"]
    assert [r.id for r in tables.filter_runs(runs, None, "failed", "")] == ["b"]
    assert [r.id for r in tables.filter_runs(runs, None, None, "plain")] == ["b"]


def test_requests_are_shown_with_times_from_sending() -> None:
    good, lost = tables.record_rows(documents.records("r1"))
    assert (good["TTFT (ms)"], good["Total (ms)"]) == (45.0, 910.0)
    assert round(float(str(good["Accept length"])), 2) == 2.67  # 1 + 40 / 24
    assert (lost["Result"], lost["TTFT (ms)"], lost["Accept length"]) == ("server_lost", None, None)


def test_compared_figures_carry_ratio_interval_and_verdict() -> None:
    better, same, missing = tables.compared_rows(documents.comparison("a", "b").metrics)
    assert (better["B / A"], better["Interval of B / A"], better["Verdict"]) == (
        "1.493×",
        "1.410 – 1.570",
        "B is better",
    )
    assert same["Verdict"] == "not distinguishable"
    assert (missing["A"], missing["B / A"], missing["Reason"]) == ("n/a", "n/a", "run A has no speculation counters")


def test_a_figure_without_an_interval_is_not_judged() -> None:
    whole = ComparedMetric(
        name="output_tok_s_whole", unit="tok/s", a=1.0, b=3.0, ratio=3.0, verdict="not_distinguishable"
    )
    assert tables.compared_rows([whole])[0]["Verdict"] == "not judged"


def test_a_compared_statistic_is_named_after_its_metric() -> None:
    assert tables.label_of("ttft_ms_p99") == "TTFT, p99"
    assert tables.label_of("e2e_ms_p50") == "End to end, median"
    assert tables.label_of("something_new") == "something_new"


def test_a_share_is_compared_in_per_cent() -> None:
    rate = ComparedMetric(name="accept_rate", unit="ratio", a=0.5, b=0.25, ratio=0.5, verdict="a_better")
    row = tables.compared_rows([rate])[0]
    assert (row["A"], row["B"], row["Figure"]) == ("50.0", "25.0", "Accept rate (%)")
