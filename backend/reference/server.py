"""SGLang's HTTP surface over the engine."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.clock import utc_now
from backend.reference.api import AbortBody, GenerateBody, chunk, error_document, parse_body
from backend.reference.engine import Engine, Progress
from backend.reference.flags import ENGINE_VERSION, TARGET_ARCHITECTURE
from backend.reference.http import Json, event, read_body, whole
from backend.reference.limits import RefusedError
from backend.reference.metrics import render
from backend.reference.openai_routes import OpenAiRoutes
from backend.reference.request import Request, SamplingParams

_OPEN_PATHS = ("/health", "/ready", "/metrics")
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the "
    "operation will not be performed.)\n"
)


class RequireKey:
    """Refuses requests without the bearer token, except on the open paths."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and not scope["path"].startswith(_OPEN_PATHS):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if given != self._expected:
                await Json({"error": "Unauthorized"}, status_code=401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Routes:
    """One method per endpoint."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def health(self, _: HttpRequest) -> Response:
        """200 once the engine is ready."""
        return Response(status_code=200 if self._engine.ready else 503)

    async def health_generate(self, _: HttpRequest) -> Response:
        """200 when one token can be generated."""
        if not self._engine.ready:
            return Response(status_code=503)
        params = SamplingParams(max_new_tokens=1, temperature=0)
        last = await self._engine.finish(self._engine.make_request([0], params))
        return Response(status_code=503 if last.failure else 200)

    async def model_info(self, _: HttpRequest) -> Response:
        """What is served."""
        args = self._engine.args
        return Json(
            {
                "model_path": args.model_path,
                "tokenizer_path": args.tokenizer_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "qwen3_5_moe",
                "architectures": [TARGET_ARCHITECTURE],
                "served_model_name": args.served_model_name,
            }
        )

    async def server_info(self, _: HttpRequest) -> Response:
        """Effective arguments and state."""
        return Json(self._engine.server_info())

    async def generate(self, http: HttpRequest) -> Response:
        """Text from a prompt, streamed or whole."""
        body = parse_body(GenerateBody, await read_body(http), "/generate")
        body.check()
        request = self._request(body)
        if body.stream:
            return StreamingResponse(self._events(request), media_type="text/event-stream")
        return Json(self._document(request, await whole(http, self._engine, request)))

    def _request(self, body: GenerateBody) -> Request:
        """Raises RefusedError for what cannot be served."""
        if (body.text is None) == (body.input_ids is None):
            raise RefusedError("Either text or input_ids should be provided, and not both.")
        if body.return_logprob:
            raise RefusedError("return_logprob is not supported by this engine.")
        prompt = body.input_ids if body.input_ids is not None else self._engine.encode(body.text or "")
        return self._engine.make_request(prompt, body.sampling_params.params(), body.rid, body.stream)

    async def _events(self, request: Request) -> AsyncIterator[bytes]:
        async for progress in self._engine.generate(request):
            yield event(self._document(request, progress))
        yield b"data: [DONE]\n\n"

    def _document(self, request: Request, progress: Progress) -> dict[str, Any]:
        args = self._engine.args
        text, ids = progress.text, progress.ids
        if args.incremental_streaming_output and request.stream:
            text, ids = progress.new_text, progress.new_ids
        return chunk(request, text, ids, len(progress.ids), progress.finish_reason, args)

    async def flush_cache(self, _: HttpRequest) -> Response:
        """Empty the prefix cache and reset the acceptance totals; refused while requests run."""
        done = await self._engine.flush()
        return PlainTextResponse(_FLUSHED, status_code=200 if done else 400)

    async def abort_request(self, http: HttpRequest) -> Response:
        """End requests by id prefix."""
        body = parse_body(AbortBody, await read_body(http), "/abort_request")
        self._engine.abort("" if body.abort_all else body.rid)
        return Response(status_code=200)

    async def loads(self, _: HttpRequest) -> Response:
        """How busy the engine is."""
        stats, plan = self._engine.stats, self._engine.plan
        load = {
            "dp_rank": 0,
            "num_running_reqs": stats.running,
            "num_waiting_reqs": stats.queued,
            "num_used_tokens": stats.used_tokens,
            "max_total_num_tokens": plan.kv_tokens,
            "max_running_requests": self._engine.args.max_running_requests,
            "token_usage": stats.used_tokens / plan.kv_tokens,
            "gen_throughput": stats.gen_throughput,
        }
        return Json({"timestamp": utc_now(), "version": ENGINE_VERSION, "loads": [load]})

    async def metrics(self, _: HttpRequest) -> Response:
        """Prometheus text."""
        engine = self._engine
        return PlainTextResponse(render(engine.stats, engine.args, engine.plan.kv_tokens))


async def _refuse(http: HttpRequest, error: Exception) -> Response:
    """SGLang's error document for every refusal, also the framework's own, and for a fault of ours."""
    headers = None
    if isinstance(error, HTTPException):
        headers = error.headers
        words = f"{http.method} {http.url.path}: {error.detail}"
        error = RefusedError(words, kind=error.detail.replace(" ", "") + "Error", status=error.status_code)
    elif not isinstance(error, RefusedError):  # the log has its traceback
        words = "The engine failed to answer this request; its log says why."
        error = RefusedError(words, kind="InternalServerError", status=500)
    return Json(error_document(error), status_code=error.status, headers=headers)


def build_app(engine: Engine) -> ASGIApp:
    """The ASGI application."""
    routes, openai = Routes(engine), OpenAiRoutes(engine)

    def route(path: str, endpoint: Callable[[HttpRequest], Awaitable[Response]], *methods: str) -> Route:
        return Route(path, endpoint, methods=list(methods or ("GET",)))

    table = [
        route("/health", routes.health),
        route("/ready", routes.health),
        route("/health_generate", routes.health_generate),
        route("/model_info", routes.model_info),
        route("/get_model_info", routes.model_info),
        route("/server_info", routes.server_info),
        route("/get_server_info", routes.server_info),
        route("/v1/models", openai.models),
        route("/v1/models/{name:path}", openai.model),
        route("/v1/completions", openai.completions, "POST"),
        route("/v1/chat/completions", openai.chat, "POST"),
        route("/v1/loads", routes.loads),
        route("/generate", routes.generate, "POST", "PUT"),
        route("/flush_cache", routes.flush_cache, "GET", "POST"),
        route("/abort_request", routes.abort_request, "POST"),
    ]
    if engine.args.enable_metrics:
        table += [route("/metrics", routes.metrics), route("/metrics/", routes.metrics)]

    handlers = dict.fromkeys((RefusedError, HTTPException, Exception), _refuse)
    app: ASGIApp = Starlette(routes=table, exception_handlers=handlers)
    return RequireKey(app, engine.args.api_key) if engine.args.api_key else app
