"""The OpenAI routes: their own client works against them, and their documents are SGLang's."""

import json

import httpx
import openai
import pytest
from engine_harness import engine_on_random_weights

pytestmark = pytest.mark.engine
MESSAGES = [{"role": "user", "content": "import os"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory, free_port):
    flags = ("--served-model-name", "tiny", "--context-length", "512")
    with engine_on_random_weights(tmp_path_factory.mktemp("engine"), free_port(), *flags) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=30, max_retries=0) as client:
        yield client


def test_the_openai_client_lists_completes_and_chats(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    answer = client.completions.create(model="tiny", prompt="import os\n", max_tokens=9, temperature=0)
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 9
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 9
    chat = client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=7, temperature=0, n=1)
    assert chat.choices[0].message.role == "assistant"
    assert chat.choices[0].message.content
    assert chat.usage.completion_tokens <= 7


def test_the_openai_client_streams_the_same_text_with_usage(client):
    question = {"model": "tiny", "temperature": 0, "max_tokens": 20, "extra_body": {"ignore_eos": True}}
    whole = client.completions.create(prompt="import os\n", **question)
    parts = list(
        client.completions.create(prompt="import os\n", stream=True, stream_options={"include_usage": True}, **question)
    )
    assert "".join(part.choices[0].text for part in parts[:-1]) == whole.choices[0].text
    assert parts[-2].choices[0].finish_reason == "length"
    assert parts[-1].choices == []
    assert parts[-1].usage.completion_tokens == 20

    whole = client.chat.completions.create(messages=MESSAGES, **question)
    options = {"include_usage": True, "continuous_usage_stats": True}
    parts = list(client.chat.completions.create(messages=MESSAGES, stream=True, stream_options=options, **question))
    assert parts[0].choices[0].delta.role == "assistant"
    said = [part for part in parts if part.choices and part.choices[0].delta.content]
    assert "".join(part.choices[0].delta.content for part in said) == whole.choices[0].message.content
    counts = [part.usage.completion_tokens for part in said]
    assert counts == sorted(set(counts))
    assert parts[-2].choices[0].finish_reason == "length"
    assert parts[-1].usage.completion_tokens == counts[-1] == 20


def test_the_chat_template_is_rendered_by_the_server(server, client):
    """The shipped template marks roles, so completing a text with those marks is the same."""
    rendered = "<|im_start|>user\nimport os<|im_end|>\n<|im_start|>assistant\n"
    question = {"model": "tiny", "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    chat = client.chat.completions.create(messages=MESSAGES, **question)
    text = client.completions.create(prompt=rendered, **question)
    assert chat.choices[0].message.content == text.choices[0].text
    assert chat.usage.prompt_tokens == text.usage.prompt_tokens
    parts = [{"role": "user", "content": [{"type": "text", "text": "import"}, {"type": "text", "text": " os"}]}]
    assert client.chat.completions.create(messages=parts, **question).choices[0].message.content == text.choices[0].text


def test_stop_seed_and_default_lengths(server, client):
    free = client.completions.create(model="tiny", prompt="x = ", max_tokens=30, temperature=0)
    stop = free.choices[0].text[3:6]
    assert len(stop) == 3
    ended = client.completions.create(model="tiny", prompt="x = ", max_tokens=30, temperature=0, stop=stop)
    assert ended.choices[0].finish_reason == "stop"
    assert ended.choices[0].text == free.choices[0].text.split(stop)[0]
    sampled = [
        client.completions.create(model="tiny", prompt="x = ", temperature=1.0, top_p=0.9, seed=seed).choices[0].text
        for seed in (3, 3, 4)
    ]
    assert sampled[0] == sampled[1] != sampled[2]
    short = server.post("/v1/completions", prompt="x = ", temperature=0, ignore_eos=True).json()
    assert short["usage"]["completion_tokens"] == 16
    long = server.post("/v1/chat/completions", messages=MESSAGES, temperature=0, ignore_eos=True).json()
    assert long["usage"]["total_tokens"] == 512  # nothing asked for: what the context holds


def test_the_last_chunks_are_sglangs(server):
    body = {"prompt": "x", "stream": True, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2][6:])
    assert {"id", "object", "created", "model", "choices"} <= set(last)
    assert last["choices"][0] == {**last["choices"][0], "index": 0, "logprobs": None, "finish_reason": "length"}
    assert "usage" not in last  # not asked for


@pytest.mark.parametrize(
    ("route", "body", "message"),
    [
        ("completions", {"prompt": "x", "n": 2}, "n=2 is not supported"),
        ("completions", {"prompt": ["x", "y"]}, "prompt holds 2 prompts"),
        ("completions", {"prompt": "x", "logprobs": 5}, "logprobs=5 is not supported"),
        ("completions", {"prompt": "x", "temperature": -1}, "greater than or equal to 0"),
        ("completions", {"prompt": "x", "max_tokens": 0}, "greater than or equal to 1"),
        ("completions", {"prompt": "x", "max_tokens": 10**12}, "maximum context length of 512 tokens"),
        ("completions", {"prompt": "x", "colour": "red"}, "colour is not known"),
        ("completions", {"prompt": "x", "stream_options": {"include_usage": True}}, "only allowed with stream=true"),
        ("completions", {"prompt": "x" * 5000}, "maximum context length of 512 tokens"),
        ("completions", {"prompt": []}, "prompt holds 0 prompts"),
        ("completions", {}, "Field required"),
        ("chat/completions", {"messages": []}, "at least 1 item"),
        ("chat/completions", {"messages": [{"content": "x"}]}, "Field required"),
        ("chat/completions", {"messages": "hello"}, "valid array"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "part of type 'image_url'",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_sglangs_shape(server, route, body, message):
    response = server.post(f"/v1/{route}", **body)
    assert response.status_code == 400
    document = response.json()
    assert message in document["message"]
    assert (document["object"], document["code"], document["param"]) == ("error", 400, None)


def test_the_openai_client_raises_its_own_error_with_our_words(client):
    with pytest.raises(openai.BadRequestError, match="n=2 is not supported"):
        client.completions.create(model="tiny", prompt="x", n=2)


def test_the_one_model_is_found_by_its_name_and_no_other(client):
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="serves 'tiny'"):
        client.models.retrieve("org/other")


def test_continuous_usage_is_in_every_chunk(client):
    # Role, a chunk per step that has text, the end: 0 tokens at first, 6 at last; and nothing without choices.
    options = {"continuous_usage_stats": True}
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=6,
            stream=True,
            stream_options=options,
            extra_body={"ignore_eos": True},
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert (counts[0], counts[-1]) == (0, 6)
    assert counts == sorted(counts)
    assert all(chunk.choices for chunk in chunks)


def test_fields_that_ask_for_nothing_special_are_accepted(client):
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=2,
        store=False,
        parallel_tool_calls=True,
        service_tier="auto",
        metadata={"run": "7"},
        presence_penalty=0,
        extra_body={"repetition_penalty": 1.0, "min_p": 0.0, "skip_special_tokens": True, "separate_reasoning": True},
    )
    assert answer.usage.completion_tokens == 2
