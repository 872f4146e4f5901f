"""The documents of the OpenAI routes: request bodies, answers, chunks. The shapes are SGLang's."""

import time
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from backend.reference.api import shown, stop_strings
from backend.reference.limits import RefusedError
from backend.reference.request import Request, SamplingParams

# Fields of the protocol that this engine does not act on, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "store": (None, False),
    "parallel_tool_calls": (None, False, True),
    "service_tier": (None, "auto", "default"),
    "min_p": (None, 0),
    "repetition_penalty": (None, 1),
    "skip_special_tokens": (None, True),
    "separate_reasoning": (None, False, True),
}
_COMPLETION_TOKENS = 16  # of /v1/completions when none is given, as the protocol has it


def _same(value: object, neutral: object) -> bool:
    """Equal, and both or neither a truth value: Python takes True for 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class OpenAiBody(BaseModel):
    """What both routes take. Fields in `_NEUTRAL` may be sent with a value that asks for nothing."""

    model_config = ConfigDict(extra="allow", strict=True)
    object_name: ClassVar[str]
    chunk_name: ClassVar[str]

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    user: str | None = None
    metadata: dict[str, str] | None = None
    rid: str | None = Field(None, min_length=1)

    def check(self) -> None:
        """Raises RefusedError for what is asked for and not done."""
        for name, value in (self.model_extra or {}).items():
            if name not in _NEUTRAL:
                raise RefusedError(f"{shown(name)} is not known to this engine.")
            if not any(_same(value, neutral) for neutral in _NEUTRAL[name]):
                raise RefusedError(f"{name}={shown(value)!r} is not supported by this engine; leave it out.")
        if self.stream_options is not None and not self.stream:
            raise RefusedError("stream_options is only allowed with stream=true.")

    @property
    def limit(self) -> int | None:
        """Tokens asked for; None: as many as there is room for."""
        return self.max_tokens

    @property
    def usage_at_end(self) -> bool:
        """Whether a last chunk with the usage is wanted."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_in_chunks(self) -> bool:
        """Whether each chunk is to say the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def params(self, limit: int) -> SamplingParams:
        """As the scheduler takes them."""
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=-1 if self.top_k is None else self.top_k,
            max_new_tokens=limit,
            min_new_tokens=self.min_tokens,
            stop=stop_strings(self.stop),
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            seed=self.seed,
        )


class CompletionBody(OpenAiBody):
    """`POST /v1/completions`."""

    object_name = "text_completion"
    chunk_name = "text_completion"
    prompt: str | list[int] | list[str] | list[list[int]]

    @property
    def limit(self) -> int:
        """Tokens asked for."""
        return self.max_tokens or _COMPLETION_TOKENS

    def single(self) -> str | list[int]:
        """The one prompt. Raises RefusedError for several."""
        if isinstance(self.prompt, str):
            return self.prompt
        if self.prompt and isinstance(self.prompt[0], int):
            return [token for token in self.prompt if isinstance(token, int)]
        if len(self.prompt) != 1 or isinstance(self.prompt[0], int):
            raise RefusedError(f"prompt holds {len(self.prompt)} prompts; this engine takes one per request.")
        return self.prompt[0]


class Message(BaseModel):
    """One message; its content is a string or parts of type text."""

    model_config = ConfigDict(extra="allow", strict=True)
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None

    def document(self) -> dict[str, Any]:
        """For the template, with the content as one string."""
        if isinstance(self.content, str):
            return self.model_dump()
        for part in self.content or ():
            if part.get("type") == "text" and not isinstance(part.get("text"), str):
                raise RefusedError(
                    f"A content part of type 'text' has the text {shown(part.get('text'))!r}; send a string."
                )
            if part.get("type") != "text":
                raise RefusedError(
                    f"A content part of type {shown(part.get('type'))!r} is not supported; this engine reads text."
                )
        return {**self.model_dump(), "content": "".join(part["text"] for part in self.content or ())}


class ChatBody(OpenAiBody):
    """`POST /v1/chat/completions`."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def limit(self) -> int | None:
        """Tokens asked for; None: as many as there is room for."""
        return self.max_completion_tokens or self.max_tokens


def usage(request: Request, completion_tokens: int) -> dict[str, Any]:
    """Token counts so far."""
    return {
        "prompt_tokens": len(request.prompt),
        "total_tokens": len(request.prompt) + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": request.cached},
        "reasoning_tokens": 0,
    }


def envelope(request: Request, name: str, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    """What every answer and chunk has around its choices."""
    return {"id": request.id, "object": name, "created": int(time.time()), "model": model, "choices": choices}


def choice(last: dict[str, Any] | None, **content: object) -> dict[str, Any]:
    """The one choice, with `last` as the request's finish reason."""
    return {
        "index": 0,
        **content,
        "logprobs": None,
        "finish_reason": last["type"] if last else None,
        "matched_stop": last.get("matched") if last else None,
    }
