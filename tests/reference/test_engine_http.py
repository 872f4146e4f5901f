"""The engine as a process: start, HTTP surface, failures, end."""

import contextlib
import json
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import httpx
import pytest
from engine_harness import EngineProcess

from backend.reference.config import TextConfig
from backend.reference.training.random_checkpoint import TINY, write_random_checkpoint

pytestmark = pytest.mark.engine
KEY = {"Authorization": "Bearer s3cret"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    write_random_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def server(directory, tmp_path_factory, free_port):
    """One with MTP and metrics."""
    log = tmp_path_factory.mktemp("log") / "engine.log"
    flags = (
        "--speculative-algorithm",
        "NEXTN",
        "--enable-metrics",
        "--decode-log-interval",
        "5",
        "--context-length",
        "4096",
    )
    engine = EngineProcess(log, directory, free_port(), *flags)
    yield engine
    engine.end()


@pytest.fixture(scope="module")
def guarded(directory, tmp_path_factory, free_port):
    """One without MTP, with an API key, incremental streaming of three tokens at a time, one slot."""
    log = tmp_path_factory.mktemp("log") / "engine.log"
    flags = ("--api-key", "s3cret", "--incremental-streaming-output", "--stream-interval", "3")
    more = ("--max-running-requests", "1", "--context-length", "4096", "--moe-runner-backend", "loop")
    engine = EngineProcess(log, directory, free_port(), *flags, *more)
    yield engine
    engine.end()


def events(body):
    """The documents of an SSE body; its framing must be exactly SGLang's."""
    parts = body.split(b"\n\n")
    assert parts[-1] == b""
    assert parts[-2] == b"data: [DONE]"
    assert all(part.startswith(b"data: ") for part in parts[:-1])
    return [json.loads(part[6:]) for part in parts[:-2]]


def test_start_up_log_has_the_lines_in_sglangs_order(server):
    text = server.text()
    places = [
        text.index(line)
        for line in (
            "server_args=ServerArgs(model_path=",
            "Load weight begin. avail mem=",
            "type=Qwen3_5MoeForConditionalGeneration",
            "type=Qwen3_5ForCausalLMMTP",
            "Mamba Cache is allocated. max_mamba_cache_size: 16, conv_state size: ",
            "KV Cache is allocated.",
            "Memory pool end. avail mem=",
            "max_total_num_tokens=16384, chunked_prefill_size=512",
            "INFO:     Uvicorn running on http://127.0.0.1:",
            "Prefill batch, #new-seq: 1, #new-token: 4",
            "The server is fired up and ready to roll!",
        )
    ]
    assert places == sorted(places)
    assert text.count("KV Cache is allocated.") == 2
    assert "intermediate_ssm_state_cache size: " in text
    assert all(re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ", line) for line in text.splitlines())


def test_streamed_chunks_are_cumulative_and_the_last_one_has_the_totals(server):
    response = server.generate(stream=True, max_new_tokens=12, ignore_eos=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response.content)
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(set(counts))
    assert counts[-1] == 12
    for before, after in pairwise(chunks):
        assert after["text"].startswith(before["text"].rstrip("\ufffd"))
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None
    last = chunks[-1]["meta_info"]
    assert {"id", "prompt_tokens", "cached_tokens", "weight_version"} <= set(chunks[0]["meta_info"])
    assert last["finish_reason"] == {"type": "length", "length": 12}
    assert last["e2e_latency"] > 0
    verifications, correct = last["spec_verify_ct"], last["spec_num_correct_drafts"]
    assert last["spec_num_proposed_drafts"] == 3 * verifications
    assert last["spec_accept_length"] == pytest.approx(12 / verifications)
    assert last["spec_accept_rate"] == pytest.approx(correct / (3 * verifications))
    assert sum(last["spec_correct_drafts_histogram"]) == verifications
    assert verifications + correct >= 11  # 12 tokens, the first of them from the prefill


def test_an_answer_in_one_piece_equals_the_streamed_one(server):
    whole = server.generate(max_new_tokens=9, ignore_eos=True).json()
    streamed = events(server.generate(stream=True, max_new_tokens=9, ignore_eos=True).content)[-1]
    assert (whole["text"], whole["output_ids"]) == (streamed["text"], streamed["output_ids"])
    ids = server.post("/generate", input_ids=[10, 11], sampling_params={"max_new_tokens": 2, "temperature": 0}).json()
    assert ids["meta_info"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": 5}, "Input should be a valid string"),
        ({"text": "x", "sampling_params": {"temperature": -1}}, "greater than or equal to 0"),
        ({"text": "x", "sampling_params": {"frequency_penalty": 1}}, "less than or equal to 0"),
        ({"text": "x", "sampling_params": {"beam_width": 2}}, "Extra inputs are not permitted"),
        ({"text": "x", "sampling_parms": {"temperature": 0}}, "sampling_parms is not known"),
        ({"text": "x", "return_hidden_states": True}, "return_hidden_states is not known"),
        ({}, "Either text or input_ids should be provided"),
        ({"text": ""}, "The prompt is empty"),
        ({"input_ids": [1, 999]}, "999, which is outside the vocabulary (0 to 383)"),
        (
            {"input_ids": [1] * 17, "sampling_params": {"max_new_tokens": 4090}},
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of "
            "4107 tokens: 17 tokens from the input messages and 4090 tokens for the completion.",
        ),
    ],
)
def test_a_bad_request_is_answered_400_in_sglangs_shape(server, body, message):
    response = server.post("/generate", **body)
    assert response.status_code == 400
    document = response.json()
    assert message in document["message"]
    assert (document["object"], document["code"], document["param"]) == ("error", 400, None)


def test_a_body_that_is_no_json_is_answered_400(server):
    response = httpx.post(server.url + "/generate", content=b"{", timeout=10)
    assert response.status_code == 400
    assert "1 validation error:" in response.json()["message"]


def test_information_endpoints(server, directory):
    assert server.get("/health").status_code == server.get("/ready").status_code == 200
    assert server.get("/health_generate").status_code == 200
    model = server.get("/model_info").json()
    assert model["model_path"] == str(directory)
    assert model["architectures"] == ["Qwen3_5MoeForConditionalGeneration"]
    assert server.get("/v1/models").json()["data"][0]["max_model_len"] == 4096
    info = server.get("/server_info").json()
    assert info == {**info, "speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "dtype": "float32"}
    assert info["max_total_num_tokens"] == 4 * 4096
    assert info["version"].startswith("reference-")
    assert server.get("/get_server_info").json().keys() == info.keys()


def test_the_ledger_counts_the_bytes_worked_out_by_hand(server):
    state = server.get("/server_info").json()["internal_states"][0]
    ledger = state["memory_ledger_bytes"]
    c = TextConfig(**{name: getattr(TINY, name) for name in TextConfig.__dataclass_fields__})
    assert (c.num_hidden_layers, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim) == (
        4,
        4,
        12,
        20,
    )
    # 2 linear layers, 16 slots: states of 4 heads x 12 x 20, convolution windows of 3 x (2*24 + 80) floats.
    assert ledger["mamba_state"] == 2 * 16 * (4 * 12 * 20 + 3 * 128) * 4
    # 2 full layers, 2 sides, 2 heads of 16, for 4 x 4096 tokens and 16 x 4 unverified ones; one MTP layer.
    assert ledger["kv_pool"] == 2 * 2 * 2 * 16 * (16384 + 64) * 4
    assert ledger["draft_kv"] == ledger["kv_pool"] // 2
    # A verification of 4 tokens keeps k (12), v' (20), decays (1 + 4) per token and head, and 3 + 4 convolution inputs.
    assert ledger["intermediate_ssm"] == 2 * 16 * 4 * 4 * (12 + 20 + 5) * 4
    assert ledger["intermediate_conv"] == 2 * 16 * 7 * 128 * 4
    # 64 pages, each with 64 tokens' keys and values, one sequence's states and one hidden state of 48.
    per_page = 64 * 3 * 2 * 2 * 16 + 2 * (4 * 12 * 20 + 3 * 128) + 48
    assert ledger["prefix_cache"] == 64 * per_page * 4
    assert state["memory_usage"]["token_capacity"] == 16384
    assert state["memory_usage"]["kvcache"] == pytest.approx(ledger["kv_pool"] / 2**30)
    for part in ("mtp_weights", "draft_kv", "mamba_state", "intermediate_ssm", "intermediate_conv"):
        assert state["memory_usage"][part] == pytest.approx(ledger[part] / 2**30)


def test_flush_resets_the_accept_totals_and_is_refused_while_requests_run(server):
    server.wait_idle()
    assert server.post("/flush_cache").status_code == 200
    assert "avg_spec_accept_length" not in server.get("/server_info").json()["internal_states"][0]
    with httpx.stream("POST", server.url + "/generate", json=long_request()) as response:
        chunks = response.iter_bytes()  # kept: a generator that is dropped closes the connection
        next(chunks)
        assert server.post("/flush_cache").status_code == 400
    server.wait_idle()
    assert server.get("/server_info").json()["internal_states"][0]["avg_spec_accept_length"] >= 1
    assert server.post("/flush_cache").text.startswith("Cache flushed.")


def long_request(rid="long"):
    params = {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True}
    return {"rid": rid, "text": "import os\n", "stream": True, "sampling_params": params}


def test_abort_ends_a_stream_with_an_abort_reason(server):
    with httpx.stream("POST", server.url + "/generate", json=long_request("job-7"), timeout=30) as response:
        chunks = response.iter_bytes()
        body = next(chunks)
        assert server.post("/abort_request", rid="job-").status_code == 200
        body += b"".join(chunks)
    last = events(body)[-1]["meta_info"]
    assert last["finish_reason"]["type"] == "abort"
    assert last["completion_tokens"] < 4000


def test_a_client_that_leaves_ends_its_request(server):
    before = server.get("/metrics").text
    with httpx.stream("POST", server.url + "/generate", json=long_request(), timeout=30) as response:
        chunks = response.iter_bytes()  # kept: a generator that is dropped closes the connection
        next(chunks)
    server.wait_idle(2)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + "/generate", json={**long_request(), "stream": False}, timeout=0.15)
    server.wait_idle(2)
    after = server.get("/metrics").text
    assert metric(after, "num_aborted_requests_total") == metric(before, "num_aborted_requests_total") + 2


def test_a_client_that_leaves_ends_no_request_whose_id_begins_like_its_own(server):
    params = {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        body = {"rid": "user-10", "text": "import os\n", "sampling_params": params}
        other = pool.submit(httpx.post, server.url + "/generate", json=body, timeout=30)
        with httpx.stream("POST", server.url + "/generate", json=long_request("user-1"), timeout=30) as response:
            chunks = response.iter_bytes()
            next(chunks)
        meta = other.result().json()["meta_info"]
    assert (meta["finish_reason"]["type"], meta["completion_tokens"]) == ("length", 400)
    server.wait_idle(2)


def test_an_id_that_another_request_goes_by_is_refused(server):
    with httpx.stream("POST", server.url + "/generate", json=long_request("twin"), timeout=30) as response:
        chunks = response.iter_bytes()
        next(chunks)
        for stream in (False, True):
            twin = server.post("/generate", rid="twin", text="a", stream=stream)
            assert (twin.status_code, "'twin' is in use" in twin.text) == (400, True)
    server.wait_idle(2)


def test_fields_that_ask_for_nothing_are_let_through(server):
    params = {"max_new_tokens": 2, "repetition_penalty": 1.0, "min_p": 0, "skip_special_tokens": True}
    body = {"image_data": None, "return_hidden_states": False, "lora_path": "", "top_logprobs_num": 0}
    assert server.post("/generate", text="x", sampling_params=params, **body).status_code == 200


def metric(text, name, labels=""):
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"sglang:{name}\{{.*{labels}", line)
    )


def test_metrics_count_what_was_served(server):
    server.wait_idle()
    before = server.get("/metrics").text
    totals = server.generate(max_new_tokens=10, ignore_eos=True).json()["meta_info"]
    server.wait_idle()
    after = server.get("/metrics").text

    def grown(name, labels=""):
        return metric(after, name, labels) - metric(before, name, labels)

    assert grown("generation_tokens_total") == 10
    assert grown("prompt_tokens_total") == grown("realtime_tokens_total", "prefill_compute") == totals["prompt_tokens"]
    assert grown("realtime_tokens_total", "decode") == 9  # the first token is the prefill's
    assert grown("spec_verify_calls_total") == totals["spec_verify_ct"]
    assert grown("num_requests_total") == grown("time_to_first_token_seconds_count") == 1
    assert grown("e2e_request_latency_seconds_sum") == pytest.approx(totals["e2e_latency"], abs=0.05)
    assert metric(after, "max_total_num_tokens") == 16384
    assert metric(after, "num_running_reqs") == 0


def test_decode_lines_report_acceptance(server):
    server.generate(max_new_tokens=60, ignore_eos=True)
    lines = [line for line in server.text().splitlines() if "Decode batch" in line]
    assert lines
    pattern = (
        r"Decode batch, #running-req: \d+, #full token: \d+, full token usage: \d\.\d\d, mamba num: \d+, mamba usage: "
        r"\d\.\d\d, accept len: \d\.\d\d, accept rate: \d\.\d\d, cpu graph: False, gen throughput \(token/s\): "
        r"\d+\.\d\d, #queue-req: \d+$"
    )
    assert all(re.search(pattern, line) for line in lines)


def test_concurrent_requests_share_the_slots_and_agree_with_one_alone(server):
    alone = server.generate(text="def f(", max_new_tokens=30, ignore_eos=True).json()["text"]
    answers = []

    def ask():
        answers.append(server.generate(text="def f(", max_new_tokens=30, ignore_eos=True).json()["text"])

    threads = [threading.Thread(target=ask) for _ in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == [alone] * 7


def test_the_key_is_asked_for_and_never_shown(guarded):
    assert guarded.get("/health").status_code == 200
    assert guarded.get("/server_info").status_code == 401
    assert guarded.get("/server_info", headers={"Authorization": "Bearer wrong"}).json() == {"error": "Unauthorized"}
    info = guarded.get("/server_info", headers=KEY)
    assert info.status_code == 200
    assert "s3cret" not in info.text
    assert "s3cret" not in guarded.text()
    assert guarded.get("/metrics", headers=KEY).status_code == 404  # not asked for
    assert info.json()["speculative_algorithm"] is None
    assert "mtp_weights" not in info.json()["internal_states"][0]["memory_ledger_bytes"]


def test_incremental_streaming_sends_what_is_new_at_the_interval(guarded):
    body = {
        "text": "import",
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True},
    }
    chunks = events(httpx.post(guarded.url + "/generate", json=body, headers=KEY, timeout=30).content)
    assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks] == [1, 4, 7, 8]
    assert [len(chunk["output_ids"]) for chunk in chunks] == [1, 3, 3, 1]
    whole = httpx.post(guarded.url + "/generate", json={**body, "stream": False}, headers=KEY, timeout=30).json()
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert "spec_verify_ct" not in chunks[-1]["meta_info"]


def test_a_taken_port_is_reported_before_weights_are_read(guarded, directory, tmp_path):
    port = int(guarded.url.rsplit(":", 1)[1])
    engine = EngineProcess(tmp_path / "log", directory, port, wait=False)
    assert engine.process.wait(10) == 1
    assert "address already in use" in engine.text()
    assert "Load weight" not in engine.text()


def test_sigterm_ends_within_two_seconds_even_while_streaming(guarded):
    body = {**long_request(), "sampling_params": {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True}}
    with httpx.stream("POST", guarded.url + "/generate", json=body, headers=KEY, timeout=30) as response:
        chunks = response.iter_bytes()  # kept: a generator that is dropped closes the connection
        next(chunks)
        began = time.monotonic()
        guarded.process.send_signal(signal.SIGTERM)
        assert guarded.process.wait(5) == 0
        assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--mem-fraction-static", "0.0000001"),
            "ConflictError: Not enough memory. Please try to increase --mem-fraction-static.",
        ),
        (
            ("--model-path", "/no/such/model"),
            "/no/such/model is not a local folder and is not a valid model identifier",
        ),
    ],
)
def test_a_failed_start_ends_with_status_1_and_one_line_in_sglangs_words(directory, tmp_path, flags, words, free_port):
    engine = EngineProcess(tmp_path / "log", directory, free_port(), *flags, wait=False)
    assert engine.process.wait(20) == 1
    assert words in engine.text().splitlines()[-1]
    assert "Traceback" not in engine.text()


def test_a_step_that_takes_longer_than_the_watchdog_allows_ends_the_engine(directory, tmp_path, free_port):
    engine = EngineProcess(tmp_path / "log", directory, free_port(), "--watchdog-timeout", "0.0005", wait=False)
    deadline = time.monotonic() + 20
    while engine.process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):  # a long prefill, in case the warm-up's short steps all passed
            engine.generate("import os\n" * 300, max_new_tokens=4)
        time.sleep(0.05)
    engine.end()
    assert engine.process.returncode == 1
    assert "Scheduler watchdog timeout (self.watchdog_timeout=0.0005, self.soft=False)" in engine.text()


def test_prefill_lines_count_the_prompt_tokens_still_to_come(server):
    """1200 tokens in chunks of 512: 688, then 176, then none are left."""
    before = len(server.text())
    server.post("/generate", input_ids=[7] * 1200, sampling_params={"max_new_tokens": 1})
    found = re.findall(r"#new-token: (\d+), .*#pending-token: (\d+)", server.text()[before:])
    assert found == [("512", "688"), ("512", "176"), ("176", "0")]
