"""Tokens to text, as they come."""

from tokenizers import Tokenizer

_UNFINISHED = "\ufffd"  # what an incomplete UTF-8 sequence decodes to


class TextStream:
    """Text of a growing token list. A character appears when all its bytes are there, and what may turn out to be the
    beginning of a stop string is held back until it is clear."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._ids: list[int] = []
        self._context = 0  # ids before this are settled
        self._read = 0  # ids before this are in the text
        self._text = ""

    def push(self, ids: list[int]) -> None:
        """More tokens."""
        self._ids.extend(ids)
        known = self._decode(self._ids[self._context : self._read])
        text = self._decode(self._ids[self._context :])
        if len(text) > len(known) and not text.endswith(_UNFINISHED):
            self._text += text[len(known) :]
            self._context, self._read = self._read, len(self._ids)

    @property
    def visible(self) -> str:
        """The text so far, without what may still be cut."""
        longest = max(map(len, self._stops), default=0)
        for length in range(min(longest - 1, len(self._text)), 0, -1):
            tail = self._text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return self._text[:-length]
        return self._text

    def final(self, matched: object = None) -> str:
        """The whole text; `matched` is the token id or stop string that ended it, which is left out."""
        if isinstance(matched, int):
            return self._decode(self._ids[:-1])
        known = self._decode(self._ids[self._context : self._read])
        text = self._text + self._decode(self._ids[self._context :])[len(known) :]
        if isinstance(matched, str) and matched in text:
            text = text[: text.index(matched)]
        return text

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def find_stop(tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...]) -> str | None:
    """The stop string that the newest of `ids` completed. A token has at least one byte, which bounds the look back."""
    reach = max(len(stop.encode()) for stop in stops) + 1
    tail = tokenizer.decode(ids[-reach:], skip_special_tokens=True)
    return next((stop for stop in stops if stop in tail), None)
