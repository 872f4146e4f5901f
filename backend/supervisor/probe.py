"""The two requests that are made to an engine when it says that it is ready, and never again."""

from dataclasses import dataclass

import httpx

from backend.errors import EngineError
from backend.redact import redact_settings
from backend.schema.engine import LedgerItem
from backend.thresholds import SERVER_INFO_TIMEOUT_S

_SMOKE_BODY = {"text": "def add(a, b):", "sampling_params": {"max_new_tokens": 4, "temperature": 0.0}}


@dataclass(frozen=True)
class ServerInfo:
    """What an engine says about itself: version, effective settings (secrets redacted), its own memory ledger."""

    version: str | None
    effective: dict[str, object]
    ledger: dict[str, LedgerItem]


async def smoke(url: str, api_key: str | None, timeout_s: float) -> None:
    """Asks for four tokens. EngineError unless at least one comes back in time."""
    async with _client(url, api_key, timeout_s) as http:
        answer = await _call(http, "POST", "/generate", json=_SMOKE_BODY)
    body = _json(answer, "/generate")
    meta = body.get("meta_info")
    produced = meta.get("completion_tokens") if isinstance(meta, dict) else None
    if not isinstance(produced, int) or produced < 1:
        raise EngineError(f"the first request produced no token: {answer.text[:300]}")


async def server_info(url: str, api_key: str | None, timeout_s: float = SERVER_INFO_TIMEOUT_S) -> ServerInfo:
    """GET /server_info. EngineError when it does not answer with a JSON object."""
    async with _client(url, api_key, timeout_s) as http:
        body = _json(await _call(http, "GET", "/server_info"), "/server_info")
    states = body.pop("internal_states", None)
    version = body.get("version")
    return ServerInfo(
        # The kind of engine stands beside its version wherever that is shown.
        version=version.removeprefix("reference-") if isinstance(version, str) else None,
        effective=redact_settings(body),
        ledger=_ledger(states),
    )


def _client(url: str, api_key: str | None, timeout_s: float) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # trust_env off: a proxy variable must not send requests for this machine elsewhere.
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s, trust_env=False)


async def _call(http: httpx.AsyncClient, method: str, path: str, json: object = None) -> httpx.Response:
    try:
        answer = await http.request(method, path, json=json)
    except httpx.TimeoutException as error:
        raise EngineError(f"{path} did not answer within {http.timeout.read:g} s") from error
    except httpx.HTTPError as error:
        raise EngineError(f"{path} failed: {error or type(error).__name__}") from error
    if answer.status_code != httpx.codes.OK:
        raise EngineError(f"{path} answered HTTP {answer.status_code}: {answer.text[:300]}")
    return answer


def _json(answer: httpx.Response, path: str) -> dict[str, object]:
    try:
        body = answer.json()
    except ValueError as error:
        raise EngineError(f"{path} answered with no JSON: {answer.text[:300]}") from error
    if not isinstance(body, dict):
        raise EngineError(f"{path} answered with a {type(body).__name__} in place of an object")
    return body


def _ledger(states: object) -> dict[str, LedgerItem]:
    """Some engines count their memory exactly in `memory_ledger_bytes`; it replaces the log's rounded figures."""
    first = states[0] if isinstance(states, list) and states else None
    sizes = first.get("memory_ledger_bytes") if isinstance(first, dict) else None
    if not isinstance(sizes, dict):
        return {}
    return {str(name): LedgerItem(bytes=size) for name, size in sizes.items() if isinstance(size, int)}
