"""Makes the prompts of a load test: reads, orders, brings to length, renders. Deterministic in the seed."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from backend import thresholds
from backend.errors import InputError
from backend.load.plan import counted_requests
from backend.load.promptfile import prompt_path, read_prompts
from backend.load.spec import Prompt
from backend.load.template import Messages, Render, chat_renderer, load_tokenizer
from backend.schema.load import BenchRequest, Endpoint


@dataclass(frozen=True)
class Prepared:
    """Prompts in the order of their use, and what the person should know about them."""

    prompts: list[Prompt]
    warnings: list[str]


@dataclass(frozen=True)
class _Draft:
    id: str
    messages: Messages

    @property
    def question(self) -> str:
        return self.messages[-1]["content"]

    def asking(self, question: str) -> "_Draft":
        return replace(self, messages=[*self.messages[:-1], {"role": "user", "content": question}])


def prepare_prompts(request: BenchRequest, model_dir: Path | None) -> Prepared:
    """Reads the data set and renders it. InputError: missing or malformed file, no tokenizer, too little text."""
    path = prompt_path(request.dataset)
    drafts = [_Draft(id, messages) for id, messages in read_prompts(path)]
    random.Random(request.seed).shuffle(drafts)  # noqa: S311 -- an order, not a secret
    drafts = drafts[: thresholds.LOAD_PROMPTS_MAX_COUNT]
    render, warnings = _renderer(request, model_dir)
    if request.input_len is not None:
        drafts = _to_length(drafts, request.input_len, load_tokenizer(model_dir), render, path)
    warnings += _reuse(request, len(drafts))
    if request.endpoint is Endpoint.CHAT:
        return Prepared([Prompt(id=draft.id, messages=draft.messages) for draft in drafts], warnings)
    return Prepared([Prompt(id=draft.id, text=_text(draft.messages, render)) for draft in drafts], warnings)


def _renderer(request: BenchRequest, model_dir: Path | None) -> tuple[Render | None, list[str]]:
    """The chat template, and a warning when the prompts go without one though one was asked for."""
    if request.endpoint is Endpoint.CHAT:
        render = chat_renderer(model_dir) if model_dir is not None and request.input_len is not None else None
        return render, []  # the server applies its template; ours only tells how long it is
    if not request.chat_template:
        return None, []
    without = "prompts are sent without a chat template, so acceptance may not be that of a chat: "
    if model_dir is None:
        return None, [without + "the server's checkpoint is not on this machine"]
    render = chat_renderer(model_dir)
    return render, [] if render is not None else [without + f"{model_dir} has none"]


def _text(messages: Messages, render: Render | None) -> str:
    return render(messages) if render is not None else "\n\n".join(message["content"] for message in messages)


def _to_length(
    drafts: list[_Draft], input_len: int, tokenizer: Tokenizer, render: Render | None, path: Path
) -> list[_Draft]:
    """Cuts each prompt, or continues it with the prompts that follow it, to about `input_len` tokens with the template.

    No text occurs twice in one prompt: a data set that is too small for that is refused, because repetition would
    flatter speculation.
    """
    tokens = [tokenizer.encode(draft.question, add_special_tokens=False).ids for draft in drafts]
    adjusted = []
    for index, draft in enumerate(drafts):
        frame = _text(draft.asking("").messages, render)
        room = max(1, input_len - len(tokenizer.encode(frame, add_special_tokens=False).ids))
        ids: list[int] = []
        for step in range(len(drafts)):
            ids += tokens[(index + step) % len(drafts)]
            if len(ids) >= room:
                break
        else:
            raise InputError(
                f"{path} has {len(ids)} tokens in all, too few for prompts of {input_len} tokens without repetition; "
                "choose shorter prompts or a larger data set"
            )
        adjusted.append(draft.asking(tokenizer.decode(ids[:room], skip_special_tokens=False)))
    return adjusted


def _reuse(request: BenchRequest, available: int) -> list[str]:
    """A warning when a level is longer than the data set, so that prompts come a second time."""
    longest = max((counted_requests(request, level) or 0 for level in request.concurrency), default=0)
    needed = longest + request.warmup_requests
    if request.duration_s is not None or needed <= available:
        return []
    return [
        f"a level of {needed} requests uses the {available} prompts more than once; a prefix cache makes "
        "repeated ones faster"
    ]
