"""Requests that cannot be served, field by field: SGLang's error document, the right status, and the engine goes on."""

import json
import socket
from types import SimpleNamespace

import httpx
import pytest
import torch
from engine_harness import EngineProcess, engine_on_random_weights
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient

from backend.reference.server import build_app
from backend.reference.training.random_checkpoint import write_random_checkpoint

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
CONTEXT = 512
VOCABULARY = 384


@pytest.fixture(scope="module")
def server(tmp_path_factory, free_port):
    """Used by every test here; at the end it must still serve, and its log must show no fault."""
    flags = ("--context-length", str(CONTEXT))
    with engine_on_random_weights(tmp_path_factory.mktemp("engine"), free_port(), *flags) as engine:
        yield engine
        assert engine.generate(max_new_tokens=3, ignore_eos=True).json()["meta_info"]["completion_tokens"] == 3
        loads = engine.get("/v1/loads").json()["loads"][0]
        assert (loads["num_running_reqs"], loads["num_waiting_reqs"], loads["num_used_tokens"]) == (0, 0, 0)
        assert "Traceback" not in engine.text()


def refused(response, status=400):
    """The message of an error document, which has this status."""
    document = response.json()
    assert (response.status_code, document["code"], document["object"]) == (status, status, "error")
    assert document["type"]
    assert document["param"] is None
    assert len(response.content) < 20_000
    return document["message"]


def send(server, route, field, value):
    """A request in which one field has a value that is written as JSON text."""
    known = {"max_tokens", "max_completion_tokens", "seed", "min_tokens", "temperature", "top_p", "top_k", "stop", "n"}
    if route == GENERATE:
        inner = field in known | {"max_new_tokens", "sampling_seed", "stop_token_ids", "ignore_eos", "min_new_tokens"}
        text = f'"sampling_params": {{"{field}": {value}}}' if inner else f'"{field}": {value}'
        content = f'{{"text": "x", {text}}}'
    else:
        start = '"prompt": "x"' if route == COMPLETIONS else '"messages": [{"role": "user", "content": "x"}]'
        content = f'{{{start}, "{field}": {value}}}'
    return httpx.post(server.url + route, content=content, timeout=20)


NO_INTEGERS = ("0", "-1", "1e12", "1.5", "16.0", "true", '"5"', "NaN", "Infinity", "1e400", "[]", "{}")
LENGTHS = [
    (COMPLETIONS, "max_tokens"),
    (CHAT, "max_tokens"),
    (CHAT, "max_completion_tokens"),
    (GENERATE, "max_new_tokens"),
]


@pytest.mark.engine
@pytest.mark.parametrize(("route", "field"), LENGTHS)
def test_a_length_that_is_no_positive_integer_is_refused(server, route, field):
    for value in NO_INTEGERS:
        assert field in refused(send(server, route, field, value)), value
    for value in ("1000000000000", "9" * 40):
        assert f"maximum context length of {CONTEXT} tokens" in refused(send(server, route, field, value)), value


WRONG = {
    "temperature": ("NaN", "-1", "Infinity", "true", '"hot"', "[]"),
    "top_p": ("NaN", "-0.5", "0", "1.5", "true", '"x"'),
    "top_k": ("-2", "1.5", "true", '"x"'),
    "stop": ("3", "true", "{}", "[1]", '[["x"]]'),
    "n": ("0", "2", "-1", '"1"', "true", "[1]"),
    "stop_token_ids": ("5", '["x"]', "[true]", "[-5]", f"[{VOCABULARY}]", "[99999999999999999999999999]"),
    "ignore_eos": ("1", '"yes"', "[]"),
    "stream": ("1", '"yes"', "[]"),
    "rid": ("5", '""', "[]"),
}


@pytest.mark.engine
@pytest.mark.parametrize("route", [GENERATE, COMPLETIONS, CHAT])
@pytest.mark.parametrize("field", WRONG)
def test_a_field_of_a_wrong_type_or_range_is_refused_by_name(server, route, field):
    for value in WRONG[field]:
        assert field in refused(send(server, route, field, value)), value


@pytest.mark.engine
@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("stream_options", ('{"include_usage": true}', "5", '{"include_usage": 1}')),
        ("seed", ("1.5", "true", '"x"', "9223372036854775808")),
        ("min_tokens", ("-1", "17", "true")),  # the longest output is 16 tokens where none is given
        ("model", ("5", "null", "[]")),
        ("echo", ("true", '"x"')),
        ("best_of", ("2", "true")),
        ("prompt", ('""', "[]", "[[]]", '["x", "y"]', "[1.5]", "[true]", "[-1]", "[384]", "null", "5", "{}")),
    ],
)
def test_fields_of_completions_are_refused(server, field, values):
    for value in values:
        assert refused(send(server, COMPLETIONS, field, value)), value


@pytest.mark.engine
@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("[]", "at least 1 item"),
        ("null", "valid array"),
        ('"x"', "valid array"),
        ("[5]", "messages"),
        ("[{}]", "Field required"),
        ('[{"role": "alien", "content": "x"}]', "'system', 'developer', 'user'"),
        ('[{"role": 5, "content": "x"}]', "role"),
        ('[{"role": "user", "content": 5}]', "content"),
        ('[{"role": "user", "content": [{"type": "text"}]}]', "has the text None; send a string"),
        ('[{"role": "user", "content": [{"type": "image_url"}]}]', "type 'image_url' is not supported"),
    ],
)
def test_messages_that_are_none_are_refused(server, messages, words):
    assert words in refused(send(server, CHAT, "messages", messages))


@pytest.mark.engine
def test_a_message_without_content_is_an_empty_one(server):
    def prompt_tokens(content):
        body = {"messages": [{"role": "user", **content}], "max_tokens": 1, "chat_template_kwargs": None}
        return server.post(CHAT, **body).json()["usage"]["prompt_tokens"]

    assert prompt_tokens({"content": None}) == prompt_tokens({}) == prompt_tokens({"content": ""})


@pytest.mark.engine
def test_a_temperature_or_top_p_near_zero_takes_the_best_token_and_ends_nobody(server):
    def tokens(**params):
        return server.post(GENERATE, text="x", sampling_params={"max_new_tokens": 4, **params}).json()["output_ids"]

    best = tokens(temperature=0)
    assert tokens(temperature=1e-300) == tokens(temperature=1e-45) == tokens(temperature=1e-7) == best
    assert tokens(top_p=1e-300) == tokens(top_p=1e-45) == best


@pytest.mark.engine
def test_a_shortest_output_beyond_the_longest_is_refused(server):
    response = server.post(GENERATE, text="x", sampling_params={"max_new_tokens": 5, "min_new_tokens": 6})
    assert "6 tokens, is longer than the longest, 5" in refused(response)


@pytest.mark.engine
@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt": "\\ud800x"}',
        b'{"prompt": "x", "stop": "\\udc00"}',
        b'{"prompt": "x", "rid": "\\ud800"}',
        b'{"prompt": "x", "\\ud800": 1}',
        b'{"prompt": "x", "max_tokens": "\\ud800"}',
        b'{"prompt": "\xed\xa0\x80"}',
    ],
)
def test_half_a_surrogate_pair_is_no_json(server, content):
    assert refused(httpx.post(server.url + COMPLETIONS, content=content, timeout=20))


@pytest.mark.engine
@pytest.mark.parametrize(
    "content",
    [
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"prompt": [' + b'"a",' * 50_000 + b"1.5]}",
        b'{"prompt": "x", "max_tokens": "' + b"9" * 100_000 + b'"}',
        b'{"prompt": "x", "' + b"k" * 100_000 + b'": 1}',
        b'{"prompt": "x", "n": "' + b"n" * 100_000 + b'"}',
        b'{"prompt": [' + b"1," * 100_000 + b"1]}",
        b'{"prompt": "' + b"x" * 1_000_000 + b'"}',
    ],
    ids=["brackets", "braces", "nested", "many faults", "digits", "key", "value", "ids", "text"],
)
def test_a_large_body_is_refused_in_few_words(server, content):
    assert refused(httpx.post(server.url + COMPLETIONS, content=content, timeout=30))


@pytest.mark.engine
def test_a_body_beyond_32_mib_is_answered_413(server):
    content = b'{"prompt": "' + b"x" * (32 << 20) + b'"}'
    assert "longer than 33554432 bytes" in refused(httpx.post(server.url + GENERATE, content=content, timeout=30), 413)


@pytest.mark.engine
def test_what_is_not_there_is_answered_in_the_same_shape(server):
    assert "POST /v1/embeddings" in refused(server.post("/v1/embeddings"), 404)
    wrong = server.get(GENERATE)
    assert "GET /generate" in refused(wrong, 405)
    assert "POST" in wrong.headers["allow"]


@pytest.mark.engine
def test_a_client_that_leaves_before_its_body_is_complete_leaves_no_fault_in_the_log(server):
    host, port = "127.0.0.1", int(server.url.rsplit(":", 1)[1])
    with socket.create_connection((host, port), timeout=5) as client:
        client.sendall(b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"text": ')
    server.wait_idle()
    assert server.get("/health").status_code == 200


@pytest.mark.engine
def test_a_model_that_yields_no_numbers_answers_500_and_is_not_healthy(tmp_path, free_port):
    write_random_checkpoint(tmp_path / "checkpoint")
    file = tmp_path / "checkpoint" / "model.safetensors"
    save_file({**load_file(file), "lm_head.weight": torch.full((VOCABULARY, 48), float("nan"))}, file)
    engine = EngineProcess(tmp_path / "log", tmp_path / "checkpoint", free_port(), "--skip-server-warmup")
    try:
        assert "not a number" in refused(engine.generate(max_new_tokens=3), 500)
        assert "not a number" in refused(engine.post(COMPLETIONS, prompt="x"), 500)
        assert engine.get("/health_generate").status_code == 503
        streamed = engine.generate(stream=True, max_new_tokens=3).content.split(b"\n\n")
        reason = json.loads(streamed[0][6:])["meta_info"]["finish_reason"]
        assert (reason["type"], reason["status_code"]) == ("abort", 500)
    finally:
        engine.end()


def test_a_fault_of_ours_is_answered_500_without_its_traceback():
    def fails():
        raise RuntimeError("an inner secret")

    engine = SimpleNamespace(
        server_info=fails, args=SimpleNamespace(enable_metrics=False, api_key=None, served_model_name="m")
    )
    with TestClient(build_app(engine), raise_server_exceptions=False) as client:
        response = client.get("/server_info")
    assert "its log says why" in refused(response, 500)
    assert "secret" not in response.text
