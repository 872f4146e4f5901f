"""Prompts: read, refused with file and line, ordered by the seed, brought to length, rendered."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from backend.errors import InputError
from backend.load.plan import counted_requests, first_prompts
from backend.load.promptfile import BUNDLED, read_prompts
from backend.load.prompts import prepare_prompts
from backend.schema.load import BenchRequest

TEMPLATE = (
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{%- if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory with a chat template and a tokenizer for which every word is a token."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "</s>"}))
    words = [f"w{n}" for n in range(400)]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*words, "[UNK]"])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def request(path: Path, **settings: object) -> BenchRequest:
    return BenchRequest.model_validate({"dataset": str(path), "concurrency": [1], "requests": 2, **settings})


# ---- files


def test_every_accepted_shape_ends_in_a_question(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]
    path = write(
        tmp_path / "p.jsonl",
        {"id": "first", "prompt": "a\u2028b"},
        {"text": "t"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]},
        {"conversations": [*turns, {"from": "gpt", "value": "left out"}]},
    )
    user = {"role": "user"}
    assert read_prompts(path) == [
        ("first", [{**user, "content": "a\u2028b"}]),
        ("line2", [{**user, "content": "t"}]),
        ("line3", [{"role": "system", "content": "s"}, {**user, "content": "q"}]),
        ("line4", [{**user, "content": "a"}, {"role": "assistant", "content": "b"}, {**user, "content": "c"}]),
    ]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (b'{"prompt": "x"', r"not JSON \(unexpected end of data at column 15\)"),
        (b'{"prompt": "\\ud800"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'["x"]', "an array where an object is expected"),
        (b'"x"', "a str where an object is expected"),
        (b'{"question": "x"}', r"no `prompt`, `text`, `messages` or `conversations` \(keys: question\)"),
        (b'{"prompt": 5}', "`prompt` must be a text that is not empty"),
        (b'{"text": "  "}', "`text` must be a text that is not empty"),
        (b'{"messages": "x"}', "`messages` must be a list"),
        (b'{"messages": [{"role": "user"}]}', r"`messages\[0\]` needs `role`"),
        (b'{"messages": [{"role": "robot", "content": "x"}]}', r"`messages\[0\]` needs `role`"),
        (b'{"messages": [{"role": "assistant", "content": "x"}]}', "the conversation has no question by a user"),
        (b'{"conversations": [{"from": "human", "text": "x"}]}', r"`conversations\[0\]` needs `from`"),
        (b'{"prompt": "caf\xe9"}', "not UTF-8 .byte 0xe9 at column 16."),
    ],
)
def test_a_malformed_line_is_refused_with_its_file_and_number(tmp_path: Path, line: bytes, wrong: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n\n' + line + b"\n")
    with pytest.raises(InputError, match=rf"bad\.jsonl line 3: {wrong}"):
        read_prompts(path)


def test_a_missing_and_an_empty_file_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no data set and no file 'nothing'; bundled data sets: .*chat"):
        prepare_prompts(request(Path("nothing")), None)
    with pytest.raises(InputError, match="no data set and no file 'ddd"):
        prepare_prompts(request(Path("d" * 300)), None)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="has no prompts; each line is an object"):
        read_prompts(tmp_path / "empty.jsonl")


@pytest.mark.parametrize("path", sorted(BUNDLED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_bundled_data_sets_are_well_formed_and_without_repetition(path: Path) -> None:
    prompts = read_prompts(path)
    assert len(prompts) >= 32
    assert len({id for id, _ in prompts}) == len({messages[-1]["content"] for _, messages in prompts}) == len(prompts)


# ---- rendering


def test_prompts_are_rendered_with_the_template_of_the_checkpoint(tmp_path: Path, checkpoint: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "hello"})
    assert prepare_prompts(request(path), checkpoint).prompts[0].text == "<user>hello\n<assistant>"
    (checkpoint / "chat_template.jinja").write_text("[{{ messages[0].content }}]{{ eos_token }}")
    assert prepare_prompts(request(path), checkpoint).prompts[0].text == "[hello]</s>"
    assert prepare_prompts(request(path, chat_template=False), checkpoint).prompts[0].text == "hello"
    chat = prepare_prompts(request(path, endpoint="chat"), checkpoint)
    assert chat.prompts[0].messages == [{"role": "user", "content": "hello"}]


def test_without_a_template_the_prompts_go_as_they_are_and_it_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "hello"})
    prepared = prepare_prompts(request(path, requests=1, warmup_requests=0), tmp_path)
    assert prepared.prompts[0].text == "hello"
    assert [warning.split(":")[0] for warning in prepared.warnings] == [
        "prompts are sent without a chat template, so acceptance may not be that of a chat"
    ]


@pytest.mark.parametrize(
    "source", ["{{ messages", "{{ raise_exception('no system turn') }}", "{{ messages.__class__.__mro__ }}"]
)
def test_a_broken_or_forbidden_template_is_an_input_error(tmp_path: Path, checkpoint: Path, source: str) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "hello"})
    (checkpoint / "chat_template.jinja").write_text(source)
    with pytest.raises(InputError, match=r"the chat template of .* cannot render"):
        prepare_prompts(request(path), checkpoint)


# ---- length: the template takes two words (`<user>` with the text is one, `<assistant>` another)


def test_prompts_are_cut_or_continued_to_the_asked_length_without_repetition(tmp_path: Path, checkpoint: Path) -> None:
    rows = [{"id": str(n), "prompt": " ".join(f"w{n * 10 + k}" for k in range(10))} for n in range(6)]
    path = write(tmp_path / "p.jsonl", *rows)
    for length in (5, 25):
        for prompt in prepare_prompts(request(path, input_len=length, chat_template=False), checkpoint).prompts:
            words = prompt.text.split()
            assert len(words) == length
            assert len(set(words)) == length
            assert words[0] == f"w{int(prompt.id) * 10}"
    templated = prepare_prompts(request(path, input_len=25), checkpoint).prompts[0].text
    assert len(Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(templated).ids) in (24, 25)


def test_a_data_set_that_is_too_small_for_the_length_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "w1 w2 w3"}, {"prompt": "w4 w5"})
    with pytest.raises(InputError, match="has 5 tokens in all, too few for prompts of 9 tokens"):
        prepare_prompts(request(path, input_len=9, chat_template=False), checkpoint)


def test_a_length_needs_a_tokenizer(tmp_path: Path, checkpoint: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "w1"})
    (checkpoint / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        prepare_prompts(request(path, input_len=1), checkpoint)
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"there is no .*tokenizer\.json"):
        prepare_prompts(request(path, input_len=1), checkpoint)
    with pytest.raises(InputError, match="the server's checkpoint is not on this machine"):
        prepare_prompts(request(path, input_len=1), None)


# ---- order


def test_the_seed_decides_the_order_and_nothing_else_does(prompt_file: Path) -> None:
    def order(seed: int) -> list[str]:
        return [prompt.id for prompt in prepare_prompts(request(prompt_file, seed=seed), None).prompts]

    assert order(1) == order(1)
    assert sorted(order(1)) == sorted(order(2)) and order(1) != order(2)


def test_levels_start_where_the_one_before_ended_and_use_every_prompt_before_any_twice() -> None:
    request = BenchRequest(concurrency=[1, 2, 4], requests=5, warmup_requests=1)
    assert first_prompts(request, available=20) == [0, 6, 12]
    assert first_prompts(request, available=8) == [0, 6, 4]  # 12 modulo 8
    timed = BenchRequest(concurrency=[1, 2, 4], duration_s=3)
    assert first_prompts(timed, available=20) == [0, 6, 13]


def test_a_level_without_a_count_makes_four_requests_per_slot_and_at_least_eight() -> None:
    assert [counted_requests(BenchRequest(), level) for level in (1, 2, 4, 16)] == [8, 8, 16, 64]
    assert counted_requests(BenchRequest(duration_s=1), 4) is None


def test_reuse_of_prompts_is_said_beforehand(prompt_file: Path) -> None:
    assert prepare_prompts(request(prompt_file, requests=19, chat_template=False), None).warnings == []
    warnings = prepare_prompts(request(prompt_file, requests=20, chat_template=False), None).warnings
    assert warnings and "21 requests uses the 20 prompts more than once" in warnings[0]
