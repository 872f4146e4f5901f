"""Engine flags are checked against what the engine declares, before anything runs."""

import pytest

from backend.errors import UsageError
from backend.schema.engine import Flag, Scan
from backend.supervisor.flags import GivenFlag, check_flags, split_unchecked_flags

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
    words = "--mem-fraction-static=0.5 -mr 8 --disable-radix-cache --graph-sizes 1 2 4 --other-backend new".split()
    assert check_flags(words, SCAN) == [
        GivenFlag("--mem-fraction-static", ("0.5",)),
        GivenFlag("--max-running-requests", ("8",)),
        GivenFlag("--disable-radix-cache", ()),
        GivenFlag("--graph-sizes", ("1", "2", "4")),
        GivenFlag("--other-backend", ("new",)),
    ]


def test_a_negative_number_is_a_value() -> None:
    assert check_flags(["--max-running-requests", "-1"], SCAN)[0].values == ("-1",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max-runing-requests 4", "no flag --max-runing-requests; did you mean --max-running-requests"),
        ("--zzzzz", "no flag --zzzzz; `scan` lists"),
        ("--moe-runner-backend", "needs a value; it can be auto, grouped"),
        ("--moe-runner-backend triton", "cannot be 'triton'; it can be auto, grouped"),
        ("--max-running-requests four", "needs a whole number, got 'four'"),
        ("--max-running-requests 1.5", "needs a whole number, got '1.5'"),
        ("--mem-fraction-static much", "needs a number, got 'much'"),
        ("--disable-radix-cache yes", "is a switch and takes no value, got 'yes'"),
        ("--mem-fraction-static 0.5 0.6", "takes one value, got '0.5 0.6'"),
        ("--port 30000", "--port is set by Slipstream itself; use the option --port"),
        ("--model other", "--model-path is set by Slipstream itself; use the option MODEL"),
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


def test_unchecked_flags_still_need_the_form_of_flags() -> None:
    assert split_unchecked_flags(["--tp-size", "4", "--x=1"]) == [
        GivenFlag("--tp-size", ("4",)),
        GivenFlag("--x", ("1",)),
    ]
    for words in (["--Bad_Name", "1"], ["--port", "1"], ["value"]):
        with pytest.raises(UsageError):
            split_unchecked_flags(words)
