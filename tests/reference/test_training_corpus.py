"""Corpus: what is held out, how turns are cut, what a document looks like in tokens; the shipped prompts."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from backend.reference.training.corpus import (
    USER_FORMS,
    Source,
    build_corpus,
    cut_turns,
    encode_turn,
    held_out,
    read_sources,
    source_turns,
)
from backend.reference.training.prompts import held_out_prompts
from backend.reference.training.random_checkpoint import small_tokenizer
from backend.reference.training.tokenizer import END_OF_TEXT, IM_END

ASSETS = Path(__file__).parents[2] / "assets"
FIRST = "def first(x):\n" + "".join(f"    x += {i}\n" for i in range(80)) + "    return x\n"
MODULE = "import os\n\n\n" + FIRST + "\n\n" + FIRST.replace("first", "second")


def test_hold_out_and_rehearsal_follow_the_rule_and_leave_tests_in_training():
    # MD5 modulo 20 of "chunk.py" and "cgi.py" is 0, of "glob.py" 1, of "bisect.py" 2, of "json/decoder.py" 14.
    names = ["chunk.py", "cgi.py", "glob.py", "bisect.py", "json/decoder.py", "test/test_json.py", "unittest/case.py"]
    sources = [Source(name, "") for name in names]
    assert [source.path for source in held_out(sources)] == ["chunk.py", "cgi.py"]
    assert [source.path for source in sources if source.is_rehearsed] == ["glob.py", "bisect.py"]


def test_rehearsal_text_is_in_the_prompts_alone():
    # The marker stands at the top of each of two files, so among the prompts that begin with the first line.
    marker = "a_name_found_nowhere_else"
    sources = [Source("json/decoder.py", MODULE * 8), Source("glob.py", f"{marker} = 1\n\n\n" + MODULE)]
    sources.append(Source("chunk.py", MODULE))
    corpus = build_corpus(sources, vocab_size=300, seed=0)
    assert marker not in corpus.tokenizer.decode(corpus.train.tolist())
    texts = [
        corpus.tokenizer.decode(row[:length], skip_special_tokens=False)
        for row, length in zip(corpus.prompts.tolist(), corpus.lengths.tolist(), strict=True)
    ]
    assert any(marker in text for text in texts)
    assert all(text.startswith("<|im_start|>user\n") and text.endswith("assistant\n") for text in texts)
    assert len(texts) == len(set(texts))  # cut at other lines each time
    assert all(not any(row[length:]) for row, length in zip(corpus.prompts, corpus.lengths, strict=True))


def test_a_turn_ends_where_the_definition_does():
    # The user gets at most 540 characters, all within first(), which has about 1000.
    first, second = cut_turns(MODULE, random.Random(0))
    assert first.line == 1
    assert first.assistant.endswith("\n    return x")
    code = MODULE.split(first.assistant)[0].strip("\n")
    assert first.user in [form.replace("{code}", code) for form in USER_FORMS]
    assert second.line == 88  # import, two blank lines, 82 lines of first(), two blank lines
    assert "def second(x):" in second.user


def test_prompt_and_answer_are_encoded_apart():
    tokenizer = small_tokenizer(320)
    turn = source_turns(Source("a.py", MODULE), seed=0)[0]
    ids = encode_turn(tokenizer, turn)
    prompt = tokenizer.encode(f"<|im_start|>user\n{turn.user}<|im_end|>\n<|im_start|>assistant\n").ids
    assert ids[: len(prompt)] == prompt
    assert ids[-1] == END_OF_TEXT
    assert ids.count(IM_END) == 2
    assert tokenizer.decode(ids[len(prompt) :]).rstrip("\n") == turn.assistant


def test_held_out_text_is_in_no_training_stream():
    marker = "a_name_found_nowhere_else"
    sources = [Source("json/decoder.py", MODULE * 8), Source("chunk.py", f"{marker} = 1\n\n\n" + MODULE)]
    corpus = build_corpus(sources, vocab_size=300, seed=0)
    assert marker in corpus.tokenizer.decode(corpus.hold.tolist())
    assert marker not in corpus.tokenizer.decode(corpus.train.tolist())
    assert (corpus.train[corpus.starts[1:] - 1] == END_OF_TEXT).all()


def test_the_corpus_is_the_same_every_time():
    sources = [Source("json/decoder.py", MODULE * 8), Source("json/tool.py", MODULE), Source("chunk.py", MODULE)]
    first, second = (build_corpus(sources, vocab_size=300, seed=3) for _ in range(2))
    assert np.array_equal(first.train, second.train)


@pytest.fixture(scope="module")
def prompts():
    return [json.loads(line) for line in (ASSETS / "prompts" / "code.jsonl").read_text().splitlines()]


def test_shipped_prompts_are_enough_distinct_and_of_fitting_length(prompts):
    tokenizer = Tokenizer.from_file(str(ASSETS / "tiny-qwen3.5-moe" / "tokenizer.json"))
    assert len(prompts) >= 64
    assert len({prompt["text"] for prompt in prompts}) == len(prompts) == len({prompt["id"] for prompt in prompts})
    lengths = [len(tokenizer.encode(prompt["text"]).ids) for prompt in prompts]
    assert 60 <= min(lengths) <= max(lengths) <= 200
    assert (ASSETS / "prompts" / "code.jsonl").stat().st_size <= 100 * 1024


def test_shipped_prompts_come_from_held_out_files_only(prompts):
    paths = {prompt["source"].removeprefix("Lib/").rsplit(":", 1)[0] for prompt in prompts}
    assert len(paths) >= 16
    assert all(Source(path, "").is_held_out for path in paths)


def test_prompts_are_cut_from_held_out_files():
    tokenizer = small_tokenizer(320)
    body = "".join(
        f"def part_{i}(value):\n" + "    value = value + 1\n" * 30 + "    return value\n\n\n" for i in range(9)
    )
    found = held_out_prompts([Source("chunk.py", body), Source("json/tool.py", body)], tokenizer, seed=0)
    assert found
    assert {prompt["source"].split(":")[0] for prompt in found} == {"Lib/chunk.py"}


def test_the_standard_library_is_found_and_tables_are_left_out():
    root = Path(json.__file__).parent
    assert {"decoder.py", "encoder.py", "scanner.py"} <= {source.path for source in read_sources(root)}
