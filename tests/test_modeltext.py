"""Chat templates and tokenizers of checkpoints."""

import json
from pathlib import Path

import pytest

from backend.errors import InputError
from backend.modeltext import ChatError, load_chat_template, load_tokenizer

HELLO = [{"role": "user", "content": "hello"}]


def rendered(directory: Path) -> str:
    template = load_chat_template(directory)
    assert template is not None
    return template.render(HELLO)


def test_the_template_file_comes_before_the_one_in_the_configuration(tmp_path: Path) -> None:
    config = {"chat_template": "config", "eos_token": {"content": "</s>"}, "bos_token": "<s>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert rendered(tmp_path) == "config"
    (tmp_path / "chat_template.jinja").write_text(
        "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}[{{ pad_token }}]"
    )
    assert rendered(tmp_path) == "<s>hello</s>[]"


def test_of_several_templates_the_default_counts(tmp_path: Path) -> None:
    several = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert rendered(tmp_path) == "D"


@pytest.mark.parametrize("content", [None, "{}", '{"chat_template": 5}', '{"chat_template": [{"name": "tools"}]}'])
def test_without_a_template_there_is_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer_config.json").write_text(content)
    assert load_chat_template(tmp_path) is None


def test_variables_reach_the_template_and_cannot_replace_the_messages(tmp_path: Path) -> None:
    source = (
        "{{ messages[0].content }} {{ thinking }} {{ tools }} {{ add_generation_prompt }} {{ {'a': 'é'} | tojson }}"
    )
    (tmp_path / "chat_template.jinja").write_text(source)
    template = load_chat_template(tmp_path)
    assert template is not None
    text = template.render(HELLO, {"thinking": "yes", "messages": "no", "add_generation_prompt": 0})
    assert text == 'hello yes None True {"a": "é"}'


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ messages[5].content }}", "no element 5"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'x' + 1 }}", "can only concatenate str"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_a_template_that_fails_on_the_messages_says_why(tmp_path: Path, source: str, reason: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(ChatError, match=reason):
        rendered(tmp_path)


def test_a_template_that_does_not_compile_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% if")
    with pytest.raises(InputError, match=f"template of {tmp_path} cannot render anything .*; correct it"):
        load_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"cannot read .*chat_template\.jinja"):
        load_chat_template(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"{", b"{}", b"\xff\xfe"])
def test_a_tokenizer_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read as a tokenizer: .*name a directory"):
        load_tokenizer(tmp_path)
