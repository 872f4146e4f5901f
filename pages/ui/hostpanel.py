"""The parts of the Host page."""

import streamlit as st

from backend.agent.client import AgentClient
from backend.schema.host import DeviceSample, Doctor, Status
from pages.ui import client, components
from pages.ui import format as fmt
from pages.ui.labels import FINDINGS

ORDER = ("fail", "warn", "ok", "absent")


def findings(found: Doctor) -> None:
    """What doctor looked at, what needs a hand first."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader("Findings", width="content")
        st.button("Look again", key="doctor_again", icon=":material/refresh:", on_click=client.forget_agents)
    lines = ["| State | What | Remedy |", "|:---|:---|:---|"]
    for finding in sorted(found.findings, key=lambda f: ORDER.index(f.status)):
        word, color, icon = FINDINGS[finding.status]
        lines.append(f"| :{color}-badge[{icon} {word}] | {_cell(finding.message)} | {_cell(finding.remedy)} |")
    st.markdown("\n".join(lines) if found.findings else "Nothing was looked at.")


def gpus(found: Doctor) -> None:
    st.subheader("GPUs")
    if not found.gpus:
        words = next((f.message for f in found.findings if "nvidia" in f.message.lower()), "no NVIDIA driver")
        st.markdown(f"None: {fmt.plain(words)}. The reference engine needs none.")
        return
    rows = [
        {
            "GPU": str(gpu.index),
            "Name": gpu.name,
            "Memory": fmt.memory(gpu.memory_bytes),
            "Compute capability": gpu.compute_capability or fmt.NA,
            "Driver": gpu.driver or fmt.NA,
            "UUID": gpu.uuid,
        }
        for gpu in found.gpus
    ]
    components.table(rows, f"{len(rows)} GPUs")


def telemetry(agent: AgentClient) -> None:
    """The newest sample of every device."""
    st.subheader("Telemetry now")
    delta = agent.telemetry()
    if not delta.samples:
        st.caption("No sample yet.")
        return
    sample = delta.samples[-1]
    components.table([_device_row(device) for device in sample.devices], f"{len(sample.devices)} devices")
    st.caption(f"{fmt.when(sample.at_utc)} · {fmt.plain(delta.source)}")


def _device_row(device: DeviceSample) -> dict[str, str]:
    return {
        "Device": device.name,
        "Memory used": fmt.memory(device.memory_used_bytes),
        "Memory": fmt.memory(device.memory_total_bytes),
        "Engine holds": fmt.memory(device.engine_bytes),
        "Busy": fmt.with_unit(device.utilisation_pct, "%"),
        "Power": fmt.with_unit(device.power_w, "W"),
        "Temperature": fmt.with_unit(device.temperature_c, "°C"),
        "Clock": fmt.with_unit(device.clock_mhz, "MHz"),
    }


def engines(found: Doctor) -> None:
    st.subheader("Engine environments")
    if not found.engines:
        st.markdown(
            "Only the built-in reference engine. The README says how to point Slipstream at an SGLang environment."
        )
        return
    rows = [
        {"Kind": env.kind, "Version": env.version or fmt.NA, "Interpreter": env.python, "Package": env.root or fmt.NA}
        for env in found.engines
    ]
    components.table(rows, f"{len(rows)} engine environments")


def agent_info(status: Status) -> None:
    st.subheader("Agent")
    info = status.agent
    if info.store_error:
        st.error(fmt.plain(info.store_error), title="The store has a problem")
    rows = [
        {"Setting": "Host", "Value": info.host},
        {"Setting": "Address", "Value": info.url},
        {"Setting": "Version", "Value": info.version},
        {"Setting": "Process", "Value": str(info.pid)},
        {"Setting": "State directory", "Value": info.state_dir},
        {"Setting": "Running since", "Value": fmt.when(info.started_at_utc)},
        {"Setting": "Started by", "Value": info.started_by},
    ]
    components.table(rows, "The agent's address, version and state directory")


def _cell(text: str) -> str:
    """Foreign text as one table cell."""
    return fmt.plain(" ".join(text.split()))
