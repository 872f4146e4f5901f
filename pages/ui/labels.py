"""What things are called on the pages: states, phases, verdicts, metrics. One place, no streamlit."""

from typing import Literal

from backend.schema.engine import EngineKind, EngineState, PhaseName
from backend.schema.load import LoadState

Color = Literal["red", "orange", "blue", "green", "violet", "gray"]
Sign = tuple[str, Color, str]  # label, badge colour, icon: the word and the icon say what the colour says

REFERENCE_NOTE = "reference engine: real measurements of a tiny CPU model, not of a GPU"

KINDS = {
    EngineKind.REFERENCE: "Reference engine (built in, CPU)",
    EngineKind.SGLANG: "SGLang",
    EngineKind.ATTACH: "Attached server",
}

ENGINE_STATES: dict[EngineState, Sign] = {
    EngineState.REPLACING: ("stopping the old one", "orange", ":material/swap_horiz:"),
    EngineState.STARTING: ("starting", "orange", ":material/hourglass_top:"),
    EngineState.READY: ("ready", "green", ":material/check_circle:"),
    EngineState.DEGRADED: ("degraded", "red", ":material/warning:"),
    EngineState.STOPPING: ("stopping", "orange", ":material/hourglass_bottom:"),
    EngineState.STOPPED: ("stopped", "gray", ":material/stop_circle:"),
    EngineState.FAILED: ("failed", "red", ":material/error:"),
}

LOAD_STATES: dict[LoadState, Sign] = {
    LoadState.PREPARING: ("preparing", "orange", ":material/hourglass_top:"),
    LoadState.WARMUP: ("warming up", "orange", ":material/hourglass_top:"),
    LoadState.RUNNING: ("running", "blue", ":material/play_circle:"),
    LoadState.STOPPING: ("stopping", "orange", ":material/hourglass_bottom:"),
    LoadState.FINISHED: ("finished", "green", ":material/check_circle:"),
    LoadState.STOPPED: ("stopped by you; what was measured is kept", "gray", ":material/stop_circle:"),
    LoadState.FAILED: ("failed; what was measured is kept", "red", ":material/error:"),
    LoadState.INTERRUPTED: ("interrupted; what was measured is kept", "red", ":material/error:"),
}

PHASES: dict[PhaseName, str] = {
    "stop": "Stop the old engine",
    "wait_memory": "Wait for its memory",
    "init": "Start the process",
    "load_target": "Load weights",
    "load_draft": "Load MTP",
    "pools": "Allocate caches",
    "graphs": "Capture graphs",
    "warmup": "Warm up",
    "ready": "Ready",
}

# Parts of the memory ledger whose names need more than spaces for underscores.
COMPONENTS = {
    "mtp_weights": "MTP weights",
    "kv_pool": "KV pool",
    "draft_kv": "draft KV",
    "intermediate_ssm": "intermediate SSM states",
    "intermediate_conv": "intermediate conv states",
}


def component_label(name: str) -> str:
    """A part of the memory ledger in words: `kv_pool` → `KV pool`."""
    return COMPONENTS.get(name, name.replace("_", " "))


PHASE_ICONS = {
    "done": ":green[:material/check_circle:]",
    "running": ":orange[:material/pending:]",
    "waiting": ":gray[:material/radio_button_unchecked:]",
    "skipped": ":gray[:material/remove:]",
    "failed": ":red[:material/cancel:]",
    "missed": ":gray[:material/remove:]",
}
PHASE_WORDS = {
    "done": "done",
    "running": "running",
    "waiting": "to come",
    "skipped": "not needed",
    "failed": "failed",
    "missed": "not reached",
}

VERDICTS = {
    "ok": "ok",
    "partial": "partial: some requests failed",
    "failed": "failed",
    "interrupted": "interrupted",
    "client_bound": "client bound: the load client was the limit",
    "running": "running",
}
VERDICT_SIGNS: dict[str, tuple[Color, str]] = {
    "ok": ("green", ":material/check_circle:"),
    "partial": ("orange", ":material/warning:"),
    "failed": ("red", ":material/error:"),
    "interrupted": ("red", ":material/power_off:"),
    "client_bound": ("orange", ":material/warning:"),
    "running": ("blue", ":material/play_circle:"),
}
CLIENT_VERDICTS = {"ok": "kept up", "client_bound": "was the limit", "unknown": "not judged"}

COMPARED = {
    "a_better": "A is better",
    "b_better": "B is better",
    "not_distinguishable": "not distinguishable",
    "not_comparable": "not comparable",
}
NOT_JUDGED = "not judged"  # a figure without an interval: the reason beside it says why
BETTER = {"higher": "higher", "lower": "lower", "neither": ""}
STATISTICS = {"p50": "median", "p99": "p99"}

STEP_STATES: dict[str, Sign] = {
    "confirmed": ("confirmed", "green", ":material/check_circle:"),
    "refuted": ("refuted", "red", ":material/cancel:"),
    "unknown": ("not known", "orange", ":material/help:"),
}
TRACE_VERDICTS: dict[str, Sign] = {
    "supported": ("supported", "green", ":material/check_circle:"),
    "unsupported": ("unsupported", "red", ":material/cancel:"),
    "uncertain": ("uncertain", "orange", ":material/help:"),
}

SEVERITIES: dict[str, Sign] = {
    "error": ("refused", "red", ":material/error:"),
    "override": ("changed", "orange", ":material/swap_horiz:"),
    "warning": ("warning", "orange", ":material/warning:"),
    "info": ("note", "blue", ":material/info:"),
    "unknown": ("unknown", "gray", ":material/help:"),
}

FINDINGS: dict[str, Sign] = {
    "ok": ("ok", "green", ":material/check_circle:"),
    "warn": ("look at this", "orange", ":material/warning:"),
    "fail": ("broken", "red", ":material/error:"),
    "absent": ("not here", "gray", ":material/remove:"),
}
