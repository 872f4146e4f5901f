"""Documents → plotly figures, each with the sentence that a reader without the picture gets. Pure, no streamlit.

Colours come from the theme by the order of the traces, so none is named here; what colour tells, a dash, a pattern or
a label tells too. `uirevision` keeps a zoom through an update.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import plotly.graph_objects as go

from backend.schema.host import DeviceSample, TelemetrySample
from backend.schema.load import LivePoint
from pages.ui import format as fmt
from pages.ui.labels import component_label

T = TypeVar("T")

MAX_POINTS = 600  # per series on the wire; more than the pixels of a panel
HEIGHT = 210
MEMORY_HEIGHT = 260  # room for a dozen components in the legend
LIVE_WINDOW_S = 300
LEFT_PANEL, RIGHT_PANEL = [0.0, 0.455], [0.545, 1.0]
SECONDS = {"text": "seconds since start", "standoff": 4}
NOT_ITEMISED = "engine, not itemised"
GIB = 1024**3
MIB = 1024**2


@dataclass(frozen=True)
class Chart:
    """A figure and its text alternative: the takeaway, computed from the same data."""

    figure: go.Figure
    alt: str


def throughput(points: Sequence[LivePoint]) -> Chart:
    """Output tokens per second over the test, all users together and one user."""
    shown = thin(measured(points))
    everybody = go.Scatter(x=_x(shown), y=[p.output_tok_s for p in shown], name="all users", mode="lines")
    one = go.Scatter(x=_x(shown), y=[p.tok_s_user for p in shown], name="per user", mode="lines", line={"dash": "dot"})
    layout = _layout("Output tok/s", "seconds since start", "tok/s")
    shapes, words = _level_marks(shown)
    layout.update(shapes=shapes, annotations=words)
    figure = go.Figure([everybody, one], layout)
    return Chart(figure, f"Output tokens per second. All users: {_spoken(shown, 'output_tok_s', 'tok/s')}")


def acceptance(points: Sequence[LivePoint], per_position: Sequence[float]) -> Chart:
    """Accept length over the test, and how often each draft position was accepted."""
    shown = thin(measured(points))
    shares = [round(share * 100, 1) for share in per_position]
    layout = _pair("Accept length (tok/step)", "Accepted by draft (%)")
    layout.xaxis2.title = None
    layout.yaxis2.update(range=[0, 119], tickvals=[0, 50, 100])
    line = go.Scatter(x=_x(shown), y=[p.accept_length for p in shown], name="accept length", mode="lines")
    bars = go.Bar(
        x=[f"draft {i}" for i in range(1, len(shares) + 1)],
        y=shares,
        text=[f"{s:.0f} %" for s in shares],
        textposition="outside",
        cliponaxis=False,
        name="accepted",
        xaxis="x2",
        yaxis="y2",
    )
    positions = ", ".join(f"draft {i} {fmt.share(s)}" for i, s in enumerate(per_position, start=1)) or "none reported"
    length = _spoken(shown, "accept_length", "tokens per verify step")
    return Chart(go.Figure([line, bars], layout), f"Accept length: {length} Accepted per position: {positions}.")


def latency(points: Sequence[LivePoint]) -> Chart:
    """Time to first token and token-weighted inter-token latency over the test."""
    shown = thin(measured(points))
    traces = [
        go.Scatter(
            x=_x(shown),
            y=[getattr(p, name) for p in shown],
            name=name,
            mode="lines+markers",
            marker={"size": 3},
            xaxis=f"x{axis}",
            yaxis=f"y{axis}",
        )
        for axis, name in (("", "ttft_ms"), ("2", "itl_ms"))
    ]
    ttft, itl = _spoken(shown, "ttft_ms", "ms"), _spoken(shown, "itl_ms", "ms")
    figure = go.Figure(traces, _pair("Time to first token (ms)", "Inter-token latency (ms)"))
    return Chart(figure, f"Time to first token: {ttft} Inter-token latency: {itl}")


def memory(samples: Sequence[TelemetrySample], device: str, *, live: bool = False) -> Chart:
    """Memory of the engine on one device by component, stacked; what its ledger does not name is on top.

    Live, the time axis ends at now and shows the last minutes; else it begins with the first sample.
    """
    if live and samples:
        samples = [s for s in samples if samples[-1].t_ns - s.t_ns <= LIVE_WINDOW_S * 1e9]
    shown = [s for s in thin(samples) if component_bytes(s, device)]
    names = sorted({n: 0 for s in shown for n in component_bytes(s, device)}, key=NOT_ITEMISED.__eq__)
    peak = max((sum(component_bytes(s, device).values()) for s in shown), default=0)
    unit, scale = ("GiB", GIB) if peak >= GIB else ("MiB", MIB)
    title = f"Engine memory by component ({_title(shown, device)})"
    figure = go.Figure(layout=_layout(title, "seconds from now" if live else "seconds", unit))
    origin = shown[-1 if live else 0].t_ns if shown else 0
    x = [round((s.t_ns - origin) / 1e9, 1) for s in shown]
    for name in names:
        y = [component_bytes(s, device).get(name) for s in shown]
        figure.add_scatter(
            x=x,
            y=[None if v is None else float(f"{v / scale:.4g}") for v in y],
            name=component_label(name),
            mode="lines",
            line={"width": 1},
            stackgroup="memory",
        )
    figure.update_layout(
        legend={"orientation": "v", "x": 1.01, "xanchor": "left", "y": 1, "font": {"size": 11}},
        hovermode="x",
        height=MEMORY_HEIGHT,
    )
    if not names:
        return Chart(figure, f"No memory of the engine is known on {device}.")
    last = component_bytes(shown[-1], device)
    parts = ", ".join(f"{component_label(name)} {fmt.memory(value)}" for name, value in last.items())
    return Chart(figure, f"Engine memory on {device} now: {parts}.")


def component_bytes(sample: TelemetrySample, device: str) -> dict[str, int]:
    """What the engine holds on a device: its own ledger, then the rest of its processes' memory."""
    parts: dict[str, int] = {}
    for component in sample.components:
        if (component.device or sample.devices[0].device) == device:
            parts[component.name] = parts.get(component.name, 0) + component.bytes
    found = _device(sample, device)
    if found is not None and found.engine_bytes is not None:
        rest = found.engine_bytes - sum(parts.values())
        if rest > 0:  # below zero the ledger counts what the device does not see; it is not drawn as negative
            parts[NOT_ITEMISED] = rest
    return parts


def devices(samples: Sequence[TelemetrySample]) -> list[str]:
    """The devices of the newest sample, in its order."""
    return [d.device for d in samples[-1].devices] if samples else []


def bars(labels: Sequence[str], a: Sequence[float | None], b: Sequence[float | None], title: str, unit: str) -> Chart:
    """One metric of runs A and B side by side; B is hatched, so that the pair reads without colour."""
    figure = go.Figure(layout=_layout(title, "", unit))
    for name, values, pattern in (("A", a, ""), ("B", b, "/")):
        figure.add_bar(
            x=list(labels),
            y=list(values),
            name=name,
            marker={"pattern": {"shape": pattern, "solidity": 0.35}},
            text=[fmt.number(v) for v in values],
            textposition="outside",
            cliponaxis=False,
        )
    figure.update_layout(barmode="group")
    figure.update_yaxes(rangemode="tozero")
    spoken = "; ".join(
        f"{label}: A {fmt.with_unit(x, unit)}, B {fmt.with_unit(y, unit)}"
        for label, x, y in zip(labels, a, b, strict=True)
    )
    return Chart(figure, f"{title}. {spoken}.")


def overlay(a: Sequence[LivePoint], b: Sequence[LivePoint], name: str, title: str, unit: str) -> Chart:
    """One live series of runs A (solid) and B (dashed) from their own starts."""
    figure = go.Figure(layout=_layout(title, "seconds since start", unit))
    for label, points, dash in (("A", thin(a), "solid"), ("B", thin(b), "dash")):
        figure.add_scatter(
            x=_x(points), y=[getattr(p, name) for p in points], name=label, mode="lines", line={"dash": dash}
        )
    figure.update_yaxes(rangemode="tozero")
    return Chart(figure, f"{title}. A: {_spoken(a, name, unit)} B: {_spoken(b, name, unit)}")


def thin(items: Sequence[T], most: int = MAX_POINTS) -> list[T]:
    """Every n-th item, the newest always kept; live points are averages of their interval already."""
    items = list(items)
    step = -(-len(items) // most) if items else 1
    return items[::-1][::step][::-1]


def measured(points: Iterable[LivePoint]) -> list[LivePoint]:
    """Without the warm-up of a level: a few requests do not load the engine as that level does."""
    return [p for p in points if p.phase != "warmup"]


def _x(points: Iterable[LivePoint]) -> list[float]:
    return [round(p.t_s, 1) for p in points]


def _level_marks(points: Sequence[LivePoint]) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """A dotted line and its words where each concurrency level begins, as layout shapes and annotations."""
    shapes: list[dict[str, object]] = []
    words: list[dict[str, object]] = []
    previous = None
    for point in points:
        if point.level != previous:
            line = {"width": 1, "dash": "dot", "color": "gray"}
            shapes.append(
                {"type": "line", "x0": point.t_s, "x1": point.t_s, "yref": "paper", "y0": 0, "y1": 1, "line": line}
            )
            words.append(_words(fmt.users(point.level), point.t_s, 1.0, yanchor="top", xref="x", size=11))
        previous = point.level
    return shapes, words


def _words(text: str, x: float, y: float, *, yanchor: str, xref: str, size: int) -> dict[str, object]:
    """An annotation without arrow that begins at x."""
    return {
        "text": text,
        "x": x,
        "y": y,
        "xref": xref,
        "yref": "paper",
        "xanchor": "left",
        "yanchor": yanchor,
        "showarrow": False,
        "font": {"size": size},
    }


def _spoken(points: Sequence[LivePoint], name: str, unit: str) -> str:
    """`61.2 to 90.3 tok/s, now 88.1.`"""
    values = [v for p in points if (v := getattr(p, name)) is not None]
    if not values:
        return "no reading yet."
    low, high = fmt.number(min(values)), fmt.number(max(values))
    return f"{low} to {high} {unit}, last {fmt.number(values[-1])}."


def _device(sample: TelemetrySample, device: str) -> DeviceSample | None:
    return next((d for d in sample.devices if d.device == device), None)


def _title(samples: Sequence[TelemetrySample], device: str) -> str:
    found = _device(samples[-1], device) if samples else None
    return device if found is None else found.name


def _layout(title: str, x: str, y: str) -> go.Layout:
    return go.Layout(
        title={"text": title, "font": {"size": 13}, "x": 0, "y": 0.98, "yanchor": "top"},
        xaxis={"title": {"text": x, "standoff": 4}},
        yaxis={"title": {"text": y}, "rangemode": "tozero"},
        height=HEIGHT,
        margin={"l": 8, "r": 8, "t": 34, "b": 8},
        legend={"orientation": "h", "y": 1.18, "x": 1, "xanchor": "right", "yanchor": "top"},
        hovermode="x unified",
        uirevision="kept",
    )


def _pair(left: str, right: str) -> go.Layout:
    """Two panels in one figure, each with a time axis from zero: their values differ too much for one axis."""
    titles = [
        _words(f"<b>{title}</b>", x, 1.06, yanchor="bottom", xref="paper", size=13)
        for title, x in ((left, 0.0), (right, RIGHT_PANEL[0]))
    ]
    return go.Layout(
        annotations=titles,
        xaxis={"domain": LEFT_PANEL, "title": SECONDS},
        xaxis2={"domain": RIGHT_PANEL, "title": SECONDS, "anchor": "y2"},
        yaxis={"rangemode": "tozero"},
        yaxis2={"rangemode": "tozero", "anchor": "x2"},
        height=HEIGHT,
        margin={"l": 8, "r": 8, "t": 34, "b": 8},
        showlegend=False,
        hovermode="x",
        uirevision="kept",
    )
