import pytest

from pages.ui import format as fmt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0"),
        (0.01234, "0.0123"),
        (3.456, "3.46"),
        (99.96, "100"),
        (0.99996, "1.00"),
        (123.4, "123"),
        (12345.6, "12,346"),
    ],
)
def test_numbers_keep_three_digits_and_never_an_exponent(value: float | None, text: str) -> None:
    assert fmt.number(value) == text


def test_a_unit_follows_a_number_but_not_an_absence() -> None:
    assert fmt.with_unit(12.34, "ms") == "12.3 ms"
    assert fmt.with_unit(None, "ms") == "n/a"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (512, "512 B"),
        (1536, "1.50 KiB"),  # 1.5 × 1024
        (12 * 1024**3, "12.0 GiB"),
        (1023 * 1024**2, "1,023 MiB"),
    ],
)
def test_memory_is_in_binary_units(value: float | None, text: str) -> None:
    assert fmt.memory(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "n/a"), (0.042, "0.04 s"), (12.34, "12.3 s"), (185, "3 min 05 s"), (7440, "2 h 04 min")],
)
def test_durations_change_units_where_people_do(value: float | None, text: str) -> None:
    assert fmt.seconds(value) == text


def test_a_time_is_shown_in_utc_and_something_else_as_it_is() -> None:
    assert fmt.when("2026-11-30T22:01:12.345Z") == "2026-11-30 22:01:12 UTC"
    assert fmt.when("yesterday") == "yesterday"
    assert fmt.when("") == "n/a"


def test_foreign_text_cannot_become_markdown() -> None:
    assert fmt.plain("[x](http://y) :red[z] $a$") == r"\[x\](http\://y) \:red\[z\] \$a\$"
    assert fmt.code_word("a`b") == "`a’b`"


def test_commands_between_backticks_stay_code_and_a_lone_backtick_does_not() -> None:
    assert fmt.plain("run `python -m x_y` or a_b") == r"run `python -m x_y` or a\_b"
    assert fmt.plain("a ` b") == r"a \` b"
