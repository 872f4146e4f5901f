"""Server-sent events out of a byte stream.

Events end at an empty line, wherever the transport cut the bytes. Nothing here decodes the bytes or splits them the way
`str.splitlines` splits text: U+2028, U+2029 and U+0085 are legal inside a JSON string and must not end an event.
"""

DONE = b"[DONE]"
_PREFIX = b"data: "


class EventSplitter:
    """Feed bytes as they arrive, get the payload of each event that became complete."""

    __slots__ = ("_carry",)

    def __init__(self) -> None:
        self._carry = b""

    @property
    def pending(self) -> bytes:
        """Bytes of an event that has not ended yet."""
        return self._carry

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads (what stands behind `data:`) of the events that these bytes complete. Comments give nothing."""
        if self._carry:
            data = self._carry + data
        if b"\r" in data:
            # A raw carriage return cannot stand inside JSON, so it is always part of a line end. One at the very end
            # stays: its line feed comes with the next bytes.
            data = data.replace(b"\r\n", b"\n")
        *events, self._carry = data.split(b"\n\n")
        payloads = []
        for event in events:
            if event.startswith(_PREFIX) and b"\n" not in event:
                payloads.append(event[6:])
            elif payload := _payload(event):
                payloads.append(payload)
        return payloads


def _payload(event: bytes) -> bytes:
    """The joined `data` fields of an event with several lines, other fields, or comments."""
    values = []
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            value = line[5:]
            values.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(values)
