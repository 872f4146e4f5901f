"""What a saved log says. The logs are described in `tests/fixtures/logs/README.md`."""

from pathlib import Path

import pytest

from backend.clock import monotonic_s
from backend.supervisor import diagnose_log
from backend.supervisor.failure_table import FAILURES

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
GIB = 2**30


def read(name: str) -> str:
    return (LOGS / f"{name}.log").read_bytes().decode()  # read_text would turn carriage returns into line breaks


def gib(name: str) -> dict[str, tuple[float, int | None]]:
    return {key: (round(item.bytes / GIB, 2), item.line) for key, item in diagnose_log(read(name)).ledger.items()}


def test_the_ledger_of_the_older_release_with_speculation() -> None:
    # 0.74 + 31.70 of Mamba state; 18.02 + 18.02 target KV; 9.01 + 9.01 draft KV; draft graphs 0.11 + 0.14.
    assert gib("real-older-mtp") == {
        "target_weights": (0.47, 36),
        "mamba_state": (32.44, 38),
        "intermediate_ssm": (0.57, 38),
        "intermediate_conv": (0.01, 38),
        "kv_pool": (36.04, 39),
        "target_graphs": (0.21, 53),
        "mtp_weights": (0.05, 58),
        "draft_kv": (18.02, 60),
        "draft_graphs": (0.25, 68),
    }


def test_the_ledger_of_the_newer_release_with_speculation() -> None:
    # 0.41 + 17.53; 24.93 twice; 12.47 twice; target graphs 0.57 prefill + 0.06 verify; draft graphs 0.05 twice.
    ledger = gib("real-newer-mtp")
    assert {name: size for name, (size, _) in ledger.items()} == {
        "target_weights": 0.47,
        "mtp_weights": 0.07,
        "mamba_state": 17.94,
        "intermediate_ssm": 0.39,
        "intermediate_conv": 0.0,
        "kv_pool": 49.86,
        "draft_kv": 24.94,
        "target_graphs": 0.63,
        "draft_graphs": 0.1,
    }


def test_without_speculation_nothing_of_a_draft_is_listed() -> None:
    assert set(gib("real-older-plain")) == {"target_weights", "mamba_state", "kv_pool", "target_graphs"}


def test_phases_come_in_the_engines_own_order_and_add_up() -> None:
    # The older release loads the draft after the target's graphs: 19:54:24 first stamp, 19:54:53 load, 19:54:54 graphs
    # until 19:55:11, draft load and pools, graphs 19:55:11 to 19:55:22, warm-up until 19:55:25.
    diagnosis = diagnose_log(read("real-older-mtp"))
    phases = {phase.name: phase.seconds for phase in diagnosis.phases}
    assert list(phases) == ["init", "load_target", "pools", "graphs", "load_draft", "warmup", "ready"]
    assert (phases["init"], phases["graphs"], phases["warmup"]) == (29, 17 + 11, 3)
    assert sum(seconds for seconds in phases.values() if seconds is not None) == 61  # 19:54:24 to 19:55:25
    assert diagnosis.ready
    assert diagnosis.failure is None


def test_the_newer_release_loads_the_draft_before_the_pools() -> None:
    names = [phase.name for phase in diagnose_log(read("real-newer-mtp")).phases]
    assert names == ["init", "load_target", "load_draft", "pools", "graphs", "warmup", "ready"]


def test_a_server_that_was_asked_to_stop_did_not_fail() -> None:
    assert "SIGTERM received" in read("real-newer-mtp")
    assert diagnose_log(read("real-newer-mtp")).failure is None


@pytest.mark.parametrize(
    "notice",
    [
        "Speculative arguments have no effect without --speculative-algorithm.",
        "speculative_eagle_topk is not set: 1 is used.",
        "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1",
        "fp4_gemm_backend has no effect: the checkpoint's experts are not stored in NVFP4.",
    ],
)
def test_every_notice_of_the_reference_engine_is_a_changed_value(notice: str) -> None:
    assert [change.message for change in diagnose_log(f"[2026-01-01 00:00:00] {notice}").changed] == [notice]


def test_values_that_the_engine_changed_are_listed_once_with_their_line() -> None:
    changed = diagnose_log(read("real-older-mtp")).changed
    assert changed[0].line == 6
    assert changed[0].message.startswith("Max running requests is reset to 48")
    assert len({change.message for change in changed}) == len(changed)


def test_ranks_are_told_apart_and_the_neediest_one_counts() -> None:
    diagnosis = diagnose_log(read("made-tp2"))
    weights = diagnosis.ledger["target_weights"]
    assert (weights.bytes, weights.device, weights.line) == (31 * GIB, "TP1", 8)
    assert "mtp_weights" not in diagnosis.ledger  # two ranks load one model each, not a target and a draft
    assert diagnosis.ledger["target_graphs"].bytes == GIB // 4
    # TP0, the first rank that speaks, gives the phases: 0 to 2, to 34, to 40, to 45 s.
    assert {p.name: p.seconds for p in diagnosis.phases} == {
        "init": 2,
        "load_target": 32,
        "pools": 6,
        "graphs": 5,
        "warmup": None,
    }


REAL = {
    "oom_device": ("real-newer-oom", 83),
    "kv_pool_too_small": ("real-older-kv-pool-too-small", 69),
    "config_rejected": ("real-older-radix-cache-refused", 25),
    "unknown_flag": ("real-newer-unknown-flag", 30),
    "killed_by_os": ("real-older-scheduler-killed", 102),
}


@pytest.mark.parametrize("failure_class", REAL)
def test_a_real_failure_is_classified_at_the_line_of_its_cause(failure_class: str) -> None:
    name, line = REAL[failure_class]
    found = diagnose_log(read(name)).failure
    assert found is not None
    assert (found.failure_class, found.line) == (failure_class, line)


MADE = sorted(path.stem.removeprefix("made-") for path in LOGS.glob("made-*.log") if path.stem != "made-tp2")


@pytest.mark.parametrize("failure_class", MADE)
def test_a_made_failure_is_classified_as_its_file_says(failure_class: str) -> None:
    found = diagnose_log(read(f"made-{failure_class}")).failure
    assert found is not None
    assert found.failure_class == failure_class
    assert found.advice


def test_every_class_of_the_table_has_a_log() -> None:
    without_message = {row.failure_class for row in FAILURES if row.pattern is None}
    classes = {row.failure_class for row in FAILURES}
    assert classes - set(MADE) - set(REAL) - without_message == set()


@pytest.mark.parametrize(
    "line",
    [
        "/usr/bin/python3: No module named sglang",
        "ModuleNotFoundError: No module named 'torch'",
        "/opt/env/bin/python3.12: Error while finding module specification for 'sglang.launch_server'",
    ],
)
def test_an_interpreter_without_the_engine_is_told_apart_from_a_broken_driver(line: str) -> None:
    found = diagnose_log(line + "\n").failure
    assert found is not None
    assert (found.failure_class, found.line) == ("driver_or_library", 1)
    assert "--engine ENV/bin/python" in found.advice


def test_an_optional_module_that_the_engine_goes_on_without_is_no_failure() -> None:
    log = "[2026-01-01 00:00:00] Ignore import error when loading models.mimo: No module named 'torchcodec'\n"
    found = diagnose_log(log).failure
    assert found is None or found.failure_class == "unknown"


def test_the_two_memory_errors_get_opposite_advice() -> None:
    full = diagnose_log(read("real-newer-oom")).failure
    small = diagnose_log(read("real-older-kv-pool-too-small")).failure
    assert full is not None
    assert small is not None
    assert "lower --mem-fraction-static" in full.advice
    assert "lower" not in small.advice
    assert "raise --mem-fraction-static" in small.advice


def test_the_list_of_arguments_is_no_evidence() -> None:
    log = "[2026-01-01 00:00:00] server_args=ServerArgs(x='CUDA out of memory', y='is reset to 4')"
    diagnosis = diagnose_log(log)
    assert (diagnosis.failure and diagnosis.failure.failure_class) == "unknown"
    assert diagnosis.changed == []


@pytest.mark.parametrize("text", ["", "\n\n", "no engine wrote this"])
def test_a_text_that_is_no_log_has_no_phases(text: str) -> None:
    assert not diagnose_log(text).ready
    assert diagnose_log(text).ledger == {}


def test_a_message_behind_a_progress_bar_is_read() -> None:
    bar = "Capturing batches (bs=48):  0%| | 0/23\rCapturing batches (bs=44):  4%|| 1/23"
    line = bar + "[2026-01-01 00:00:09] Load weight begin. avail mem=1 GB\x1b[0m"
    log = f"[2026-01-01 00:00:01] Init torch distributed begin.\n\x1b[32m{line}"
    assert [(p.name, p.seconds, p.line) for p in diagnose_log(log).phases] == [("init", 8, 1), ("load_target", None, 2)]


def test_a_line_of_source_in_a_traceback_is_no_message() -> None:
    quoted = '    raise RuntimeError("CUDA out of memory")'
    log = f"Scheduler hit an exception: Traceback\n{quoted}\nRuntimeError: the pool is odd"
    found = diagnose_log(log).failure
    assert found is not None
    assert (found.failure_class, found.cause, found.line) == ("scheduler_died", "RuntimeError: the pool is odd", 3)


def test_a_hostile_line_does_not_hold_up_the_agent() -> None:
    line = "moe backend " + "moe_backend attention_backend Capturing Loading 5 " * 1300  # 64 KB without a match
    begun_s = monotonic_s()
    diagnose_log(line)
    assert monotonic_s() - begun_s < 1
