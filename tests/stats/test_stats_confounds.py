"""What differs besides the setting under test, and what makes two runs not comparable."""

import pytest
from stats_example import closed_loop, run_of

from backend.schema.engine import EngineKind
from backend.schema.run import Comparison
from backend.stats import compare_runs

A, B = closed_loop([10.0] * 8), closed_loop([8.0] * 8)


def compared(a: dict[str, object], b: dict[str, object]) -> Comparison:
    return compare_runs(run_of(A, run_id="a", **a), run_of(B, run_id="b", **b), A, B)  # type: ignore[arg-type]


def engines(a: dict[str, object], b: dict[str, object]) -> Comparison:
    return compared({"engine": a}, {"engine": b})


def test_two_like_runs_have_no_confounds() -> None:
    comparison = compared({}, {})
    assert (comparison.confounds, comparison.config_diff, comparison.verdict) == ([], [], "b_better")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("dataset", "chat", "different dataset: code and chat"),
        ("input_len", 64, "different tokens per prompt: not set and 64"),
        ("output_len", 64, "different tokens per answer: 128 and 64"),
        ("temperature", 0.7, "different temperature: 0.0 and 0.7"),
        ("top_p", 0.9, "different top-p: 1.0 and 0.9"),
        ("endpoint", "chat", "different endpoint: generate and chat"),
        ("chat_template", False, "different chat template: True and False"),
        ("ignore_eos", False, "different choice to go on after an end token: True and False"),
    ],
)
def test_another_workload_is_not_comparable(field: str, value: object, words: str) -> None:
    comparison = compared({}, {field: value})
    assert (comparison.verdict, comparison.confounds) == ("not_comparable", [words])
    figures = {one.name: one for one in comparison.metrics}
    assert figures["tok_s_user"].ratio == pytest.approx(1.25)  # still side by side
    assert (figures["tok_s_user"].verdict, figures["tok_s_user"].reason) == ("not_comparable", words)
    assert figures["tok_s_user"].ci_low is None


def test_another_model_is_not_comparable() -> None:
    comparison = engines({"model": "tiny"}, {"model": "large"})
    assert comparison.verdict == "not_comparable"
    assert comparison.confounds == ["different model: tiny and large"]


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ({}, {"seed": 3}, "different seed: 0 and 3"),
        ({"requests": 8}, {"requests": 16}, "different requests per level: 8 and 16"),
        (
            {"requests": None, "duration_s": 5.0},
            {"requests": None, "duration_s": 9.0},
            "different seconds per level: 5.0 and 9.0",
        ),
        ({}, {"flush_cache": False}, "different choice to empty the prefix cache first: True and False"),
        ({"host": {"hostname": "x"}}, {"host": {"hostname": "y"}}, "different host hostname: x and y"),
        ({}, {"verdict": "client_bound"}, "run b was limited by the load client, so its figures describe the client"),
        ({"verdict": "interrupted"}, {}, "run a was interrupted: its agent died"),
        ({"engine": {"kind": EngineKind.SGLANG}}, {}, "different engine: sglang and reference"),
        ({}, {"engine": {"version": "2"}}, "different engine version: 1 and 2"),
    ],
)
def test_a_confound_is_said_and_does_not_forbid_the_comparison(
    a: dict[str, object], b: dict[str, object], words: str
) -> None:
    comparison = compared(a, b)
    assert comparison.confounds == [words]
    assert comparison.verdict == "b_better"


def test_failed_requests_are_counted_in_the_confound() -> None:
    failed = run_of(A, verdict="partial")
    level = failed.bench.levels[0]
    counts = level.requests.model_copy(update={"failed": 3})
    levels = [level.model_copy(update={"requests": counts})]
    comparison = compare_runs(run_of(A, levels=levels, verdict="partial"), run_of(B), A, B)
    assert comparison.confounds == ["run a was stopped or had failed requests (3 failed requests)"]


def test_a_warm_prefix_cache_on_one_side_voids_the_level() -> None:
    # 8 requests x 100 input tokens; 90 cached of each on side b.
    warm = [one.model_copy(update={"cached_tokens": 90}) for one in B]
    comparison = compare_runs(run_of(A), run_of(warm), A, warm)
    assert comparison.verdict == "not_comparable"
    assert comparison.confounds == [
        "different share of the input from the prefix cache at concurrency 1: 0.0 % and 90.0 %"
    ]


def test_a_cache_that_differs_by_less_than_a_point_is_no_matter() -> None:
    warm = [one.model_copy(update={"cached_tokens": 1}) for one in B]  # 1 % of the input
    assert compare_runs(run_of(A), run_of(warm), A, warm).verdict == "b_better"


def test_effective_settings_that_nobody_asked_to_differ_are_confounds() -> None:
    # Switching speculation on is the one decision; its own parameters follow from it, the two others do not.
    comparison = engines(
        {"argv": ["python"], "effective": {"disable_radix_cache": False, "max_running_requests": 48, "port": 1}},
        {
            "argv": ["python", "--speculative-algorithm", "NEXTN"],
            "effective": {
                "disable_radix_cache": True,
                "max_running_requests": 16,
                "speculative_algorithm": "EAGLE",
                "speculative_num_steps": 3,
                "port": 2,
            },
        },
    )
    assert comparison.confounds == [
        "disable_radix_cache is false and true, though no flag asked for a difference",
        "max_running_requests is 48 and 16, though no flag asked for a difference",
    ]


def test_an_effective_setting_that_was_asked_for_is_no_confound() -> None:
    comparison = engines(
        {"argv": ["--max-running-requests", "48"], "effective": {"max_running_requests": 48}},
        {"argv": ["--max-running-requests=16"], "effective": {"max_running_requests": 16}},
    )
    assert comparison.confounds == []


def test_the_configuration_difference_lists_requested_before_effective() -> None:
    comparison = engines(
        {
            "argv": ["python", "-m", "x", "--tp", "2", "--port", "30000", "--enable-x", "--words", "a", "b"],
            "env": {"A": "1", "SAME": "s"},
            "effective": {"tp": 2, "pool": None, "nested": {"state": 1}},
        },
        {
            "argv": ["python", "-m", "x", "--tp=4", "--port", "30001", "--words", "a"],
            "env": {"B": "2", "SAME": "s"},
            "effective": {"tp": 4, "pool": 0.8, "nested": {"state": 2}},
            "version": "2",
        },
    )
    assert [(one.setting, one.a, one.b) for one in comparison.config_diff] == [
        ("--enable-x", "on", None),
        ("--tp", "2", "4"),
        ("--words", "a b", "a"),
        ("env A", "1", None),
        ("env B", None, "2"),
        ("effective pool", None, "0.8"),
        ("effective tp", "2", "4"),
        ("engine version", "1", "2"),
    ]


def test_where_an_engine_listens_is_no_difference() -> None:
    comparison = engines({"argv": ["--port", "1", "--host", "x"]}, {"argv": ["--port", "2"]})
    assert comparison.config_diff == []
