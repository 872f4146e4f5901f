"""Questions that the agent puts to an engine for a load test: which one is meant, and what it is."""

from collections.abc import Sequence
from typing import Any

import httpx

from backend.errors import ConflictError, EngineError, NotFoundError, UsageError
from backend.redact import redact_settings, redact_text
from backend.schema.engine import EngineKind, EngineState, EngineStatus
from backend.schema.load import BenchEngine, BenchRequest


def choose_engine(request: BenchRequest, engines: Sequence[EngineStatus]) -> EngineStatus | None:
    """The engine a load test is for; None when `url` names a server that Slipstream did not start.

    Raises NotFoundError for an unknown id, UsageError when the choice is ambiguous, ConflictError when it is not ready.
    """
    if request.url and request.engine_id:
        raise UsageError("give either a URL or an engine id, not both")
    if request.url:
        return next((e for e in engines if e.url == request.url.rstrip("/") and e.state is EngineState.READY), None)
    if request.engine_id:
        chosen = next((e for e in engines if e.id == request.engine_id), None)
        if chosen is None:
            raise NotFoundError(f"no engine {request.engine_id}; `status` lists them")
    else:
        ready = [e for e in engines if e.state is EngineState.READY]
        if not ready:
            raise ConflictError("no engine is ready; launch one first, or give the URL of a server")
        if len(ready) > 1:
            raise UsageError(f"several engines run ({', '.join(e.id for e in ready)}); say which with an id")
        chosen = ready[0]
    if chosen.state is not EngineState.READY:
        raise ConflictError(f"engine {chosen.id} is {chosen.state}, a load test needs a ready one")
    return chosen


def describe_engine(engine: EngineStatus) -> BenchEngine:
    """What the run's record says about a launched engine."""
    return BenchEngine(
        kind=engine.kind,
        version=engine.version,
        argv=engine.argv,
        effective=engine.effective,
        model=engine.model,
        env=engine.env,
        config_hash=engine.config_hash,
        ledger={name: item.bytes for name, item in engine.ledger.items()},
    )


async def describe_server(url: str, api_key: str | None) -> BenchEngine:
    """What a server that somebody else started says about itself. Raises EngineError when it does not answer."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=10.0, trust_env=False) as http:
            info = (await http.get("/server_info")).raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise EngineError(
            f"no SGLang server answers at {url}/server_info ({type(error).__name__}); check address and API key"
        ) from error
    if not isinstance(info, dict):
        raise EngineError(f"{url}/server_info answered with something that is not an object; is it an SGLang server?")
    return BenchEngine(
        kind=EngineKind.ATTACH,
        version=_text(info.get("version")),
        effective=redact_settings({key: value for key, value in info.items() if key != "internal_states"}),
        model=_text(info.get("model_path")),
    )


def _text(value: Any) -> str | None:
    return redact_text(value) if isinstance(value, str) else None
