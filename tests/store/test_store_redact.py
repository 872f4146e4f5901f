"""What is cut out, and what must stay: engines have many settings about tokens that are no secrets."""

import time

import pytest

from backend.redact import REDACTED, is_secret_name, redact_argv, redact_env, redact_settings, redact_text


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "--api-key",
        "--admin-api-key",
        "--hf-token",
        "ssl_keyfile_password",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "client_secret",
        "apiKey",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "Authorization",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "--speculative-num-draft-tokens",
        "--speculative-token-map",
        "--tokenizer-path",
        "max_total_num_tokens",
        "--ssl-keyfile",
        "skip_tokenizer_init",
        "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION",
        "--keyboard",
        "",
        "--",
    ],
)
def test_names_that_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_a_command_line_keeps_its_words_and_loses_its_secrets() -> None:
    argv = ["python", "--api-key", "abc", "--hf-token=def", "--tp", "2", "TOKEN=ghi", "--model", "http://u:pw@host/m"]
    assert redact_argv(argv) == [
        "python",
        "--api-key",
        REDACTED,
        f"--hf-token={REDACTED}",
        "--tp",
        "2",
        f"TOKEN={REDACTED}",
        "--model",
        f"http://{REDACTED}@host/m",
    ]


def test_a_secret_flag_without_a_value_does_not_swallow_the_next_flag() -> None:
    assert redact_argv(["--api-key", "--tp", "2"]) == ["--api-key", "--tp", "2"]


def test_an_environment_keeps_its_names() -> None:
    env = {"HF_TOKEN": "abc", "EMPTY_KEY": "", "HEADER": "Bearer abc.def", "OMP_NUM_THREADS": "2"}
    assert redact_env(env) == {
        "HF_TOKEN": REDACTED,
        "EMPTY_KEY": "",
        "HEADER": f"Bearer {REDACTED}",
        "OMP_NUM_THREADS": "2",
    }


def test_settings_are_redacted_at_any_depth_and_numbers_stay() -> None:
    settings = {"api_key": "abc", "max_token": 5, "list": [{"password": "x", "n": 1}], "token": None}
    assert redact_settings({"argv": ["--api-key", "abc", "--tp", "2"]}) == {
        "argv": ["--api-key", REDACTED, "--tp", "2"]
    }
    assert redact_settings(settings) == {
        "api_key": REDACTED,
        "max_token": 5,
        "list": [{"password": REDACTED, "n": 1}],
        "token": None,
    }


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("api_key='abc', admin_api_key=None, port=3", f"api_key='{REDACTED}', admin_api_key=None, port=3"),
        ("server_args=Args(api_key='abc', port=1)", f"server_args=Args(api_key='{REDACTED}', port=1)"),
        ("GET 'http://h/x?a=1&api_key=abc&b=2'", f"GET 'http://h/x?a=1&api_key={REDACTED}&b=2'"),
        ('error="refused: token=abc"', f'error="refused: token={REDACTED}"'),
        ("a=b=api_key=abc", f"a=b=api_key={REDACTED}"),
        ('{"hf_token": "abc", "n": 1}', f'{{"hf_token": "{REDACTED}", "n": 1}}'),
        ("run --api-key abc --tp 2", f"run --api-key {REDACTED} --tp 2"),
        ("curl -H 'X: Bearer a.b-c'", f"curl -H 'X: Bearer {REDACTED}'"),
        ("password=123456", f"password={REDACTED}"),
        (
            "#new-token: 512, #cached-token: 0, token usage: 0.01",
            "#new-token: 512, #cached-token: 0, token usage: 0.01",
        ),
        ("---------------Inter-Token Latency----", "---------------Inter-Token Latency----"),
        ("http://127.0.0.1:30000/generate", "http://127.0.0.1:30000/generate"),
    ],
)
def test_text_loses_secrets_and_keeps_counts(text: str, clean: str) -> None:
    assert redact_text(text) == clean
    assert redact_text(clean) == clean


@pytest.mark.parametrize("piece", ["a=", "a", "a.", "--a ", "x://", "bearer ", "token='", "=", '"'])
def test_hostile_text_takes_no_longer_than_its_length_asks(piece: str) -> None:
    text = piece * 100_000
    begin = time.process_time()
    redact_text(text)
    assert time.process_time() - begin < 3.0  # measured: below 0.5 s; a quadratic search took 37 s
