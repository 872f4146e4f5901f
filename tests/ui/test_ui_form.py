import pytest

from backend.schema.engine import EngineKind, Flag, LaunchRequest, Scan
from pages.ui import form
from tests.fakes.documents import MTP_FLAGS, SCAN


def draft(**changes: object) -> form.Draft:
    values = {"steps": 3, "topk": 1, "tokens": 4}
    return form.Draft(**{"values": values, **changes})  # type: ignore[arg-type]


def test_only_declared_controls_exist() -> None:
    keys = [control.key for control, _ in form.declared(SCAN)]
    assert keys == ["steps", "topk", "tokens", "moe", "mem_fraction", "max_running"]
    assert form.declared(Scan(version=None, style="", root="", flags=[])) == []


def test_an_older_spelling_of_a_flag_is_found() -> None:
    scan = Scan(version="1", style="", root="", flags=[Flag(flag="--fp4-gemm-runner-backend", field="f", type="str")])
    assert [flag.flag for _, flag in form.declared(scan)] == ["--fp4-gemm-runner-backend"]


def test_mtp_off_leaves_every_speculation_flag_out() -> None:
    assert form.plan(SCAN, draft(mtp=False)).flags == []


def test_mtp_on_sends_steps_topk_and_the_derived_draft_tokens() -> None:
    made = form.plan(SCAN, draft(mtp=True, values={"steps": 5, "topk": 1, "tokens": 99}))
    # top-k 1: one token per step and the target's own, 5 + 1
    assert made.flags == [
        *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "5"),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "6"),
    ]
    assert made.problems == {}


def test_a_wider_tree_uses_the_draft_tokens_that_were_given() -> None:
    scan = SCAN.model_copy(
        update={"flags": [f.model_copy(update={"choices": None}) if "topk" in f.flag else f for f in SCAN.flags]}
    )
    made = form.plan(scan, draft(mtp=True, values={"steps": 3, "topk": 4, "tokens": 16}))
    assert made.flags[-2:] == ["--speculative-num-draft-tokens", "16"]


def test_mtp_is_not_offered_by_an_engine_whose_choices_lack_it() -> None:
    scan = Scan(
        version="1",
        style="",
        root="",
        flags=[Flag(flag="--speculative-algorithm", field="a", type="str", choices=["EAGLE"])],
    )
    assert not form.has_mtp(scan)
    assert form.has_mtp(SCAN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--no-such-flag 1", "--no-such-flag is not a flag of this engine"),
        ("--random-sead 1", "did you mean --random-seed?"),
        ("--random-seed", "--random-seed needs a value"),
        ("--random-seed one", "needs a whole number, got 'one'"),
        ("--random-seed 1 2", "takes one value, got '1 2'"),
        ("--disable-radix-cache yes", "is a switch and takes no value"),
        ("--port 30000", "is set by Slipstream itself"),
        ("--model x", "is set by Slipstream itself"),
        ("--moe-runner-backend loop", "is set by its own control"),
        ("7 --random-seed 1", "'7' stands before any flag"),
        ("--random-seed 'one", "Close every quotation mark"),
    ],
)
def test_a_bad_other_flag_is_named_under_its_field(text: str, message: str) -> None:
    made = form.plan(SCAN, draft(other=text))
    assert message in made.problems["other"]


def test_good_other_flags_are_passed_as_words() -> None:
    made = form.plan(SCAN, draft(other="--random-seed=-7 --disable-radix-cache  # why"))
    assert made.flags == ["--random-seed=-7", "--disable-radix-cache"]
    assert made.problems == {}


def test_nothing_in_the_other_flags_is_run_by_a_shell() -> None:
    made = form.plan(SCAN, draft(other="--random-seed $(touch /x)"))
    assert "--random-seed takes one value" in made.problems["other"]


def test_a_value_outside_the_choices_is_refused_with_the_list() -> None:
    made = form.plan(SCAN, draft(values={"moe": "triton"}))
    assert made.problems["moe"] == "--moe-runner-backend cannot be 'triton'; it can be auto, loop, grouped"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\nB", "Line 2: `B` is not KEY=VALUE"),
        ("1A=2", "Line 1: '1A' is not a name for an environment variable"),
        ("A=1\n\nA=2", "Line 3: A is set twice"),
    ],
)
def test_a_bad_environment_line_is_named_by_its_number(text: str, message: str) -> None:
    assert message in form.plan(SCAN, draft(env=text)).problems["env"]


def test_environment_values_keep_blanks_and_equals_signs() -> None:
    assert form.environment("# a comment\nA=x = y\n")[0] == {"A": "x = y"}


def test_an_engine_that_declares_nothing_gets_the_words_unchecked() -> None:
    scan = Scan(version=None, style="unknown", root="", flags=[])
    made = form.plan(scan, draft(kind=EngineKind.SGLANG, other="--tp-size 4"))
    assert (made.flags, made.problems) == (["--tp-size", "4"], {})


def test_the_command_line_shows_environment_model_and_flags_quoted() -> None:
    request = LaunchRequest(kind=EngineKind.REFERENCE, model="/my models/a", env={"K": "a b"}, flags=["--x", "1"])
    words = form.command_line(request)
    assert words[:2] == ["env", "K=a b"]
    assert form.command_text(words) == (
        "env 'K=a b' python -m backend.reference \\\n  --model-path '/my models/a' \\\n  --host 127.0.0.1 \\\n  --x 1"
    )


def test_the_command_line_of_sglang_and_a_chosen_port() -> None:
    request = LaunchRequest(kind=EngineKind.SGLANG, model="m", python="/venv/bin/python", port=31000)
    assert form.command_line(request) == [
        *("/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "m"),
        *("--host", "127.0.0.1", "--port", "31000"),
    ]


def test_changes_name_flags_and_variables_that_differ() -> None:
    running = LaunchRequest(kind=EngineKind.REFERENCE, flags=MTP_FLAGS, env={"A": "1"})
    wanted = LaunchRequest(
        kind=EngineKind.REFERENCE, flags=[*MTP_FLAGS[:3], "2", "--max-running-requests", "8"], env={"A": "2"}
    )
    assert form.changes(SCAN, wanted, running) == [
        "--speculative-num-steps",
        "--speculative-eagle-topk",
        "--speculative-num-draft-tokens",
        "--max-running-requests",
        "A",
    ]
    assert form.changes(SCAN, running, running) == []


def test_the_order_and_spelling_of_flags_is_no_change() -> None:
    one = LaunchRequest(kind=EngineKind.REFERENCE, flags=["--random-seed", "1", "--mem-fraction-static=0.5"])
    other = LaunchRequest(kind=EngineKind.REFERENCE, flags=["--mem-fraction-static", "0.5", "--random-seed", "1"])
    assert form.changes(SCAN, one, other) == []


def test_a_form_filled_from_a_request_makes_that_request_again() -> None:
    request = LaunchRequest(
        kind=EngineKind.REFERENCE,
        model="/m",
        port=31000,
        env={"A": "1"},
        flags=[*MTP_FLAGS, "--moe-runner-backend", "loop", "--random-seed", "7", "--disable-radix-cache"],
    )
    filled = form.draft_from(SCAN, request)
    assert filled.values["steps"] == 3
    assert filled.values["moe"] == "loop"
    assert filled.other == "--random-seed 7 --disable-radix-cache"
    again = form.launch_request(filled, form.plan(SCAN, filled))
    assert form.changes(SCAN, again, request) == []


def test_another_algorithm_keeps_its_flags_in_the_free_field() -> None:
    request = LaunchRequest(flags=["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "5"])
    filled = form.draft_from(SCAN, request)
    assert not filled.mtp
    assert filled.other == "--speculative-algorithm EAGLE --speculative-num-steps 5"
