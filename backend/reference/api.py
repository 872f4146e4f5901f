"""The HTTP documents of the engine: request bodies, chunks, errors, information."""

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.clock import monotonic_s
from backend.reference.limits import RefusedError
from backend.reference.request import DEFAULT_MAX_NEW_TOKENS, Request, SamplingParams
from backend.reference.server_args import ServerArgs
from backend.thresholds import REFUSED_PROBLEMS_SHOWN_COUNT, REFUSED_VALUE_SHOWN_CHARS

Body = TypeVar("Body", bound=BaseModel)


def error_document(error: RefusedError) -> dict[str, object]:
    """SGLang's error document. What is no text in the client's words (half of a surrogate pair) is shown as `?`."""
    message = str(error).encode(errors="replace").decode()
    return {"object": "error", "message": message, "type": error.kind, "param": None, "code": error.status}


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """The texts that end an answer, from one, several or none; an empty one would end it at once and is left out."""
    return tuple(text for text in ([stop] if isinstance(stop, str) else stop or ()) if text)


class SamplingBody(BaseModel):
    """`sampling_params`. What this engine does not do is refused, not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1)
    max_new_tokens: int = Field(DEFAULT_MAX_NEW_TOKENS, ge=1)
    min_new_tokens: int = Field(0, ge=0)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    n: int = Field(1, ge=1, le=1)
    sampling_seed: int | None = Field(None, ge=0, lt=1 << 63)
    # Known, with the only value that asks for nothing.
    min_p: float = Field(0.0, ge=0, le=0)
    frequency_penalty: float = Field(0.0, ge=0, le=0)
    presence_penalty: float = Field(0.0, ge=0, le=0)
    repetition_penalty: float = Field(1.0, ge=1, le=1)
    skip_special_tokens: Literal[True] = True

    def params(self) -> SamplingParams:
        """As the scheduler takes them."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            stop=stop_strings(self.stop),
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            seed=self.sampling_seed,
        )


class GenerateBody(BaseModel):
    """`POST /generate`. SGLang's other fields may be sent with a value that asks for nothing."""

    model_config = ConfigDict(extra="allow", strict=True)

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingBody = SamplingBody()
    stream: bool = False
    rid: str | None = Field(None, min_length=1)
    return_logprob: bool = False

    def check(self) -> None:
        """Raises RefusedError for a field that is not known and asks for something."""
        for name, value in (self.model_extra or {}).items():
            if value not in (None, False, "", [], {}):
                raise RefusedError(f"{shown(name)} is not known to this engine; leave it out of the body of /generate.")


class AbortBody(BaseModel):
    """`POST /abort_request`. As in SGLang a prefix is enough, and an empty one means every request."""

    model_config = ConfigDict(strict=True)

    rid: str = ""
    abort_all: bool = False


def parse_body(model: type[Body], raw: bytes, route: str) -> Body:
    """Raises RefusedError in SGLang's words for a body that is no JSON or has wrong types."""
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        problems = [
            {"type": e["type"], "loc": ("body", *e["loc"]), "msg": e["msg"], "input": shown(e["input"])}
            for e in found[:REFUSED_PROBLEMS_SHOWN_COUNT]
        ]
        lines = "\n".join(f"  {problem}" for problem in problems)
        plural = "s" if len(found) > 1 else ""
        message = f"{len(found)} validation error{plural}:\n{lines}\n\n    POST {route} {problems}"
        raise RefusedError(message, kind="Bad Request") from error


def shown(value: object) -> object:
    """A value as a refusal repeats it: itself, or the beginning of its text when it is long."""
    text = repr(value)
    return value if len(text) <= REFUSED_VALUE_SHOWN_CHARS else f"{text[:REFUSED_VALUE_SHOWN_CHARS]}…"


def chunk(
    request: Request, text: str, ids: list[int], completion_tokens: int, last: dict[str, Any] | None, args: ServerArgs
) -> dict[str, Any]:
    """One streamed chunk, or the whole answer; the one with the finish reason `last` carries the request's totals."""
    meta: dict[str, Any] = {
        "id": request.id,
        "finish_reason": last,
        "prompt_tokens": len(request.prompt),
        "weight_version": "default",
        "queue_time": (request.started_s or monotonic_s()) - request.received_s,
        "completion_tokens": completion_tokens,
        "cached_tokens": request.cached,
        "cached_tokens_details": None,
        "dp_rank": None,
    }
    if last is not None:
        meta |= _totals(request, args)
    return {"text": text, "output_ids": ids, "meta_info": meta}


def _totals(request: Request, args: ServerArgs) -> dict[str, Any]:
    ended = request.finished_s or monotonic_s()
    meta: dict[str, Any] = {"e2e_latency": ended - request.received_s}
    if request.first_token_s is not None and ended > request.first_token_s and len(request.output) > 1:
        meta["decode_throughput"] = (len(request.output) - 1) / (ended - request.first_token_s)
    if args.draft_steps and request.verifications:
        proposed = request.verifications * args.draft_steps
        meta |= {
            "spec_accept_rate": request.correct / proposed,
            "spec_accept_length": len(request.output) / request.verifications,
            "spec_num_correct_drafts": request.correct,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": request.verifications,
            "spec_correct_drafts_histogram": request.histogram,
        }
    return meta
