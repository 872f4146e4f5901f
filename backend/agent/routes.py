"""The agent's routes: adapters between HTTP and `Jobs`. No logic; each answers with one typed document.

`async` handlers run on the loop, where the supervisor and the load tests live. Plain `def` handlers only read the
store and run in a thread, so that a slow disk never delays the supervisor.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend import thresholds
from backend.agent.jobs import Jobs
from backend.checkpoint import inspect_checkpoint
from backend.doctor import choose_engine, doctor
from backend.engine_scan import scan_engine
from backend.errors import SlipstreamError, UsageError
from backend.schema.engine import EngineKind, LaunchRequest
from backend.schema.host import ErrorBody, TelemetryDelta
from backend.schema.load import BenchRequest, LiveDelta, LoadProgress, LoadStatus, RequestRecord
from backend.schema.run import RunPatch
from backend.schema.validate import CheckRequest, TraceRequest
from backend.stats import compare_runs
from backend.store import StoreReader
from backend.validate import check, trace

log = logging.getLogger(__name__)
Model = TypeVar("Model", bound=BaseModel)
RECORDS = TypeAdapter(list[RequestRecord])


# ---- engines


async def get_status(request: Request) -> Response:
    return _answer(_jobs(request).status())


def get_scan(request: Request) -> Response:
    query = request.query_params
    engine = query.get("engine")
    kind, engine = (_kind(query["kind"]), engine) if "kind" in query else choose_engine(engine)
    return _answer(scan_engine(kind, engine, _jobs(request).paths))


def _kind(name: str) -> EngineKind:
    try:
        return EngineKind(name)
    except ValueError as error:
        raise UsageError(f"unknown engine kind {name!r}; one of {', '.join(EngineKind)}") from error


def get_inspect(request: Request) -> Response:
    model = request.query_params.get("checkpoint")
    if not model:
        raise UsageError("name the checkpoint: /v1/inspect?checkpoint=DIRECTORY")
    return _answer(inspect_checkpoint(model, _jobs(request).paths))


async def post_trace(request: Request) -> Response:
    """In a thread: a first scan takes a second."""
    body = await _body(request, TraceRequest)
    kind, engine = choose_engine(body.engine)
    return _answer(await run_in_threadpool(trace, kind, engine, body, _jobs(request).paths))


async def post_check(request: Request) -> Response:
    """In a thread, as `post_trace`."""
    body = await _body(request, CheckRequest)
    kind, engine = choose_engine(body.engine)
    return _answer(await run_in_threadpool(check, kind, engine, body, _jobs(request).paths))


async def post_engine(request: Request) -> Response:
    return _answer(await _jobs(request).launch(await _body(request, LaunchRequest)), 202)


async def get_engine(request: Request) -> Response:
    return _answer(_jobs(request).engine(request.path_params["id"]))


async def get_engine_log(request: Request) -> Response:
    return _answer(_jobs(request).supervisor.log(request.path_params["id"], _cursor(request)))


async def post_engine_stop(request: Request) -> Response:
    return _answer(await _jobs(request).stop_engine(request.path_params["id"]), 202)


# ---- load tests


async def post_load(request: Request) -> Response:
    return _answer(await _jobs(request).start_load(await _body(request, BenchRequest)), 202)


async def get_load(request: Request) -> Response:
    return _answer(_jobs(request).load(request.path_params["id"]).status())


async def get_load_live(request: Request) -> Response:
    boot = request.query_params.get("boot")
    return _answer(_jobs(request).live(request.path_params["id"], _cursor(request), boot))


async def get_load_result(request: Request) -> Response:
    """Computed in a thread: percentiles over a long test's records take longer than a tick of the loop."""
    return _answer(await run_in_threadpool(_jobs(request).result, request.path_params["id"]))


async def post_load_stop(request: Request) -> Response:
    job = _jobs(request).load(request.path_params["id"])
    job.stop()
    return _answer(job.status(), 202)


# ---- host


async def get_telemetry(request: Request) -> Response:
    return _answer(_jobs(request).telemetry(_cursor(request), request.query_params.get("boot")))


def get_doctor(request: Request) -> Response:
    jobs = _jobs(request)
    return _answer(doctor(jobs.paths, jobs.info))


async def post_close(request: Request) -> Response:
    jobs = _jobs(request)
    leave = await jobs.close_session(request.query_params.get("owner", ""))
    response = _answer(jobs.status())
    if leave:
        response.background = BackgroundTask(request.app.state.leave)
    return response


# ---- runs


def get_runs(request: Request) -> Response:
    query = request.query_params
    pinned = {"true": True, "false": False}.get(query.get("pinned", ""))
    return _answer(_reader(request).runs(tag=query.get("tag"), note=query.get("note"), pinned=pinned))


def get_run(request: Request) -> Response:
    return _answer(_reader(request).run(request.path_params["id"]))


def get_run_requests(request: Request) -> Response:
    records = _reader(request).records(request.path_params["id"])
    return Response(RECORDS.dump_json(records, by_alias=True), media_type="application/json")


def get_run_live(request: Request) -> Response:
    """A finished run's live points in the shape of a running one's, so that one chart draws both."""
    reader = _reader(request)
    detail = reader.run(request.path_params["id"])
    points, per_position = reader.live(detail.row.id)
    status = LoadStatus(
        id="",
        state=detail.row.state,
        run_id=detail.row.id,
        url="",
        started_at_utc=detail.row.started_at_utc,
        progress=LoadProgress(),
        failure=detail.bench.failure,
    )
    return _answer(
        LiveDelta(
            boot=detail.row.id, cursor=len(points), reset=True, points=points, per_position=per_position, status=status
        )
    )


def get_run_telemetry(request: Request) -> Response:
    run_id = request.path_params["id"]
    samples, source = _reader(request).telemetry(run_id)
    return _answer(TelemetryDelta(boot=run_id, cursor=len(samples), reset=True, source=source, samples=samples))


async def post_run(request: Request) -> Response:
    patch = await _body(request, RunPatch)
    store = _jobs(request).store
    return _answer(await run_in_threadpool(store.patch_run, request.path_params["id"], patch))


def get_compare(request: Request) -> Response:
    query = request.query_params
    if not query.get("a") or not query.get("b"):
        raise UsageError("a comparison needs two runs: a=RUN and b=RUN")
    reader = _reader(request)
    a, b = reader.run(query["a"]), reader.run(query["b"])
    return _answer(compare_runs(a, b, reader.records(a.row.id), reader.records(b.row.id)))


def get_run_export(request: Request) -> Response:
    return Response(_reader(request).export(request.path_params["id"]), media_type="application/zip")


async def post_import(request: Request) -> Response:
    content = await _content(request, thresholds.AGENT_IMPORT_BODY_LIMIT_BYTES)
    return _answer(await run_in_threadpool(_jobs(request).store.import_run, content))


# ---- adapters


def _jobs(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.jobs
    return jobs


def _reader(request: Request) -> StoreReader:
    return StoreReader(_jobs(request).paths)


def _answer(document: BaseModel, status: int = 200) -> Response:
    return Response(document.model_dump_json(by_alias=True), status_code=status, media_type="application/json")


def _cursor(request: Request) -> int:
    text = request.query_params.get("cursor", "0")
    if not text.isdecimal() or len(text) > 19:  # 64 bits
        raise UsageError(f"cursor must be a whole number from 0, got {text!r}")
    return int(text)


async def _body(request: Request, model: type[Model]) -> Model:
    """The body as a document; what is wrong with it is said field by field."""
    try:
        return model.model_validate_json(await _content(request, thresholds.AGENT_JSON_BODY_LIMIT_BYTES))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors(include_url=False)
        )
        raise UsageError(problems) from error


async def _content(request: Request, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise UsageError(f"the body is larger than {limit_bytes >> 20} MiB")
        chunks.append(chunk)
    return b"".join(chunks)


async def _on_slipstream_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, SlipstreamError)  # noqa: S101 - registered for this class alone
    return _answer(ErrorBody(error=str(error), kind=type(error).__name__), error.http_status)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class alone
    kind = "NotFoundError" if error.status_code == 404 else "UsageError"
    return _answer(ErrorBody(error=error.detail, kind=kind), error.status_code)


async def _on_defect(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    text = (
        f"the agent failed on {request.method} {request.url.path} ({type(error).__name__}); its log has the traceback"
    )
    return _answer(ErrorBody(error=text, kind="AgentError"), 500)


EXCEPTION_HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    SlipstreamError: _on_slipstream_error,
    HTTPException: _on_http_error,
    Exception: _on_defect,
}

ROUTES = [
    Route("/v1/status", get_status),
    Route("/v1/scan", get_scan),
    Route("/v1/inspect", get_inspect),
    Route("/v1/trace", post_trace, methods=["POST"]),
    Route("/v1/check", post_check, methods=["POST"]),
    Route("/v1/engines", post_engine, methods=["POST"]),
    Route("/v1/engines/{id}", get_engine),
    Route("/v1/engines/{id}/log", get_engine_log),
    Route("/v1/engines/{id}/stop", post_engine_stop, methods=["POST"]),
    Route("/v1/loads", post_load, methods=["POST"]),
    Route("/v1/loads/{id}", get_load),
    Route("/v1/loads/{id}/live", get_load_live),
    Route("/v1/loads/{id}/result", get_load_result),
    Route("/v1/loads/{id}/stop", post_load_stop, methods=["POST"]),
    Route("/v1/telemetry", get_telemetry),
    Route("/v1/doctor", get_doctor),
    Route("/v1/close", post_close, methods=["POST"]),
    Route("/v1/runs", get_runs),
    Route("/v1/runs/import", post_import, methods=["POST"]),
    Route("/v1/runs/{id}", get_run),
    Route("/v1/runs/{id}", post_run, methods=["POST"]),
    Route("/v1/runs/{id}/requests", get_run_requests),
    Route("/v1/runs/{id}/live", get_run_live),
    Route("/v1/runs/{id}/telemetry", get_run_telemetry),
    Route("/v1/runs/{id}/export", get_run_export),
    Route("/v1/compare", get_compare),
]
