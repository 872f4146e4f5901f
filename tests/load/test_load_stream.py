"""What a response stream says, read from real streams and from small ones whose counts are known."""

import json
from pathlib import Path

import pytest

from backend.load.stream import Stream, read_generate, read_openai

STREAMS = Path(__file__).parent.parent / "fixtures" / "streams"


def feed(stream: Stream, *events: dict[str, object], start_ns: int = 1000, step_ns: int = 10) -> Stream:
    """One event every `step_ns`."""
    for number, event in enumerate(events):
        stream.feed(f"data: {json.dumps(event)}\n\n".encode(), start_ns + number * step_ns)
    stream.close()
    return stream


def generate(text: str, tokens: int, **meta: object) -> dict[str, object]:
    return {"text": text, "meta_info": {"completion_tokens": tokens, "prompt_tokens": 5, "finish_reason": None, **meta}}


def chat(delta: dict[str, object], tokens: int | None = None) -> dict[str, object]:
    usage = None if tokens is None else {"prompt_tokens": 16, "completion_tokens": tokens}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": usage}


# ---- real streams: each answer has 24 tokens, one per event


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("name", ["generate-older.txt", "generate-newer.txt"])
def test_a_real_generate_stream_has_its_counts_and_its_speculation(name: str, size: int) -> None:
    stream = Stream(read_generate)
    body = (STREAMS / name).read_bytes()
    for at in range(0, len(body), size):
        stream.feed(body[at : at + size], at)
    stream.close()
    assert stream.chunk_tokens == list(range(1, 25))
    assert (stream.input_tokens, stream.output_tokens, stream.cached_tokens) == (5, 24, 0)
    assert (stream.finish_reason, stream.done, stream.error) == ("length", True, None)
    assert stream.cumulative is True
    assert stream.text() == "):" * 24
    # the file says: 23 verify steps, 69 proposed, none correct, 24/23 by the engine's own figure
    assert stream.spec == {
        "verify_ct": 23,
        "correct_drafts": 0,
        "proposed_drafts": 69,
        "histogram": [23],
        "engine_accept_length": pytest.approx(1.0434782608695652),
    }


def test_a_real_chat_stream_with_usage_in_each_event_counts_tokens_and_not_the_opening_event() -> None:
    stream = Stream(read_openai)
    stream.feed((STREAMS / "chat-usage-each.txt").read_bytes(), 7)
    assert stream.chunk_tokens == list(range(1, 25))
    assert (stream.input_tokens, stream.output_tokens, stream.cached_tokens) == (16, 24, None)
    assert (stream.text(), stream.done, stream.finish_reason) == ("stant" * 24, True, "length")


@pytest.mark.parametrize(
    ("name", "input_tokens", "text"), [("chat-usage-last.txt", 16, "stant"), ("completions-usage-last.txt", 5, "):")]
)
def test_a_real_stream_with_usage_at_its_end_has_a_total_and_no_counts_per_event(
    name: str, input_tokens: int, text: str
) -> None:
    stream = Stream(read_openai)
    stream.feed((STREAMS / name).read_bytes(), 7)
    assert stream.chunk_tokens == []
    assert len(stream.arrivals) == 24
    assert (stream.input_tokens, stream.output_tokens) == (input_tokens, 24)
    assert stream.text() == text * 24


# ---- tokens


def test_events_that_add_no_token_are_no_arrivals() -> None:
    stream = feed(Stream(read_generate), generate("a", 1), generate("ab", 4), generate("ab", 4), generate("abc", 6))
    assert (stream.chunk_tokens, stream.chunk_ns) == ([1, 4, 6], [1000, 1010, 1030])


def test_a_trailing_usage_event_states_the_total_and_is_no_arrival() -> None:
    total = {"choices": [], "usage": {"prompt_tokens": 512, "completion_tokens": 137}}
    stream = feed(Stream(read_openai), chat({"role": "assistant", "content": ""}), chat({"content": "x"}), total)
    assert stream.output_tokens == 137
    assert stream.arrivals == [1010]


def test_usage_in_the_last_event_with_text_is_the_total_and_the_text_is_an_arrival() -> None:
    last = {**chat({"content": "z"}, 40), "choices": [{"delta": {"content": "z"}, "finish_reason": "length"}]}
    stream = feed(Stream(read_openai), chat({"content": "x"}), chat({"content": "y"}), last)
    assert (stream.output_tokens, stream.chunk_tokens, stream.arrivals) == (40, [], [1000, 1010, 1020])
    assert (stream.finish_reason, stream.text()) == ("length", "xyz")


def test_reasoning_is_the_first_token_and_content_the_first_answer_token() -> None:
    for key in ("reasoning_content", "reasoning"):
        stream = feed(
            Stream(read_openai),
            chat({"role": "assistant", "content": ""}, 0),
            chat({key: "hm", "content": None}, 2),
            chat({"content": "yes"}, 5),
        )
        assert (stream.chunk_ns, stream.chunk_tokens) == ([1010, 1020], [2, 5])
        assert stream.first_answer_ns == 1020
        assert stream.text() == "yes"


def test_a_tool_call_is_output_without_being_answer_text() -> None:
    call = {"tool_calls": [{"function": {"arguments": "{}"}}]}
    stream = feed(Stream(read_openai), chat(call))
    assert (stream.arrivals, stream.first_answer_ns) == ([1000], None)


# ---- text


def test_cumulative_text_is_the_last_one_and_incremental_text_is_joined() -> None:
    grown = ["a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg"]
    cumulative = feed(Stream(read_generate), *(generate(t, n) for n, t in enumerate(grown, 1)))
    assert cumulative.text() == "abcdefg"
    assert cumulative.chunk_tokens == [1, 2, 3, 4, 5, 6, 7]
    incremental = feed(Stream(read_generate), *(generate(t, n) for n, t in enumerate("abcdefg", 1)))
    assert incremental.text() == "abcdefg"


def test_a_repeated_piece_is_told_from_a_cumulative_text_by_what_follows_or_by_its_ids() -> None:
    # The second piece continues the first by chance, the third does not.
    stream = feed(Stream(read_generate), generate("):", 1), generate("):):", 3), generate("):", 4))
    assert stream.text() == "):):):):"
    # Only two events: three tokens in all, and two ids in the last event, so that one is incremental.
    two = [{**generate("):", 1), "output_ids": [1]}, {**generate("):):", 3), "output_ids": [1, 1]}]
    assert feed(Stream(read_generate), *two).text() == "):):):"
    two[1]["output_ids"] = [1, 1, 1]
    assert feed(Stream(read_generate), *two).text() == "):):"


def test_the_count_is_not_taken_from_the_text_of_the_answer() -> None:
    texts = ["x" * n for n in range(1, 7)] + ['xxxxxx"completion_tokens": 999']
    stream = feed(Stream(read_generate), *(generate(t, n) for n, t in enumerate(texts, 1)))
    assert stream.cumulative is True
    assert stream.chunk_tokens == [1, 2, 3, 4, 5, 6, 7]


# ---- speculation


@pytest.mark.parametrize(
    ("correct", "proposed", "histogram"),
    [
        ("spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_correct_drafts_histogram"),
        ("spec_accepted_drafts", "spec_proposed_drafts", "spec_accept_histogram"),
        ("spec_accept_token_num", "spec_draft_token_num", "spec_accept_histogram"),
    ],
)
def test_speculation_counters_are_read_in_every_spelling(correct: str, proposed: str, histogram: str) -> None:
    # 4 steps with 0, 1, 3 and 3 correct drafts: 7 of 12
    meta = {correct: 7, proposed: 12, histogram: [1, 1, 0, 2], "spec_verify_ct": 4, "spec_accept_length": 3.0}
    assert feed(Stream(read_generate), generate("a", 12, **meta)).spec == {
        "verify_ct": 4,
        "correct_drafts": 7,
        "proposed_drafts": 12,
        "histogram": [1, 1, 0, 2],
        "engine_accept_length": 3.0,
    }


def test_correct_drafts_come_from_the_histogram_when_no_counter_has_them() -> None:
    spec = feed(Stream(read_generate), generate("a", 12, spec_verify_ct=4, spec_accept_histogram=[1, 1, 0, 2])).spec
    assert spec is not None
    assert spec["correct_drafts"] == 7


def test_without_counters_there_is_no_speculation_and_not_a_zero() -> None:
    assert feed(Stream(read_generate), generate("a", 12, spec_accept_length=2.4)).spec is None


# ---- errors inside a stream that began well


def test_an_error_event_ends_in_an_engine_error_with_its_message() -> None:
    stream = feed(Stream(read_generate), generate("a", 1), {"error": {"message": "out of memory"}})
    assert stream.error == ("engine_error", "out of memory")
    assert feed(Stream(read_openai), {"object": "error", "message": "no"}).error == ("engine_error", "no")


def test_an_abort_in_the_last_event_of_a_cumulative_stream_is_found() -> None:
    texts = [generate("x" * n, n) for n in range(1, 9)]
    last = generate("x" * 9, 9, finish_reason={"type": "abort", "message": "bad luck"})
    stream = feed(Stream(read_generate), *texts, last)
    assert stream.error == ("engine_error", "the engine aborted the request: bad luck")


@pytest.mark.parametrize("payload", [b"data: {oops\n\n", b"data: [1]\n\n", b'data: {"text":"a"}\n\n'])
def test_an_event_of_another_shape_is_a_protocol_error_and_not_an_exception(payload: bytes) -> None:
    stream = Stream(read_generate)
    stream.feed(payload, 1)
    assert stream.error is not None
    assert stream.error[0] == "protocol"


@pytest.mark.parametrize("meta", [None, [], 3])
def test_meta_info_that_is_no_object_is_a_protocol_error(meta: object) -> None:
    stream = feed(Stream(read_generate), {"text": "a", "meta_info": meta})
    assert stream.error is not None and stream.error[0] == "protocol"
    assert stream.spec is None


def test_counts_that_are_no_whole_numbers_are_no_counts() -> None:
    stream = feed(Stream(read_generate), generate("a", 2, prompt_tokens="many", cached_tokens=1.5))
    assert (stream.input_tokens, stream.cached_tokens, stream.output_tokens) == (None, None, 2)
