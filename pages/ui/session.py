"""Every session key, and the form's values in it. Inputs are kept for the whole session: no page switch loses them."""

import os
from collections.abc import MutableMapping
from typing import cast

import streamlit as st

from backend.schema.engine import EngineKind, FlagValue, LaunchRequest, Scan
from pages.ui import form
from pages.ui.live import LoadBuffer, LogBuffer, TelemetryBuffer
from pages.ui.loadform import LoadDraft

HOST = "host"
NOTICE = "notice"  # what a command answered: (kind, title, text), shown once
SEEN = "seen"  # the signature of the last full draw
FILLED = "tune_filled"  # the launch form has had its starting values
REFILL = "tune_refill"  # a configuration that the form takes over at its next draw

KIND, MODEL, PORT = "tune_kind", "tune_model", "tune_port"
ENGINE, PYTHON, GPUS = "tune_engine", "tune_python", "tune_gpus"  # of SGLang only
MTP, ENV, OTHER = "tune_mtp", "tune_env", "tune_other"

RUN = "run"  # query parameters
RUN_A, RUN_B = "a", "b"
FILTER_TAG, FILTER_VERDICT, FILTER_NOTE = "runs_tag", "runs_verdict", "runs_note"
UPLOAD = "runs_upload"

_LOAD = "tune_load_buffer"
_TELEMETRY = "tune_telemetry_buffer"
_LOG = "tune_log_buffer"
RESULT = "tune_result"  # (load id, its final result)


def dashboard_owner() -> str:
    """Who launches from these pages: this server process, so that its end stops its own engines and no other's."""
    return f"ui-{os.getpid()}"


def control_key(kind: EngineKind, control: str) -> str:
    """Per engine kind: choices of one engine are no choices of the other."""
    return f"tune_{kind.value}_{control}"


def load_key(name: str) -> str:
    return f"load_{name}"


# ---- the launch form


def chosen_engine() -> tuple[str, str | None]:
    """Kind and engine of the launch form, as `client.scan` takes them."""
    kind = str(_state().get(KIND) or EngineKind.REFERENCE.value)
    engine = str(_state().get(ENGINE) or "") or None
    return kind, engine if kind == EngineKind.SGLANG.value else None


def fill(draft: form.Draft, state: MutableMapping[str, object] | None = None) -> None:
    """Writes a draft into the form. Before the widgets of this run, or in a callback."""
    state = _state() if state is None else state
    state.update(
        {
            KIND: draft.kind.value,
            MODEL: draft.model,
            ENGINE: draft.engine,
            PYTHON: draft.python,
            GPUS: draft.gpus,
            PORT: draft.port,
            MTP: draft.mtp,
            ENV: draft.env,
            OTHER: draft.other,
            **{control_key(draft.kind, key): value for key, value in draft.values.items()},
            FILLED: True,
        }
    )


def refill(request: LaunchRequest) -> None:
    """Asks the next draw to fill the form with this configuration instead of what it holds."""
    _state()[REFILL] = request


def start_controls(scan: Scan) -> None:
    """Gives every control that has no value yet the one it opens with."""
    state = _state()
    kind = EngineKind(chosen_engine()[0])
    for control, _ in form.declared(scan):
        state.setdefault(control_key(kind, control.key), control.start)


def draft(scan: Scan) -> form.Draft:
    """The launch form as it stands now; also right inside a callback, where arguments are one run old."""
    state = _state()
    kind = EngineKind(chosen_engine()[0])
    port = state.get(PORT)
    return form.Draft(
        kind=kind,
        model=str(state.get(MODEL) or ""),
        engine=str(state.get(ENGINE) or ""),
        python=str(state.get(PYTHON) or ""),
        gpus=str(state.get(GPUS) or ""),
        port=port if isinstance(port, int) else None,
        mtp=bool(state.get(MTP)),
        values={c.key: _flag_value(state.get(control_key(kind, c.key))) for c, _ in form.declared(scan)},
        env=str(state.get(ENV) or ""),
        other=str(state.get(OTHER) or ""),
    )


# ---- the load form


def start_load_form() -> None:
    for name, value in LoadDraft().items():
        _state().setdefault(load_key(name), value)


def load_draft() -> LoadDraft:
    state = _state()
    return LoadDraft.of({name: state.get(load_key(name), value) for name, value in LoadDraft().items()})


# ---- notices


def notify(kind: str, title: str, text: str) -> None:
    """Leaves a message for the next draw of the page."""
    _state()[NOTICE] = (kind, title, text)


def take_notice() -> tuple[str, str, str] | None:
    notice = _state().pop(NOTICE, None)
    return notice if isinstance(notice, tuple) else None


# ---- what was fetched already


def load_buffer(load_id: str) -> LoadBuffer:
    """The buffer of this load test; another test's is dropped."""
    kept = _state().get(_LOAD)
    if not isinstance(kept, LoadBuffer) or kept.load_id != load_id:
        kept = _state()[_LOAD] = LoadBuffer(load_id)
    return kept


def telemetry_buffer(agent_url: str) -> TelemetryBuffer:
    kept = _state().get(_TELEMETRY)
    if not isinstance(kept, tuple) or kept[0] != agent_url:
        kept = _state()[_TELEMETRY] = (agent_url, TelemetryBuffer())
    buffer: TelemetryBuffer = kept[1]
    return buffer


def log_buffer(engine_id: str) -> LogBuffer:
    kept = _state().get(_LOG)
    if not isinstance(kept, LogBuffer) or kept.engine_id != engine_id:
        kept = _state()[_LOG] = LogBuffer(engine_id)
    return kept


def forget_fetched() -> None:
    """Another host, or another agent: nothing of the old one may be shown as the new one's."""
    for key in (_LOAD, _TELEMETRY, _LOG, SEEN, FILLED):
        _state().pop(key, None)


def _state() -> MutableMapping[str, object]:
    return cast("MutableMapping[str, object]", st.session_state)


def _flag_value(value: object) -> FlagValue:
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
