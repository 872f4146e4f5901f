"""Numbers and times as people read them. Pure. An absent value is `n/a`, never 0."""

from datetime import UTC, datetime

NA = "n/a"
KIB = 1024


def number(value: float | None, digits: int = 3) -> str:
    """At least `digits` significant digits, no exponent: 0.0123, 3.46, 123, 12,346."""
    if value is None:
        return NA
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    decimals = max(0, digits - _integer_digits(abs(rounded)))
    return f"{value:,.{decimals}f}"


def _integer_digits(value: float) -> int:
    """Digits before the decimal point; leading zeros after it count negative (0.012 → -1)."""
    digits = 0
    while value >= 1:
        value /= 10
        digits += 1
    while value < 0.1:
        value *= 10
        digits -= 1
    return digits


def with_unit(value: float | None, unit: str, digits: int = 3) -> str:
    """`12.3 ms`, or `n/a`."""
    text = number(value, digits)
    return text if value is None or not unit else f"{text} {unit}"


def share(value: float | None) -> str:
    """A share of 1 as per cent: 0.734 → `73.4 %`."""
    return NA if value is None else f"{value * 100:.1f} %"


def memory(value: float | None) -> str:
    """Bytes in binary units: `512 B`, `1.50 MiB`, `12.3 GiB`."""
    if value is None:
        return NA
    size, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(size) < KIB:
            break
        size, unit = size / KIB, larger
    return f"{size:.0f} B" if unit == "B" else f"{number(size)} {unit}"


def seconds(value: float | None) -> str:
    """A duration: `0.42 s`, `12.3 s`, `3 min 05 s`, `2 h 04 min`."""
    if value is None:
        return NA
    if value < 0.005:
        return "< 0.01 s"
    if value < 60:
        return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def when(utc: str | None) -> str:
    """An ISO time of ours as `2026-11-30 22:01:12 UTC`; anything else as it is."""
    if not utc:
        return NA
    try:
        return datetime.fromisoformat(utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return utc


def name_of_path(path: str) -> str:
    """The last part of a path or hub id, for titles."""
    return path.rstrip("/").rsplit("/", 1)[-1] or path


def code_word(text: str) -> str:
    """Text as inline Markdown code that a backtick in it cannot leave."""
    return f"`{text.replace('`', chr(0x2019))}`"


def plain(text: str) -> str:
    """Foreign text that Markdown must not interpret: links, emphasis and directives are escaped.

    What stands between paired backticks, as commands do in our messages, stays code.
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick pairs with nothing
        return _escaped(text)
    return "".join(code_word(part) if i % 2 and part else _escaped(part) for i, part in enumerate(parts))


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_[]$:#<>~|" else c for c in text)


def clock_now() -> str:
    """The present moment as `22:01:12 UTC`, for "updated" lines."""
    return datetime.now(UTC).strftime("%H:%M:%S UTC")


def users(count: int) -> str:
    """`1 user`, `4 users`."""
    return f"{count} user" if count == 1 else f"{count} users"
