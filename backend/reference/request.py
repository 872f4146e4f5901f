"""One generation request: what was asked, and how far it is. Only the scheduler's thread changes it."""

from dataclasses import dataclass, field
from typing import Any

from backend.clock import monotonic_s
from backend.thresholds import GREEDY_BELOW_TEMPERATURE_RATIO

DEFAULT_MAX_NEW_TOKENS = 128  # SGLang's


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens and when to stop. `top_k` -1 means all; temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    seed: int | None = None  # random numbers of its own, so that its output does not depend on other requests

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW_TEMPERATURE_RATIO or self.top_k == 1


@dataclass
class Request:
    """A request and its progress.

    `past` tokens of prompt + output are in the KV cache; the last output token never is. `drafts` are what the MTP
    layer proposes for the tokens after the last one.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    stream: bool
    received_s: float = field(default_factory=monotonic_s)
    output: list[int] = field(default_factory=list)
    finish_reason: dict[str, Any] | None = None
    kv_start: int | None = None
    past: int = 0
    slot: int = 0  # its place in the state pool
    cached: int = 0  # prompt tokens that the prefix cache had
    drafts: list[int] = field(default_factory=list)
    verifications: int = 0
    correct: int = 0
    histogram: list[int] = field(default_factory=list)  # [c]: verifications in which c drafts were correct
    started_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    sent: int = 0  # output tokens already delivered

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None

    @property
    def reserved_tokens(self) -> int:
        """Tokens that prompt and longest output take."""
        return len(self.prompt) + self.params.max_new_tokens

    def count_verification(self, correct: int) -> None:
        """Note one verification in which `correct` drafts were what the model would have chosen.

        Drafts count when the verification accepted them, also those that a stop or the length limit then cut off: the
        figures describe the drafter. Hence completion_tokens <= 1 + verifications + correct; equal if nothing was cut.
        """
        self.verifications += 1
        self.correct += correct
        while len(self.histogram) <= correct:
            self.histogram.append(0)
        self.histogram[correct] += 1

    def finish(self, reason: dict[str, Any]) -> None:
        """No more tokens, for this reason (SGLang's `finish_reason` document)."""
        self.finish_reason = reason
        self.finished_s = monotonic_s()


@dataclass(frozen=True)
class Output:
    """What one step added to a request: token ids since the last Output, and the reason if it ended."""

    token_ids: list[int]
    finish_reason: dict[str, Any] | None
