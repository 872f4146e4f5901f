"""Aligned plain-text tables and figures with units."""

import re
from collections.abc import Sequence

MISSING = "–"
_FIGURE = re.compile(r"[-+]?\d[\d.,]*( ?(%|B|[KMG]iB))?")  # not an id or a date, which also begin with a digit


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell. A column of figures is aligned to the right, other text to the left."""
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(rows) and all(_is_figure(cell) for cell in column[1:]) for column in columns]
    lines = [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in (heads, *rows)
    ]
    return "\n".join(lines)


def figure(value: float | None, digits: int = 1) -> str:
    """A number, or a dash for what was not measured: never a zero."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.0f}%"


def size(count: int | None) -> str:
    """Bytes in the binary unit that leaves at most four digits."""
    if count is None:
        return MISSING
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def _is_figure(cell: str) -> bool:
    return cell == MISSING or _FIGURE.fullmatch(cell) is not None
