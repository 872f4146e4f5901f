"""Bad input, clients that leave, and many at once: everything is answered and nothing is left behind."""

import asyncio
import contextlib
from pathlib import Path

import httpx
import psutil
import pytest
from engine_harness import engine_on_random_weights

pytestmark = pytest.mark.engine
CONNECTIONS = 200


@pytest.fixture(scope="module")
def server(tmp_path_factory, free_port):
    flags = ("--context-length", "2048")
    with engine_on_random_weights(tmp_path_factory.mktemp("engine"), free_port(), *flags) as engine:
        yield engine


def held(server):
    """Threads and open files of the engine."""
    return psutil.Process(server.process.pid).num_threads(), len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def body(tokens, stream):
    params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"text": "import os\n", "stream": stream, "sampling_params": params}


def test_two_hundred_connections_at_once_are_all_answered_and_leave_nothing(server):
    server.generate(max_new_tokens=2)
    server.client.close()
    server.client = httpx.Client(base_url=server.url, timeout=30)
    threads, files = held(server)

    async def ask_all():
        limits = httpx.Limits(max_connections=CONNECTIONS)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
            return await asyncio.gather(
                *(client.post("/generate", json=body(4, n % 2 == 0)) for n in range(CONNECTIONS))
            )

    answers = asyncio.run(ask_all())
    assert {answer.status_code for answer in answers} == {200}
    server.wait_idle()
    after_threads, after_files = held(server)
    assert after_threads == threads
    assert after_files <= files + 3  # this test's own connections


def test_clients_that_leave_mid_stream_free_their_slots_and_files(server):
    server.generate(max_new_tokens=2)
    threads, files = held(server)

    async def leave_all():
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            await asyncio.gather(*(leave(client) for _ in range(30)))

    async def leave(client):
        async with client.stream("POST", "/generate", json=body(1500, True)) as response:
            chunks = response.aiter_bytes()
            await anext(chunks)

    asyncio.run(leave_all())
    server.wait_idle(5)
    loads = server.get("/v1/loads").json()["loads"][0]
    assert (loads["num_running_reqs"], loads["num_waiting_reqs"], loads["num_used_tokens"]) == (0, 0, 0)
    assert server.post("/flush_cache").status_code == 200  # refused while anything runs or waits
    after_threads, after_files = held(server)
    assert after_threads == threads
    assert after_files <= files + 3


OPENAI = {
    "/v1/completions": {"prompt": "import os\n"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "import os"}]},
}


@pytest.mark.parametrize("route", OPENAI)
@pytest.mark.parametrize("stream", [True, False], ids=["mid-stream", "before the answer"])
def test_clients_of_the_openai_routes_that_leave_free_their_slots_too(server, route, stream):
    question = {**OPENAI[route], "max_tokens": 1500, "ignore_eos": True, "stream": stream}
    server.generate(max_new_tokens=2)
    threads, files = held(server)

    async def leave(client):
        async with client.stream("POST", route, json=question) as response:
            chunks = response.aiter_bytes()
            await anext(chunks)

    async def give_up(client):
        with contextlib.suppress(httpx.ReadTimeout):
            await client.post(route, json=question, timeout=0.3)

    async def leave_all():
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            await asyncio.gather(*((leave if stream else give_up)(client) for _ in range(20)))

    asyncio.run(leave_all())
    server.wait_idle(5)
    assert server.post("/flush_cache").status_code == 200  # refused while anything runs or waits
    after_threads, after_files = held(server)
    assert after_threads == threads
    assert after_files <= files + 3


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"text": "x"} trailing', b'"text"'])
@pytest.mark.parametrize("route", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_bodies_that_are_no_request_are_answered_400(server, route, content):
    response = httpx.post(server.url + route, content=content, timeout=10)
    assert response.status_code == 400
    document = response.json()
    assert (document["object"], document["code"]) == ("error", 400)
    assert document["message"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_new_tokens": 10**15}, "maximum context length of 2048 tokens"),
        ({"max_new_tokens": -1}, "greater than or equal to 1"),
        ({"max_new_tokens": 1.5}, "valid integer"),
        ({"max_new_tokens": 10**40}, "400"),
        ({"temperature": "hot"}, "valid number"),
        ({"top_p": 0}, "greater than 0"),
        ({"stop": [1, 2]}, "valid string"),
        ({"n": 2}, "less than or equal to 1"),
        ({"sampling_seed": -1}, "greater than or equal to 0"),
    ],
)
def test_absurd_parameters_are_answered_400(server, params, message):
    response = server.post("/generate", text="x", sampling_params=params)
    assert response.status_code == 400
    assert message in response.text


def test_a_prompt_longer_than_the_context_is_answered_400(server):
    response = server.generate(text="import os\n" * 3000)
    assert response.status_code == 400
    assert "maximum context length of 2048 tokens" in response.json()["message"]


def test_it_still_serves(server):
    assert server.generate(max_new_tokens=3, ignore_eos=True).json()["meta_info"]["completion_tokens"] == 3
