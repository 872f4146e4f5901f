"""An agent without jobs: it answers the client's routes from documents that a test sets, over real HTTP on loopback.

Commands are recorded in `calls` and change nothing, unless the test gives `on_launch` and the like.
"""

import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend.errors import NotFoundError, SlipstreamError
from backend.schema.checkpoint import Inspection
from backend.schema.engine import EngineStatus, LaunchRequest, LogChunk, Scan
from backend.schema.host import AgentInfo, Doctor, ErrorBody, Status, TelemetryDelta, TelemetrySample
from backend.schema.load import Bench, BenchRequest, LiveDelta, LivePoint, LoadStatus, RequestRecord
from backend.schema.run import Comparison, RunDetail, RunList, RunRow
from backend.schema.validate import Check, CheckRequest, Trace, TraceRequest

TOKEN = "fake-token"
BOOT = "boot-1"


class FakeAgent:
    """Holds what the agent would know. Every attribute may be changed between two requests."""

    def __init__(self) -> None:
        self.token = TOKEN
        self.info = AgentInfo(
            version="0.1.0",
            pid=4711,
            url="",
            boot=BOOT,
            host="testhost",
            state_dir="/state",
            started_at_utc="2026-11-30T22:00:00.000Z",
            started_by="ui",
        )
        self.inspection: Inspection | None = None
        self.trace: Trace | None = None
        self.check: Check | None = None
        self.scan = Scan(version="1.0", style="argparse", root="/engine", flags=[])
        self.engines: list[EngineStatus] = []
        self.loads: list[LoadStatus] = []
        self.last_good: LaunchRequest | None = None
        self.log: list[str] = []
        self.points: list[LivePoint] = []
        self.per_position: list[float] = []
        self.samples: list[TelemetrySample] = []
        self.source = "no NVIDIA driver on this machine: host memory and the engine's own ledger are shown"
        self.result: Bench | None = None
        self.doctor = Doctor(findings=[], gpus=[], engines=[])
        self.runs: list[RunRow] = []
        self.details: dict[str, RunDetail] = {}
        self.records: list[RequestRecord] = []
        self.comparison: Comparison | None = None
        self.refuse: dict[str, SlipstreamError] = {}  # command → what it answers instead
        self.garbage = False  # answers as something that is no agent of this version
        self.calls: list[tuple[str, Any]] = []
        self.on_launch: Callable[[LaunchRequest], None] | None = None
        self.url = ""

    # ---- running

    def __enter__(self) -> Self:
        config = uvicorn.Config(self._app(), host="127.0.0.1", port=0, log_level="error", lifespan="off", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="fake agent", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.005)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)

    def called(self, name: str) -> list[Any]:
        return [argument for command, argument in self.calls if command == name]

    # ---- answering

    def _app(self) -> Starlette:
        gets: dict[str, Callable[[Request], BaseModel | bytes | list[Any]]] = {
            "/v1/status": lambda _: self._status(),
            "/v1/scan": lambda r: self._or_refuse("scan", r.query_params.get("kind"), self.scan),
            "/v1/inspect": lambda _: self._known(self.inspection, "checkpoint"),
            "/v1/engines/{id}": lambda r: self._engine(r.path_params["id"]),
            "/v1/engines/{id}/log": lambda r: self._log(int(r.query_params.get("cursor", 0))),
            "/v1/loads/{id}": lambda r: self._load(r.path_params["id"]),
            "/v1/loads/{id}/live": lambda r: self._live(r.path_params["id"], int(r.query_params.get("cursor", 0))),
            "/v1/loads/{id}/result": lambda _: self._known(self.result, "result"),
            "/v1/telemetry": lambda r: self._telemetry(int(r.query_params.get("cursor", 0))),
            "/v1/doctor": lambda _: self.doctor,
            "/v1/runs": lambda r: self._runs(r.query_params.get("tag")),
            "/v1/runs/{id}": lambda r: self._known(self.details.get(r.path_params["id"]), r.path_params["id"]),
            "/v1/runs/{id}/requests": lambda _: [record.model_dump(mode="json") for record in self.records],
            "/v1/runs/{id}/live": lambda r: self._run_live(r.path_params["id"]),
            "/v1/runs/{id}/telemetry": lambda _: self._telemetry(0),
            "/v1/runs/{id}/export": lambda _: b"a run in one file",
            "/v1/compare": lambda _: self._known(self.comparison, "comparison"),
        }
        posts: dict[str, Callable[[Request, bytes], BaseModel]] = {
            "/v1/check": lambda _, body: self._checked(CheckRequest.model_validate_json(body)),
            "/v1/trace": lambda _, body: self._traced(TraceRequest.model_validate_json(body)),
            "/v1/engines": lambda _, body: self._launch(LaunchRequest.model_validate_json(body)),
            "/v1/engines/{id}/stop": lambda r, _: self._or_refuse(
                "stop_engine", r.path_params["id"], self._engine(r.path_params["id"])
            ),
            "/v1/loads": lambda _, body: self._start_load(BenchRequest.model_validate_json(body)),
            "/v1/loads/{id}/stop": lambda r, _: self._or_refuse(
                "stop_load", r.path_params["id"], self._load(r.path_params["id"])
            ),
            "/v1/runs/import": lambda _, body: self._or_refuse("import", body, _imported()),
            "/v1/runs/{id}": lambda r, body: self._or_refuse(
                "patch", (r.path_params["id"], json.loads(body)), self._row(r.path_params["id"])
            ),
        }
        routes = [Route(path, self._get(answer)) for path, answer in gets.items()]
        routes += [Route(path, self._post(answer), methods=["POST"]) for path, answer in posts.items()]
        return Starlette(routes=routes)

    def _get(self, answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            return self._answered(request, lambda: answer(request))

        return handle

    def _post(self, answer: Callable[[Request, bytes], BaseModel]) -> Callable[[Request], Any]:
        async def handle(request: Request) -> Response:
            body = await request.body()
            return self._answered(request, lambda: answer(request, body))

        return handle

    def _answered(self, request: Request, make: Callable[[], Any]) -> Response:
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return Response(status_code=401)
        if self.garbage:
            return Response(b'{"other": "document"}')
        try:
            made = make()
        except SlipstreamError as error:
            body = ErrorBody(error=str(error), kind=type(error).__name__)
            return Response(body.model_dump_json(), status_code=error.http_status)
        if isinstance(made, bytes):
            return Response(made)
        return Response(json.dumps(made) if isinstance(made, list) else made.model_dump_json(by_alias=True))

    def _or_refuse(self, command: str, argument: Any, answer: BaseModel) -> BaseModel:
        self.calls.append((command, argument))
        if command in self.refuse:
            raise self.refuse[command]
        return answer

    def _status(self) -> Status:
        info = self.info.model_copy(update={"url": self.url})
        return Status(agent=info, engines=self.engines, loads=self.loads, last_good=self.last_good)

    def _known(self, document: BaseModel | None, name: str) -> BaseModel:
        if document is None:
            raise NotFoundError(f"no {name} is stored; `runs` lists the stored ones")
        return document

    def _engine(self, engine_id: str) -> EngineStatus:
        return next(engine for engine in self.engines if engine.id == engine_id)

    def _load(self, load_id: str) -> LoadStatus:
        return next(load for load in self.loads if load.id == load_id)

    def _row(self, run_id: str) -> RunRow:
        return next(run for run in self.runs if run.id == run_id)

    def _checked(self, request: CheckRequest) -> BaseModel:
        empty = Check(verdict="ok", engine="/engine", version="1.0", findings=[], effective={}, argv=[])
        return self._or_refuse("check", request, self.check or empty)

    def _traced(self, request: TraceRequest) -> BaseModel:
        return self._or_refuse("trace", request, self._known(self.trace, "trace") if self.trace else self.info)

    def _launch(self, request: LaunchRequest) -> BaseModel:
        self.calls.append(("launch", request))
        if "launch" in self.refuse:
            raise self.refuse["launch"]
        if self.on_launch:
            self.on_launch(request)
        return self.engines[0]

    def _start_load(self, request: BenchRequest) -> BaseModel:
        self.calls.append(("start_load", request))
        if "start_load" in self.refuse:
            raise self.refuse["start_load"]
        return self.loads[0]

    def _log(self, cursor: int) -> LogChunk:
        return LogChunk(lines=self.log[cursor:], first_line=cursor + 1, cursor=len(self.log))

    def _live(self, load_id: str, cursor: int) -> LiveDelta:
        self.calls.append(("live", cursor))
        return LiveDelta(
            boot=BOOT,
            cursor=len(self.points),
            reset=False,
            points=self.points[cursor:],
            per_position=self.per_position,
            status=self._load(load_id),
        )

    def _run_live(self, run_id: str) -> LiveDelta:
        state = self.details[run_id].row.state
        status = LoadStatus(id="", state=state, run_id=run_id, url="", started_at_utc="")
        return LiveDelta(
            boot=run_id, cursor=0, reset=True, points=self.points, per_position=self.per_position, status=status
        )

    def _telemetry(self, cursor: int) -> TelemetryDelta:
        samples = self.samples[cursor:]
        return TelemetryDelta(boot=BOOT, cursor=len(self.samples), reset=False, source=self.source, samples=samples)

    def _runs(self, tag: str | None) -> RunList:
        return RunList(runs=[run for run in self.runs if tag is None or tag in run.tags])


def _imported() -> BaseModel:
    from backend.schema.run import Imported

    return Imported(run_id="imported-run")
