"""The one way to speak to an agent, for the CLI and the pages. Synchronous; every answer is a typed document.

Errors of the transport become AgentError, a refused token TokenError, and whatever the agent refused comes back as the
same class of `backend.errors` that it raised there, with the same message.
"""

from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from backend import errors
from backend.schema.checkpoint import Inspection
from backend.schema.engine import EngineStatus, LaunchRequest, LogChunk, Scan
from backend.schema.host import Doctor, ErrorBody, Status, TelemetryDelta
from backend.schema.load import Bench, BenchRequest, LiveDelta, LoadStatus, RequestRecord
from backend.schema.run import Comparison, Imported, RunDetail, RunList, RunPatch, RunRow
from backend.schema.validate import Check, CheckRequest, Trace, TraceRequest

Model = TypeVar("Model", bound=BaseModel)

# Connecting to an agent on loopback or through a tunnel; answers are small, only exports are long.
CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 30.0


class AgentClient:
    """Calls one agent. Use as a context manager, or `close()` it."""

    def __init__(self, url: str, token: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            transport=transport,
            trust_env=False,  # a proxy variable must not send the token elsewhere
        )

    def __enter__(self) -> "AgentClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # ---- engines

    def status(self) -> Status:
        return self._get(Status, "/v1/status")

    def scan(self, *, kind: str | None = "reference", engine: str | None = None) -> Scan:
        """With neither kind nor engine: the only engine of the agent's host."""
        return self._get(Scan, "/v1/scan", kind=kind, engine=engine)

    def launch(self, request: LaunchRequest) -> EngineStatus:
        """Begins a launch and returns at once; follow it with `engine()`."""
        return self._post(EngineStatus, "/v1/engines", request)

    def inspect(self, model: str) -> Inspection:
        """What a checkpoint on the agent's host holds."""
        return self._get(Inspection, "/v1/inspect", checkpoint=model)

    def trace(self, request: TraceRequest) -> Trace:
        """Whether an engine on the agent's host would use a checkpoint's MTP layer."""
        return self._post(Trace, "/v1/trace", request)

    def check(self, request: CheckRequest) -> Check:
        """What an engine on the agent's host would refuse or change about a configuration."""
        return self._post(Check, "/v1/check", request)

    def engine(self, engine_id: str) -> EngineStatus:
        return self._get(EngineStatus, f"/v1/engines/{engine_id}")

    def engine_log(self, engine_id: str, cursor: int = 0) -> LogChunk:
        return self._get(LogChunk, f"/v1/engines/{engine_id}/log", cursor=cursor)

    def stop_engine(self, engine_id: str) -> EngineStatus:
        """Begins to stop (or to cancel a launch) and returns at once."""
        return self._post(EngineStatus, f"/v1/engines/{engine_id}/stop")

    # ---- load tests

    def start_load(self, request: BenchRequest) -> LoadStatus:
        return self._post(LoadStatus, "/v1/loads", request)

    def load(self, load_id: str) -> LoadStatus:
        return self._get(LoadStatus, f"/v1/loads/{load_id}")

    def load_live(self, load_id: str, cursor: int = 0, boot: str | None = None) -> LiveDelta:
        return self._get(LiveDelta, f"/v1/loads/{load_id}/live", cursor=cursor, boot=boot)

    def load_result(self, load_id: str) -> Bench:
        """The result so far; complete once the load's state is final."""
        return self._get(Bench, f"/v1/loads/{load_id}/result")

    def stop_load(self, load_id: str) -> LoadStatus:
        return self._post(LoadStatus, f"/v1/loads/{load_id}/stop")

    # ---- host

    def telemetry(self, cursor: int = 0, boot: str | None = None) -> TelemetryDelta:
        return self._get(TelemetryDelta, "/v1/telemetry", cursor=cursor, boot=boot)

    def doctor(self) -> Doctor:
        return self._get(Doctor, "/v1/doctor")

    def close_session(self, owner: str) -> Status:
        """What a dashboard says when it ends: stop what `owner` started unless a job runs on it; leave if idle."""
        return self._post(Status, "/v1/close", params={"owner": owner})

    # ---- runs

    def runs(self, *, tag: str | None = None, note: str | None = None, pinned: bool | None = None) -> RunList:
        return self._get(RunList, "/v1/runs", tag=tag, note=note, pinned=pinned)

    def run(self, run_id: str) -> RunDetail:
        return self._get(RunDetail, f"/v1/runs/{run_id}")

    def run_records(self, run_id: str) -> list[RequestRecord]:
        answer = self._request("GET", f"/v1/runs/{run_id}/requests")
        return [RequestRecord.model_validate(row) for row in answer.json()]

    def run_live(self, run_id: str) -> LiveDelta:
        """The stored live points of a run, for its charts."""
        return self._get(LiveDelta, f"/v1/runs/{run_id}/live")

    def run_telemetry(self, run_id: str) -> TelemetryDelta:
        return self._get(TelemetryDelta, f"/v1/runs/{run_id}/telemetry")

    def patch_run(self, run_id: str, patch: RunPatch) -> RunRow:
        return self._post(RunRow, f"/v1/runs/{run_id}", patch)

    def compare(self, a: str, b: str) -> Comparison:
        return self._get(Comparison, "/v1/compare", a=a, b=b)

    def export_run(self, run_id: str) -> bytes:
        """The run as one file, ready for `import-run`."""
        return self._request("GET", f"/v1/runs/{run_id}/export").content

    def import_run(self, file: Path) -> Imported:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise errors.InputError(f"cannot read {file}: {error.strerror}") from error
        return Imported.model_validate(self._request("POST", "/v1/runs/import", content=content).json())

    # ---- transport

    def _get(self, model: type[Model], path: str, **params: object) -> Model:
        return self._parse(model, self._request("GET", path, params=_query(params)))

    def _post(
        self, model: type[Model], path: str, body: BaseModel | None = None, params: dict[str, str] | None = None
    ) -> Model:
        content = None if body is None else body.model_dump_json(by_alias=True)
        headers = {"content-type": "application/json"} if content is not None else {}
        return self._parse(model, self._request("POST", path, content=content, headers=headers, params=params))

    def _parse(self, model: type[Model], answer: httpx.Response) -> Model:
        try:
            return model.model_validate_json(answer.content)
        except ValidationError as error:
            raise errors.AgentError(
                f"{self.url} answered with something that is no {model.__name__}; is it a Slipstream agent of this "
                f"version? ({error.error_count()} fields differ)"
            ) from error

    def _request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise errors.AgentError(
                f"the agent at {self.url} cannot be reached ({type(error).__name__}); start one with "
                "`python -m backend agent`, or check the tunnel"
            ) from error
        if answer.is_success:
            return answer
        raise _refused(self.url, answer)


def _query(params: dict[str, object]) -> dict[str, str]:
    """Query parameters without the unset ones; booleans in lower case."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in params.items()
        if value is not None
    }


def _refused(url: str, answer: httpx.Response) -> errors.SlipstreamError:
    """The exception that the agent raised, rebuilt from its answer."""
    if answer.status_code == 401:
        return errors.TokenError(
            f"the agent at {url} refused the token; use the token of its agent.json, or SLIPSTREAM_AGENT_TOKEN"
        )
    try:
        body = ErrorBody.model_validate_json(answer.content)
    except ValidationError:
        return errors.AgentError(f"{url} answered HTTP {answer.status_code} and no error document; is it an agent?")
    kind = getattr(errors, body.kind, None)
    if isinstance(kind, type) and issubclass(kind, errors.SlipstreamError):
        return kind(body.error)
    return errors.AgentError(body.error)
