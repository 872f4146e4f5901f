"""Text of a growing token list."""

import pytest

from backend.modeltext import load_tokenizer
from backend.reference.cache import Extents
from backend.reference.tokenizer import TextStream, find_stop
from backend.reference.training.random_checkpoint import small_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer(384)


def pieces(tokenizer, text):
    return [[token] for token in tokenizer.encode(text).ids]


def test_a_character_appears_only_when_all_its_bytes_are_there(tokenizer):
    text = "déjà 日本 🚀 vu"
    stream = TextStream(tokenizer)
    seen = []
    for ids in pieces(tokenizer, text):
        stream.push(ids)
        seen.append(stream.visible)
    assert seen[-1] == stream.final() == text
    assert all("\ufffd" not in part and text.startswith(part) for part in seen)
    assert len(set(seen)) > 5


def test_bytes_that_never_become_a_character_are_shown_at_the_end(tokenizer):
    stream = TextStream(tokenizer)
    ids = tokenizer.encode("🚀").ids
    assert len(ids) == 4  # byte-level: one token per byte of a character the tokenizer never saw
    stream.push(ids[:2])
    assert stream.visible == ""
    assert "\ufffd" in stream.final()


def test_what_may_become_a_stop_string_is_held_back(tokenizer):
    stream = TextStream(tokenizer, ("\n\n", "END"))
    seen = []
    for ids in pieces(tokenizer, "a = E1\nEND of it"):
        stream.push(ids)
        seen.append(stream.visible)
    assert not any(part.endswith(("E", "EN")) for part in seen)
    assert not any(part == "a = E1\n" for part in seen[: seen.index("a = E1") + 1])  # "\n" waited for what follows
    assert stream.final("END") == "a = E1\n"


def test_a_stop_token_is_left_out_of_the_text(tokenizer):
    stream = TextStream(tokenizer)
    ids = tokenizer.encode("return x").ids
    stream.push(ids)
    assert stream.final(matched=ids[-1]) == tokenizer.decode(ids[:-1])


def test_stop_strings_are_found_across_tokens(tokenizer):
    ids = tokenizer.encode("x = 1\n\ndef").ids
    ends = [n for n in range(1, len(ids) + 1) if find_stop(tokenizer, ids[:n], ("\n\n", "zzz")) == "\n\n"]
    assert ends
    assert "\n\n" in tokenizer.decode(ids[: ends[0]])
    assert "\n\n" not in tokenizer.decode(ids[: ends[0] - 1])


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(Exception, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_ranges_are_handed_out_first_fit_and_never_overlap():
    extents = Extents(100)
    assert [extents.take(40), extents.take(30), extents.take(40)] == [0, 40, None]
    assert extents.take(30) == 70
    extents.give_back(40)
    assert extents.take(31) is None
    assert extents.take(30) == 40
    extents.give_back(0)
    assert (extents.take(10), extents.take(30), extents.used) == (0, 10, 100)
