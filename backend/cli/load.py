"""The load-test command: bench."""

import argparse
import os

from backend.agent.client import AgentClient
from backend.cli import render
from backend.cli.context import Context, interrupt_held, request_of
from backend.cli.engines import the_only_engine
from backend.schema.load import Bench, BenchRequest, LoadState, LoadStatus
from backend.thresholds import CLI_POLL_PERIOD_S, CLI_PROGRESS_PERIOD_S


def bench(context: Context, arguments: argparse.Namespace) -> int:
    """Waits for the result. Exit 1 when the test did not finish or no request succeeded; the run is stored anyway."""
    request = _request(arguments)
    with context.agent(arguments.agent) as client:
        if request.url is None and request.engine_id is None:
            request = request.model_copy(update={"engine_id": the_only_engine(client)})
        load = None
        try:
            with interrupt_held():
                load = client.start_load(request)
                context.say(f"run {load.run_id} on {load.url}")
            load = _follow(context, client, load)
        except KeyboardInterrupt:
            if load is not None:
                client.stop_load(load.id)
                context.say(f"stopped: what was measured is kept as run {load.run_id}")
            raise
        result = client.load_result(load.id)
        store_error = client.status().agent.store_error
    if store_error is not None:
        context.say(f"warning: the run waits until it can be stored: {store_error}")
    context.answer(result, arguments.json, render.bench)
    complaint = _complaint(result)
    if complaint is not None:
        context.say(f"error: {complaint}")
    return 0 if complaint is None else 1


def _complaint(result: Bench) -> str | None:
    if result.state is not LoadState.FINISHED:
        reason = f": {result.failure}" if result.failure else ""
        return f"the load test is {result.state}{reason}; what was measured is kept as run {result.run_id}"
    if not any(level.requests.ok for level in result.levels):
        said = {name: text for level in reversed(result.levels) for name, text in level.failures.items()}
        reasons = "; ".join(f"{name}: {text}" for name, text in sorted(said.items()))
        return f"no request succeeded ({reasons or 'none was sent'}); they are kept as run {result.run_id}"
    return None


def _request(arguments: argparse.Namespace) -> BenchRequest:
    return request_of(
        BenchRequest,
        {
            "url": arguments.url,
            "engine_id": arguments.id,
            "endpoint": arguments.endpoint,
            "concurrency": arguments.concurrency,
            "dataset": _dataset(arguments.dataset),
            "input_len": arguments.input_len,
            "output_len": arguments.output_len,
            "requests": arguments.requests,
            "duration_s": arguments.duration,
            "warmup_requests": arguments.warmup,
            "temperature": arguments.temperature,
            "top_p": arguments.top_p,
            "ignore_eos": not arguments.respect_eos,
            "chat_template": not arguments.no_chat_template,
            "flush_cache": not arguments.no_flush,
            "seed": arguments.seed,
            "timeout_s": arguments.timeout,
            "tags": arguments.tag,
            "note": arguments.note,
        },
    )


def _dataset(name: str) -> str:
    """A file of this shell's directory as an absolute path, because the agent has another; else a name as it is."""
    path = os.path.expanduser(name)  # noqa: PTH111 never raises, as isfile does not
    return os.path.abspath(path) if os.path.isfile(path) else name  # noqa: PTH100, PTH113


def _follow(context: Context, client: AgentClient, load: LoadStatus) -> LoadStatus:
    """Reads the test's state until it has ended; tells a change of level at once and else one line in a while."""
    told: tuple[LoadState, int | None] | None = None
    silent_s = 0.0
    while not load.state.ended:
        here = (load.state, load.progress.level)
        if here != told or silent_s >= CLI_PROGRESS_PERIOD_S:
            context.say(render.progress(load))
            told, silent_s = here, 0.0
        context.sleep(CLI_POLL_PERIOD_S)
        silent_s += CLI_POLL_PERIOD_S
        load = client.load(load.id)
    return load
