import pytest

from backend.schema.load import Endpoint
from pages.ui.loadform import BY_REQUESTS, FILE, LoadDraft, bench_request, levels_of, tags_of


def test_levels_may_be_separated_by_commas_or_blanks() -> None:
    assert levels_of(" 1, 2 4;8 ") == [1, 2, 4, 8]


@pytest.mark.parametrize("text", ["", "1, two", "0", "-1", "1.5"])
def test_a_word_that_is_no_level_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of users"):
        levels_of(text)


def test_tags_are_trimmed_and_kept_once() -> None:
    assert tags_of(" mtp, steps 3,, mtp ") == ["mtp", "steps 3"]


def test_the_defaults_make_a_request() -> None:
    request, problems = bench_request(LoadDraft(), "e1")
    assert problems == {}
    assert request is not None
    assert (request.concurrency, request.duration_s, request.requests) == ([1, 2, 4], 10.0, None)
    assert (request.endpoint, request.engine_id, request.dataset) == (Endpoint.GENERATE, "e1", "code")


def test_stopping_by_requests_sends_no_duration() -> None:
    request, _ = bench_request(LoadDraft(stop=BY_REQUESTS, requests=5), None)
    assert request is not None
    assert (request.requests, request.duration_s) == (5, None)


@pytest.mark.parametrize(
    ("draft", "field", "message"),
    [
        (LoadDraft(levels="1 x"), "levels", "'x' is not a number of users"),
        (LoadDraft(levels="5000"), "levels", "must be 1 to 4096"),
        (LoadDraft(dataset=FILE, file=" "), "file", "path of a prompt file"),
        (LoadDraft(output_len=None), "output_len", "tokens per answer"),
        (LoadDraft(output_len=0), "output_len", "greater than or equal to 1"),
        (LoadDraft(seconds=None), "seconds", "seconds per level"),
        (LoadDraft(seconds=-1.0), "seconds", "greater than 0"),
        (LoadDraft(temperature=-0.1), "temperature", "greater than or equal to 0"),
        (LoadDraft(warmup=-1), "warmup", "greater than or equal to 0"),
    ],
)
def test_each_bad_value_is_reported_under_its_field(draft: LoadDraft, field: str, message: str) -> None:
    request, problems = bench_request(draft, None)
    assert request is None
    assert message in problems[field]
