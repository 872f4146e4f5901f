"""Engine flags are checked against what the engine declares, before anything runs."""

import pytest

from backend.errors import UsageError
from backend.flagwords import (
    GivenFlag,
    check_flags,
    longer_names,
    number_of,
    split_flags,
    unabbreviated,
    value_of,
    wrong_value,
    wrong_variable,
)
from backend.schema.engine import Flag, Scan

SCAN = Scan(
    version="1",
    style="test",
    root=".",
    flags=[
        Flag(flag="--model-path", field="model_path", aliases=["--model"], type="str"),
        Flag(flag="--port", field="port", type="int"),
        Flag(flag="--max-running-requests", field="m", type="int", aliases=["-mr"]),
        Flag(flag="--mem-fraction-static", field="f", type="float"),
        Flag(flag="--moe-runner-backend", field="b", type="str", choices=["auto", "grouped"]),
        Flag(flag="--other-backend", field="o", type="str", choices=["a"], choices_complete=False),
        Flag(flag="--disable-radix-cache", field="d", type="bool"),
        Flag(flag="--graph-sizes", field="g", type="list"),
    ],
)


def test_flags_are_grouped_with_their_values_in_every_spelling() -> None:
    words = (
        "--mem-fraction-static=0.5 -mr 8 -mr=9 --disable-radix-cache --graph-sizes 1 2 4 --other-backend new".split()
    )
    assert check_flags(words, SCAN) == [
        GivenFlag("--mem-fraction-static", ("0.5",)),
        GivenFlag("--max-running-requests", ("8",)),
        GivenFlag("--max-running-requests", ("9",)),
        GivenFlag("--disable-radix-cache", ()),
        GivenFlag("--graph-sizes", ("1", "2", "4")),
        GivenFlag("--other-backend", ("new",)),
    ]


@pytest.mark.parametrize("value", ["-1", "-.5", "-", "- a list\n- of lines", "a=b"])
def test_what_only_looks_like_a_flag_is_a_value(value: str) -> None:
    assert split_flags(["--x", value], None) == [GivenFlag("--x", (value,))]


def test_words_before_any_flag_have_no_name() -> None:
    assert split_flags(["1", "2", "--x"], None) == [GivenFlag("", ("1", "2")), GivenFlag("--x", ())]


def test_a_value_with_an_equals_sign_and_an_empty_value_stay_whole() -> None:
    assert split_flags(["--x=a=b", "--y="], None) == [GivenFlag("--x", ("a=b",)), GivenFlag("--y", ("",))]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max-runing-requests 4", "engine (1); did you mean --max-running-requests?"),
        ("--modle x", "--modle is not a flag of this engine (1); did you mean --model?"),
        ("--zzzzz", "--zzzzz is not a flag of this engine (1); `scan` lists"),
        ("--disable-radix-cache -q", "-q is not a flag"),
        ("--moe-runner-backend", "needs a value; it can be auto, grouped"),
        ("--other-backend", "needs a value; it can be for example a"),
        ("--moe-runner-backend triton", "cannot be 'triton'; it can be auto, grouped"),
        ("--max-running-requests four", "needs a whole number, got 'four'"),
        ("--max-running-requests 1.5", "needs a whole number, got '1.5'"),
        ("--mem-fraction-static much", "needs a number, got 'much'"),
        ("--disable-radix-cache yes", "is a switch and takes no value, got 'yes'"),
        ("--mem-fraction-static 0.5 0.6", "takes one value, got '0.5 0.6'"),
        ("--port 30000", "--port is set by Slipstream itself; remove it here and give the port of the launch"),
        ("--model other", "--model-path is set by Slipstream itself; remove it here and give the model of the launch"),
        ("0.5 --disable-radix-cache", "'0.5' stands before any flag"),
    ],
)
def test_a_wrong_flag_is_named_with_what_would_be_right(words: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_flags(words.split(), SCAN)
    assert message in str(caught.value)


def test_a_line_break_in_a_word_is_refused() -> None:
    with pytest.raises(UsageError, match="line break"):
        check_flags(["--moe-runner-backend", "auto\n--port"], SCAN)


def test_without_a_scan_flags_still_need_the_form_of_flags() -> None:
    assert check_flags(["--tp-size", "4", "--x=1"], None) == [
        GivenFlag("--tp-size", ("4",)),
        GivenFlag("--x", ("1",)),
    ]
    for words in (["--Bad_Name", "1"], ["--port", "1"], ["value"]):
        with pytest.raises(UsageError):
            check_flags(words, None)


def test_the_last_value_of_a_repeated_flag_counts() -> None:
    given = [GivenFlag("--x", ("1",)), GivenFlag("--y", ()), GivenFlag("--x", ("2",))]
    assert (value_of(given, "--x"), value_of(given, "--y"), value_of(given, "--z")) == ("2", None, None)


def test_every_value_of_a_list_is_checked() -> None:
    sizes = Flag(flag="--sizes", field="s", type="list", choices=["1", "2"])
    assert wrong_value(sizes, ["1", "2"]) is None
    assert wrong_value(sizes, ["1", "3"]) == "--sizes cannot be '3'; it can be 1, 2"


def test_only_a_flag_for_numbers_makes_a_word_a_number() -> None:
    whole, broken, text = (Flag(flag="--f", field="f", type=kind) for kind in ("int", "float", "str"))
    assert (number_of(whole, "-7"), number_of(broken, "1e-3"), number_of(text, "7")) == (-7, 0.001, None)
    assert number_of(whole, "7.5") is None


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A\n"])
def test_a_name_that_no_variable_can_have_is_refused(name: str) -> None:
    assert "is not a name for an environment variable" in (wrong_variable(name, "1") or "")


def test_the_value_of_a_variable_is_never_repeated() -> None:
    assert wrong_variable("_A1", "hunter2") is None
    message = wrong_variable("TOKEN", "hunter2\n")
    assert message is not None
    assert "TOKEN contains a NUL or a line break" in message
    assert "hunter2" not in message


def test_a_switch_may_be_switched_off_by_its_own_word():
    slow = Flag(flag="--slow", field="slow", type="bool", negation="--no-slow")
    scan = Scan(version="1", style="x", root="/", flags=[slow])
    assert check_flags(["--no-slow"], scan) == [GivenFlag("--no-slow", ())]
    with pytest.raises(UsageError, match="takes no value"):
        check_flags(["--no-slow", "1"], scan)


def test_an_abbreviation_is_read_as_argparse_reads_it():
    # --max-r has one longer spelling, --m has several, --port is a name itself and -m no long one.
    words = ["--max-r", "8", "--mem=0.5", "--m", "x", "--port", "1", "-m", "y"]
    full = ["--max-running-requests", "8", "--mem-fraction-static=0.5", "--m", "x", "--port", "1", "-m", "y"]
    assert unabbreviated(words, SCAN) == full
    assert len(longer_names("--m", SCAN)) > 1
    assert longer_names("--port", SCAN) == []
    assert longer_names("--nothing", SCAN) == []
