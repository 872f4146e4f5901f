"""The pages' way to an agent: which hosts there are, a client of the chosen one, and answers worth keeping."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

import streamlit as st
from streamlit.errors import StreamlitSecretNotFoundError

from backend.agent.client import AgentClient
from backend.agent.discovery import find_or_start_agent
from backend.errors import AgentError, InputError, SlipstreamError
from backend.paths import state_paths
from backend.schema.checkpoint import Inspection
from backend.schema.engine import Scan
from backend.schema.host import Doctor
from backend.schema.validate import Check, CheckRequest, Trace, TraceRequest

LOCAL = "this machine"
NOTHING_DECLARED = Scan(version=None, style="unknown", root="", flags=[])


@dataclass(frozen=True)
class Host:
    """One GPU host. `url` None: the agent of this machine's state directory, started if none runs."""

    name: str
    url: str | None = None
    token: str = ""


def hosts() -> list[Host]:
    """This machine and the hosts of `.streamlit/secrets.toml`.

    There each host is a table, `[hosts.NAME]` with `url` and `token`. SLIPSTREAM_AGENT_URL takes this machine's place.
    """
    return [Host(LOCAL), *hosts_of(_secrets())]


def hosts_of(secrets: Mapping[str, object]) -> list[Host]:
    """The hosts that a secrets document lists. InputError names the table that lacks a key."""
    tables = secrets.get("hosts", {})
    if not isinstance(tables, Mapping):
        raise InputError("`hosts` in .streamlit/secrets.toml must be tables: [hosts.NAME] with url and token")
    found = []
    for name, entry in tables.items():
        if not isinstance(entry, Mapping) or not entry.get("url") or not entry.get("token"):
            raise InputError(f"[hosts.{name}] in .streamlit/secrets.toml needs `url` and `token`")
        found.append(Host(str(name), str(entry["url"]), str(entry["token"])))
    return found


def agent(host: Host | None = None) -> AgentClient:
    """A client of the chosen host's agent; one per process. Raises AgentError when none can be had."""
    chosen = host or Host(LOCAL)
    if chosen.url is not None:
        return _remote(chosen.url, chosen.token)
    environment = tuple(os.environ.get(name, "") for name in ("SLIPSTREAM_AGENT_URL", "SLIPSTREAM_AGENT_TOKEN"))
    return _local(str(state_paths().home), environment)


def forget_agents() -> None:
    """Retry: the next `agent()` looks again, and starts one if need be."""
    _local.clear()
    _remote.clear()
    _scan.clear()
    _doctor.clear()


def scan(client: AgentClient, boot: str, kind: str, engine: str | None) -> tuple[Scan, str | None]:
    """What an engine declares; or nothing, and why that could not be read.

    Kept for this boot of the agent: reading a source tree takes a second.
    """
    try:
        return _scan(client, client.url, boot, kind, engine), None
    except AgentError:
        raise
    except SlipstreamError as error:
        return NOTHING_DECLARED, str(error)


def trace(client: AgentClient, boot: str, request: TraceRequest) -> Trace:
    """Whether an engine would use a checkpoint's MTP layer, at most a minute old."""
    return _trace(client, client.url, boot, request.model_dump_json())


def check(client: AgentClient, boot: str, request: CheckRequest) -> tuple[Check | None, str | None]:
    """What an engine would refuse or change; or nothing, and why that could not be told."""
    try:
        return _check(client, client.url, boot, request.model_dump_json()), None
    except AgentError:
        raise
    except SlipstreamError as error:
        return None, str(error)


def inspect(client: AgentClient, boot: str, model: str) -> Inspection:
    """What a checkpoint holds, at most a minute old."""
    return _inspect(client, client.url, boot, model)


def doctor(client: AgentClient, boot: str) -> Doctor:
    """What the machine has, at most a minute old."""
    return _doctor(client, client.url, boot)


@st.cache_resource(show_spinner="Looking for the agent …", max_entries=4)
def _local(home: str, environment: tuple[str, ...]) -> AgentClient:
    """Keyed by what decides which agent it is, so that a changed environment is not answered from here."""
    return find_or_start_agent(state_paths(), started_by="ui")


@st.cache_resource(show_spinner=False, max_entries=16)
def _remote(url: str, token: str) -> AgentClient:
    return AgentClient(url, token)


@st.cache_data(show_spinner=False, max_entries=16, ttl="10m")
def _scan(_client: AgentClient, url: str, boot: str, kind: str, engine: str | None) -> Scan:
    return _client.scan(kind=kind, engine=engine)


@st.cache_data(show_spinner="Reading checkpoint and engine …", max_entries=16, ttl="1m")
def _trace(_client: AgentClient, url: str, boot: str, request: str) -> Trace:
    return _client.trace(TraceRequest.model_validate_json(request))


@st.cache_data(show_spinner=False, max_entries=64, ttl="1m")
def _check(_client: AgentClient, url: str, boot: str, request: str) -> Check:
    return _client.check(CheckRequest.model_validate_json(request))


@st.cache_data(show_spinner=False, max_entries=16, ttl="1m")
def _inspect(_client: AgentClient, url: str, boot: str, model: str) -> Inspection:
    return _client.inspect(model)


@st.cache_data(show_spinner="Looking at the machine …", max_entries=16, ttl="1m")
def _doctor(_client: AgentClient, url: str, boot: str) -> Doctor:
    return _client.doctor()


def _secrets() -> Mapping[str, object]:
    """The secrets file as a mapping; having none is the usual case."""
    with contextlib.suppress(StreamlitSecretNotFoundError):
        return st.secrets.to_dict()
    return {}
