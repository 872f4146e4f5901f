"""The load worker against a server whose behaviour is known: what goes in has to come out."""

import itertools
import socket
import threading

import pytest

from tests.fakes.sse_server import fake_server

# ---- what the records hold


@pytest.mark.timing
def test_the_pace_of_the_server_is_recovered(run_worker) -> None:
    """13 tokens: one at 150 ms, then 3 every 30 ms, so 4 further events: 10 ms per token, 270 ms to the last one."""
    with fake_server(ttft_ms=150, gap_ms=30, tokens=13, per_event=3) as server:
        done = run_worker(server.url, requests=3)
    metrics = done.levels[0].metrics
    assert metrics.ttft_ms and metrics.tpot_ms and metrics.itl_ms and metrics.icl_ms and metrics.e2e_ms
    assert 150 <= metrics.ttft_ms.p50 < 190
    assert metrics.tpot_ms.p50 == pytest.approx(10, abs=2)
    assert metrics.itl_ms.mean == pytest.approx(10, abs=2)
    assert metrics.icl_ms.p50 == pytest.approx(30, abs=6)
    assert 270 <= metrics.e2e_ms.p50 < 330
    assert metrics.tok_s_user and metrics.tok_s_user.p50 == pytest.approx(100, rel=0.2)
    assert [record.chunk_tokens for record in done.records] == [[1, 4, 7, 10, 13]] * 3


def test_tokens_are_counted_exactly_and_the_text_is_whole(run_worker) -> None:
    with fake_server(tokens=23, per_event=4) as server:
        done = run_worker(server.url, requests=5)
    assert done.status == 0
    assert [record.output_tokens for record in done.records] == [23] * 5
    assert [record.ok for record in done.records] == [True] * 5
    assert done.levels[0].tokens.model_dump() == {"input": 25, "output": 115, "cached": 15}
    assert {record.text for record in done.records} == {"".join(f" tok{n}" for n in range(23))}


def test_cumulative_text_gives_the_same_records_as_incremental_text(run_worker) -> None:
    with fake_server(tokens=23, per_event=2, cumulative=True) as server:
        done = run_worker(server.url, requests=1)
    assert done.records[0].text == "".join(f" tok{n}" for n in range(23))
    assert done.records[0].chunk_tokens == [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("split", [1, 3, 50])
def test_a_body_in_pieces_with_odd_separators_in_its_text_is_read_whole(run_worker, split: int, newline: str) -> None:
    with fake_server(tokens=5, piece="\u2028\u0085é", split=split, newline=newline) as server:
        done = run_worker(server.url, requests=1)
    assert (done.records[0].ok, done.records[0].output_tokens) == (True, 5)
    assert done.records[0].text == "".join(f"\u2028\u0085é{n}" for n in range(5))


def test_speculation_counters_reach_the_level_as_a_ratio_of_sums(run_worker) -> None:
    """Two requests of 4 steps with 0, 1, 3, 3 correct drafts: 1 + 14/8; one or more in 3 of 4, two in 2, three in 2."""
    spec = {
        "spec_verify_ct": 4,
        "spec_num_correct_drafts": 7,
        "spec_num_proposed_drafts": 12,
        "spec_correct_drafts_histogram": [1, 1, 0, 2],
    }
    with fake_server(tokens=12, spec=spec) as server:
        accepted = run_worker(server.url, requests=2).levels[0].acceptance
    assert accepted is not None
    assert accepted.accept_length == 2.75
    assert accepted.engine_accept_length == 3.0
    assert accepted.accept_rate == pytest.approx(7 / 12)
    assert accepted.per_position == [0.75, 0.5, 0.5]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_openai_routes_are_measured_by_their_usage(run_worker, endpoint: str) -> None:
    with fake_server(tokens=9, per_event=2) as server:
        done = run_worker(server.url, requests=2, endpoint=endpoint)
    assert [record.chunk_tokens for record in done.records] == [[1, 3, 5, 7, 9]] * 2
    assert (done.records[0].input_tokens, done.records[0].cached_tokens) == (5, 3)
    body = server.seen.bodies[0]
    assert body["model"] == "tiny"
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body.get("messages") or body.get("prompt")


def test_usage_at_the_end_only_leaves_the_token_latencies_absent_with_a_reason(run_worker) -> None:
    with fake_server(tokens=9, usage="last") as server:
        level = run_worker(server.url, requests=2, endpoint="chat").levels[0]
    assert level.tokens.output == 18
    assert level.metrics.ttft_ms is not None
    assert level.metrics.output_tok_s_whole is not None
    for name in ("tpot_ms", "itl_ms", "tok_s_user", "output_tok_s"):
        assert getattr(level.metrics, name) is None
        assert level.metrics.absent[name] == "the server gives no token count with each event"


def test_without_any_usage_nothing_is_estimated(run_worker) -> None:
    with fake_server(tokens=9, usage="none") as server:
        level = run_worker(server.url, requests=1, endpoint="completions").levels[0]
    assert level.metrics.output_tok_s_whole is None
    assert level.metrics.absent["output_tok_s_whole"] == "the server gives no token counts"


def test_reasoning_counts_as_first_token_and_content_as_first_answer(run_worker) -> None:
    with fake_server(tokens=6, reasoning=3, gap_ms=5) as server:
        record = run_worker(server.url, requests=1, endpoint="chat").records[0]
    assert record.first_ns == record.chunk_ns[0]
    assert record.first_answer_ns == record.chunk_ns[3]


# ---- the closed loop


def test_a_level_keeps_its_concurrency_and_reuses_its_connections(run_worker) -> None:
    with fake_server(tokens=3, gap_ms=10) as server:
        done = run_worker(server.url, concurrency=[4], requests=12)
    assert server.seen.most_open == 4
    assert server.seen.connections == 4
    assert done.levels[0].requests.ok == 12
    achieved = done.report.levels[0].in_flight_achieved
    assert achieved is not None and 3.6 < achieved <= 4


def test_fewer_requests_than_slots_are_not_held_against_the_client(run_worker) -> None:
    """All work was handed out at once: how much more the client could have kept in flight was never seen."""
    with fake_server(tokens=8, gap_ms=10) as server:
        done = run_worker(server.url, concurrency=[8], requests=2)
    assert done.report.levels[0].in_flight_achieved is None


def test_warm_up_is_recorded_apart_and_levels_draw_different_prompts(run_worker) -> None:
    with fake_server(tokens=2) as server:
        done = run_worker(server.url, concurrency=[1, 2], requests=4, warmup_requests=2)
    phases = [(record.level, record.phase) for record in done.records]
    assert phases == [(1, "warmup")] * 2 + [(1, "measure")] * 4 + [(2, "warmup")] * 2 + [(2, "measure")] * 4
    assert len({record.prompt_id for record in done.records}) == 12
    assert [level.requests.sent for level in done.levels] == [4, 4]


def test_the_next_request_is_due_when_the_one_before_has_ended(run_worker) -> None:
    with fake_server(tokens=2) as server:
        records = run_worker(server.url, requests=4).records
    for before, after in itertools.pairwise(records):
        assert after.intended_ns == before.end_ns
        assert after.sent_ns >= after.intended_ns


def test_a_duration_ends_the_sending_and_what_is_on_the_way_is_counted(run_worker) -> None:
    with fake_server(tokens=2, gap_ms=40) as server:
        done = run_worker(server.url, requests=None, duration_s=0.3, concurrency=[2])
    assert done.levels[0].requests.failed == 0
    assert 4 <= done.levels[0].requests.ok <= 16
    assert done.levels[0].requests.ok == len(server.seen.bodies)


def test_the_cache_is_flushed_once_per_level_and_a_refusal_is_a_warning(run_worker, monkeypatch) -> None:
    monkeypatch.setattr("backend.thresholds.LOAD_FLUSH_PAUSE_S", 0.01)
    with fake_server(tokens=2) as server:
        done = run_worker(server.url, concurrency=[1, 2], requests=2, warmup_requests=1, flush=True)
        assert server.seen.paths.count("/flush_cache") == 2
        assert server.seen.paths[:4] == ["/generate", "/flush_cache", "/generate", "/generate"]
    assert done.report.warnings == []
    with fake_server(tokens=2, flush_status=400) as server:
        done = run_worker(server.url, requests=2, flush=True)
        assert server.seen.paths.count("/flush_cache") == 5
    assert done.report.warnings == ["level 1: the prefix cache was not flushed (HTTP 400: Cache flushed.)"]
    assert done.status == 0


def test_the_api_key_travels_as_a_bearer_token_and_stands_in_no_file(run_worker, tmp_path) -> None:
    with fake_server(tokens=2) as server:
        run_worker(server.url, api_key="s3cret-key", requests=1)
    assert "authorization: Bearer s3cret-key" in server.seen.headers[0]
    assert [
        path.name for path in tmp_path.iterdir() if b"s3cret" in (path.read_bytes() if path.is_file() else b"")
    ] == []


# ---- failed requests are records


@pytest.mark.parametrize(
    ("knobs", "error_class", "message"),
    [
        ({"failure": "error"}, "engine_error", "the scheduler is out of memory"),
        ({"failure": "abort", "fail_after": 99}, "engine_error", "aborted for a test"),
        ({"failure": "close"}, "truncated", "after 2 tokens"),
        ({"failure": "no_done", "fail_after": 99}, "truncated", "ended without [DONE]"),
        ({"failure": "hang"}, "timeout", "within 0.3 s"),
        ({"status": 503}, "http_5xx", "HTTP 503: not now"),
        ({"status": 400}, "http_4xx", "HTTP 400: not now"),
    ],
)
def test_a_failed_request_is_a_record_with_its_class(run_worker, knobs, error_class: str, message: str) -> None:
    with fake_server(**knobs) as server:
        done = run_worker(server.url, requests=2, timeout_s=0.3)
    assert [(record.ok, record.error_class) for record in done.records] == [(False, error_class)] * 2
    assert message in (done.records[0].error or "")
    assert done.levels[0].requests.model_dump() == {"sent": 2, "ok": 0, "failed": 2, "by_class": {error_class: 2}}
    assert done.levels[0].metrics.absent["ttft_ms"] == "no request succeeded"
    assert done.status == 0


def test_what_arrived_before_a_failure_is_kept(run_worker) -> None:
    with fake_server(failure="close", fail_after=3) as server:
        record = run_worker(server.url, requests=1).records[0]
    assert record.chunk_tokens == [1, 2, 3]
    assert record.text == " tok0 tok1 tok2"


def test_bytes_that_are_no_http_are_a_protocol_error(run_worker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        record = run_worker(f"http://127.0.0.1:{listening.getsockname()[1]}", requests=1).records[0]
        thread.join(5)
    assert record.error_class == "protocol"


@pytest.mark.parametrize(
    "spec",
    [
        {"spec_verify_ct": 4, "spec_correct_drafts_histogram": [None, "x"]},
        {"spec_verify_ct": 4, "spec_correct_drafts_histogram": ["1", {}]},
    ],
)
def test_counters_that_are_no_numbers_fail_their_request_and_not_the_load_test(run_worker, spec) -> None:
    with fake_server(tokens=3, spec=spec) as server:
        done = run_worker(server.url, requests=2)
    assert done.report.state == "finished"
    assert [record.error_class for record in done.records] == ["protocol", "protocol"]


def test_a_server_that_stays_out_of_reach_ends_the_test_as_failed(run_worker, free_port, monkeypatch) -> None:
    monkeypatch.setattr("backend.thresholds.LOAD_SERVER_GONE_S", 0.3)
    done = run_worker(f"http://127.0.0.1:{free_port()}", requests=1000)
    assert done.status == 69
    assert done.report.state == "failed"
    assert "out of reach" in (done.report.failure or "")
    assert {record.error_class for record in done.records} == {"connect"}
    assert 1 < len(done.records) < 20


# ---- the client watches itself


def test_ticks_add_up_to_the_records(run_worker, monkeypatch) -> None:
    """The level's last tick has all its tokens; gaps of all ticks are those of the requests, first tokens left out."""
    monkeypatch.setattr("backend.thresholds.LOAD_TICK_PERIOD_S", 0.1)
    with fake_server(tokens=10, per_event=3, gap_ms=60) as server:
        done = run_worker(server.url, requests=4, concurrency=[2])
    assert done.ticks[-1]["tokens"] == 40
    assert done.ticks[-1]["done"] == 4
    assert len(done.ticks) >= 3
    assert sum(tick["gap_tokens"] for tick in done.ticks) == 4 * 9
    assert sum(tick["gap_ns"] for tick in done.ticks) == sum(r.chunk_ns[-1] - r.chunk_ns[0] for r in done.records)
    assert sum(len(tick["ttft_ms"]) for tick in done.ticks) == 4


def test_pauses_after_failed_requests_are_not_held_against_the_client(run_worker) -> None:
    with fake_server(status=503) as server:
        achieved = run_worker(server.url, requests=12, concurrency=[3]).report.levels[0].in_flight_achieved
    assert achieved is not None and 2.7 < achieved <= 3


def test_the_client_measures_its_own_cpu_and_lag(run_worker) -> None:
    with fake_server(tokens=20, gap_ms=10) as server:
        done = run_worker(server.url, requests=2)
    gauge = done.report.levels[0]
    assert gauge.chunks == 40
    assert 0 < gauge.cpu_s < gauge.wall_s
    assert gauge.loop_lag_p99_ms is not None
    assert done.levels[0].client.us_per_chunk == pytest.approx(1e6 * gauge.cpu_s / 40)
