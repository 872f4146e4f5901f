"""Training text: the running CPython's standard library, split by file, as plain documents and as chat turns.

Every file appears twice: whole, and cut into turns in which the user gives the first lines of a piece of code and the
assistant continues it. Held-out files are never seen in training, nor by the tokenizer. Of rehearsal files only the
prompts are used: the model continues them by itself. What it says there is what it says to a user, whereas it knows
parts of its training files by heart.
"""

import hashlib
import json
import random
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from backend.errors import InputError
from backend.reference.training.tokenizer import SPECIAL_TOKENS, render_chat, train_tokenizer

# Tables and generated text: nothing to learn about code.
EXCLUDED = {"site-packages", "encodings", "pydoc_data", "__pycache__", "encoded_modules", "cjkencodings"}
SHORTEST_FILE_CHARS = 200
SHARES = 20  # of all files; one is held out, two are rehearsed
REHEARSED = (1, 2)
REHEARSAL_CUTS = 16  # a rehearsal file is cut so many times, each time at other lines
REHEARSAL_TOKENS = (48, 192)  # of a prompt

USER_FORMS = ("{code}", "Continue this Python code:\n\n{code}", "Complete the following Python module.\n\n{code}")
USER_CHARS = (150, 540)  # about 60 to 200 tokens
ASSISTANT_LONG_CHARS = 400  # after so much the answer may also end between two methods
ASSISTANT_LIMIT_CHARS = 2000

Tokens = NDArray[np.uint16]
ARRAYS = ("train", "starts", "prompts", "lengths", "hold", "hold_chat")  # of a corpus, each in a file of its own


@dataclass(frozen=True)
class Source:
    """One file of the standard library; `path` is relative to it, with forward slashes."""

    path: str
    text: str

    @property
    def is_test(self) -> bool:
        return any("test" in part for part in self.path.split("/"))

    @property
    def share(self) -> int:
        """Which of SHARES the file belongs to, by the MD5 of its path."""
        return int(hashlib.md5(self.path.encode(), usedforsecurity=False).hexdigest(), 16) % SHARES

    @property
    def is_held_out(self) -> bool:
        return not self.is_test and self.share == 0

    @property
    def is_rehearsed(self) -> bool:
        return self.share in REHEARSED


def read_sources(root: Path | None = None) -> list[Source]:
    """All usable files under `root` (default: the running interpreter's standard library), sorted by path."""
    root = root or Path(sysconfig.get_path("stdlib"))
    sources = []
    for file in sorted(root.rglob("*.py")):
        relative = file.relative_to(root)
        if EXCLUDED & set(relative.parts) or relative.name.startswith("_sysconfigdata"):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a test of other encodings
        if len(text) >= SHORTEST_FILE_CHARS:
            sources.append(Source(relative.as_posix(), text))
    return sources


def held_out(sources: Sequence[Source]) -> list[Source]:
    return [source for source in sources if source.is_held_out]


@dataclass(frozen=True)
class Turn:
    """A user's code and its true continuation. `line` is where the code begins in its file, from 1."""

    line: int
    user: str
    assistant: str


def cut_turns(text: str, rng: random.Random) -> Iterator[Turn]:
    """Cut a file into consecutive turns: the assistant finishes the definition that the user began."""
    lines = text.splitlines(keepends=True)
    start = 0
    while start < len(lines):
        middle = _take(lines, start, rng.uniform(*USER_CHARS))
        end = _end_of_answer(lines, middle)
        user, assistant = "".join(lines[start:middle]).strip("\n"), "".join(lines[middle:end]).rstrip()
        if user and assistant:
            code = rng.choice(USER_FORMS).format_map({"code": user})
            yield Turn(start + 1, code, assistant)
        start = end


def _end_of_answer(lines: Sequence[str], start: int) -> int:
    """Index of the first line after `start` that begins something new, or where the answer grows too long."""
    chars = 0
    for index in range(start, len(lines)):
        new = index > start and not lines[index - 1].strip() and bool(lines[index].strip())
        top_level = not lines[index][0].isspace()
        if chars >= ASSISTANT_LIMIT_CHARS or (new and (top_level or chars >= ASSISTANT_LONG_CHARS)):
            return index
        chars += len(lines[index])
    return len(lines)


def _take(lines: Sequence[str], start: int, chars: float) -> int:
    """Index after the lines from `start` that hold at least `chars` characters."""
    taken, end = 0, start
    while end < len(lines) and taken < chars:
        taken += len(lines[end])
        end += 1
    return end


def encode_document(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text + SPECIAL_TOKENS[0]).ids)


def encode_turn(tokenizer: Tokenizer, turn: Turn) -> list[int]:
    """Prompt and answer are encoded apart, as when serving: no token spans the point where generation begins."""
    prompt = tokenizer.encode(render_chat(turn.user)).ids
    answer = tokenizer.encode(f"{turn.assistant}{SPECIAL_TOKENS[2]}\n{SPECIAL_TOKENS[0]}").ids
    return [*prompt, *answer]


@dataclass(frozen=True)
class Corpus:
    """Token streams: training, the starts of its documents, and held-out text as plain documents and as chat.

    `prompts` [N, REHEARSAL_TOKENS[1]] are those of the rehearsal files, of `lengths` [N] and then zeros.
    """

    train: Tokens
    starts: NDArray[np.int64]
    prompts: Tokens
    lengths: NDArray[np.int64]
    hold: Tokens
    hold_chat: Tokens
    tokenizer: Tokenizer

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for name in ARRAYS:
            np.save(directory / f"{name}.npy", getattr(self, name))
        self.tokenizer.save(str(directory / "tokenizer.json"), pretty=False)

    @classmethod
    def load(cls, directory: Path) -> "Corpus":
        """Raises InputError when `directory` holds no corpus."""
        if not (directory / "train.npy").exists():
            raise InputError(f"{directory} holds no corpus (train.npy is missing); leave --corpus out to build one.")
        arrays = {name: np.load(directory / f"{name}.npy") for name in ARRAYS}
        return cls(**arrays, tokenizer=Tokenizer.from_file(str(directory / "tokenizer.json")))


def build_corpus(sources: Sequence[Source], vocab_size: int, seed: int) -> Corpus:
    """Split, train the tokenizer, encode. The same on every run over the same files with the same seed."""
    seen, held = [source for source in sources if not source.is_held_out], held_out(sources)
    tokenizer = train_tokenizer([source.text for source in seen if not source.is_test], vocab_size)
    trained = [source for source in seen if not source.is_rehearsed]
    documents = [document for source in trained for document in _documents(tokenizer, source, seed)]
    random.Random(seed).shuffle(documents)  # noqa: S311 (reproducible order, no secret)
    lengths = np.array([len(document) for document in documents])
    prompts = [prompt for source in seen if source.is_rehearsed for prompt in _prompts(tokenizer, source, seed)]
    return Corpus(
        train=_stream(documents),
        starts=np.concatenate([[0], lengths.cumsum()[:-1]]).astype(np.int64),
        prompts=np.array([prompt + [0] * (REHEARSAL_TOKENS[1] - len(prompt)) for prompt in prompts], dtype=np.uint16),
        lengths=np.array([len(prompt) for prompt in prompts], dtype=np.int64),
        hold=_stream([encode_document(tokenizer, source.text) for source in held]),
        hold_chat=_stream([ids for source in held for ids in _chat_documents(tokenizer, source, seed)]),
        tokenizer=tokenizer,
    )


def _prompts(tokenizer: Tokenizer, source: Source, seed: int) -> Iterator[list[int]]:
    """The prompts of a rehearsal file that are neither too short nor too long, each of them once."""
    said: set[str] = set()
    for cut in range(REHEARSAL_CUTS):
        for turn in cut_turns(source.text, random.Random(f"{seed}/{source.path}/{cut}")):  # noqa: S311
            prompt = list(tokenizer.encode(render_chat(turn.user)).ids)
            if turn.user not in said and REHEARSAL_TOKENS[0] <= len(prompt) <= REHEARSAL_TOKENS[1]:
                said.add(turn.user)
                yield prompt


def _documents(tokenizer: Tokenizer, source: Source, seed: int) -> list[list[int]]:
    return [encode_document(tokenizer, source.text), *_chat_documents(tokenizer, source, seed)]


def _chat_documents(tokenizer: Tokenizer, source: Source, seed: int) -> list[list[int]]:
    return [encode_turn(tokenizer, turn) for turn in source_turns(source, seed)]


def source_turns(source: Source, seed: int) -> list[Turn]:
    """The chat turns of one file; they do not depend on which other files there are."""
    return list(cut_turns(source.text, random.Random(f"{seed}/{source.path}")))  # noqa: S311


def _stream(documents: Sequence[Sequence[int]]) -> Tokens:
    return np.concatenate([np.asarray(document, dtype=np.uint16) for document in documents])


def describe(sources: Sequence[Source], corpus: Corpus) -> dict[str, object]:
    """Facts about the corpus for the checkpoint's record."""
    return {
        "source": f"CPython {sys.version.split()[0]} Lib",
        "files": len(sources),
        "train_tokens": len(corpus.train),
        "rehearsal_prompts": len(corpus.prompts),
        "hold_files": [source.path for source in held_out(sources)],
        "hold_tokens": len(corpus.hold),
    }


def write_description(directory: Path, sources: Sequence[Source], corpus: Corpus) -> None:
    (directory / "corpus.json").write_text(json.dumps(describe(sources, corpus), indent=1) + "\n", encoding="utf-8")
