"""The model's own text: to teach it not to loop, and as what its drafts are made for.

The loops of `repetition` are made up; those that greedy decoding really falls into are subtler. So the model continues
prompts of code that it was never shown, greedily, and every token that completes a 4-gram already said in the same
answer is made less likely (Welleck et al., "Neural text generation with unlikelihood training", 2020, the
sequence-level form).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from backend.reference.config import TextConfig
from backend.reference.training.decode import GreedyDecoder
from backend.reference.training.model import TextModel
from backend.reference.training.repetition import repeated_grams

ROW_TOKENS = 320  # of prompt and answer together
NATURAL_SHARE = 0.08  # of repeated 4-grams in an answer; held-out code has about as many, and that is no fault
WEIGHT = 1.5
ANSWERS_AT_ONCE, ANSWERS_PER_STEP = 1024, 64


def unlikely(model: TextModel, tokens: Tensor, lengths: Tensor, config: TextConfig) -> Tensor:
    """Mean over the answers' tokens, those of [R,T] from `lengths` [R] on, of -log(1 - p) for those that repeat too
    much."""
    counted, repeated = answer_repeats(tokens, lengths, config)
    share = repeated.sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp(min=1)
    punished = (repeated & (share > NATURAL_SHARE))[:, 1:]
    hidden, _ = model.hidden(tokens[:, :-1])
    log_p = functional.log_softmax(model.logits(hidden), -1)
    p = log_p.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1).exp()
    loss = -torch.log1p(-p.clamp(max=1.0 - 1e-5)) * punished
    return loss.sum() / counted.sum()


def answer_repeats(tokens: Tensor, lengths: Tensor, config: TextConfig) -> tuple[Tensor, Tensor]:
    """For each token of [R,T]: whether it belongs to the answer (before its end token), and whether it completes there
    a 4-gram that the answer has had before."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    in_answer = place >= lengths[:, None]
    answers = torch.where(in_answer, tokens, -1 - place)  # no two places of a prompt are alike, so none repeats
    counted = before_end(answers, config) & in_answer
    return counted, repeated_grams(answers) & counted


def before_end(answers: Tensor, config: TextConfig) -> Tensor:
    """Whether a token comes before the answer's first end token. [R,N] -> [R,N]."""
    ended = sum((answers == token).int() for token in config.eos_token_ids)
    return torch.as_tensor(ended).cumsum(-1) == 0


def repeated_share(tokens: Tensor, lengths: Tensor, config: TextConfig) -> float:
    """Share of the answers' tokens that complete a 4-gram said before."""
    counted, repeated = answer_repeats(tokens, lengths, config)
    return (repeated.sum() / counted.sum().clamp(min=1)).item()


@dataclass(frozen=True)
class Rounds:
    """How own text is made: `rows` continuations at once (on a GPU about as dear as a few), handed out `per_step` at a
    time, each of them `uses` times."""

    rows: int
    per_step: int
    uses: int


class OwnText:
    """Endless batches of the model's own continuations, made anew by the model as it is whenever they run out."""

    def __init__(self, model: TextModel, prompts: Tensor, lengths: Tensor, seed: int, rounds: Rounds) -> None:
        """`prompts` [N,P], of which row r uses the first `lengths` [N], on the model's device."""
        self.model, self.prompts, self.lengths, self.rounds = model, prompts, lengths, rounds
        self.generator = torch.Generator().manual_seed(seed)
        self.rows: Iterator[tuple[Tensor, Tensor]] = iter(())
        self.repeated: list[float] = []
        """Share of repeated 4-grams in each round."""

    @cached_property
    def decode(self) -> GreedyDecoder:
        return GreedyDecoder(self.model, self.rounds.rows, ROW_TOKENS)

    def batch(self) -> tuple[Tensor, Tensor]:
        """Prompts with their answers [per_step, ROW_TOKENS], and the prompts' lengths [per_step]."""
        rows = next(self.rows, None)
        if rows is None:
            chosen = torch.randint(len(self.prompts), (self.rounds.rows,), generator=self.generator)
            prompts, lengths = (part[chosen.to(part.device)] for part in (self.prompts, self.lengths))
            tokens = self.decode(prompts, lengths)
            self.repeated.append(repeated_share(tokens, lengths, self.model.config))
            size = self.rounds.per_step
            pairs = list(zip(torch.split(tokens, size), torch.split(lengths, size), strict=True))
            self.rows = iter(pairs * self.rounds.uses)
            rows = next(self.rows)
        return rows


class AllAnswers:
    """Endless batches of a resting model's answers to all prompts, written once, before the first batch. With few
    answers in many passes the drafts learn these by heart and fit others worse."""

    def __init__(self, model: TextModel, prompts: Tensor, lengths: Tensor, seed: int) -> None:
        """`prompts` [N,P], of which row r uses the first `lengths` [N], on the model's device."""
        self.generator = torch.Generator().manual_seed(seed)
        rows = min(ANSWERS_AT_ONCE, len(prompts))
        decode = GreedyDecoder(model, rows, ROW_TOKENS)
        starts = [min(first, len(prompts) - rows) for first in range(0, len(prompts), rows)]
        written = [decode(prompts[first : first + rows], lengths[first : first + rows]) for first in starts]
        self.answers = torch.cat(written)

    def batch(self) -> tuple[Tensor]:
        """Prompts with their answers [ANSWERS_PER_STEP, ROW_TOKENS]."""
        chosen = torch.randint(len(self.answers), (ANSWERS_PER_STEP,), generator=self.generator)
        return (self.answers[chosen.to(self.answers.device)],)
