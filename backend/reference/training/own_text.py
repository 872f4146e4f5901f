"""Teaching the model not to loop, on its own text.

The loops of `repetition` are made up; those that greedy decoding really falls into are subtler. So the model continues
training prompts greedily, and every token that completes a 4-gram already said in the same answer is made less likely
(Welleck et al., "Neural text generation with unlikelihood training", 2020, the sequence-level form).
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from backend.reference.config import TextConfig
from backend.reference.training.model import TextModel
from backend.reference.training.repetition import repeated_grams

PROMPT_TOKENS, ANSWER_TOKENS = 96, 128
ROUND_ROWS = 128  # continued at once: on a GPU about as dear as a few
ROWS_PER_STEP = 8
STRIDE = 32  # the sequence handed to the model grows by so many tokens at a time
NATURAL_SHARE = 0.08  # of repeated 4-grams in an answer; held-out code has about as many, and that is no fault
WEIGHT = 1.5


@torch.no_grad()
def continue_greedily(model: TextModel, prompts: Tensor, count: int) -> Tensor:
    """[R,P] -> [R,P+count]. Recomputes the whole sequence for every token: the model is causal, so the zeros that
    stand for tokens to come change nothing."""
    start = prompts.shape[1]
    tokens = functional.pad(prompts, (0, count))
    for place in range(start, start + count):
        seen = min(tokens.shape[1], (place // STRIDE + 1) * STRIDE)
        hidden, _ = model.hidden(tokens[:, :seen])
        tokens[:, place] = model.logits(hidden[:, place - 1]).argmax(-1)
    return tokens


def unlikely(model: TextModel, tokens: Tensor, config: TextConfig) -> Tensor:
    """Mean over the answers' tokens [R, PROMPT_TOKENS + N] of -log(1 - p) for those that repeat too much."""
    answers = tokens[:, PROMPT_TOKENS:]
    counted = before_end(answers, config)
    repeated = repeated_grams(answers) & counted
    share = repeated.sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp(min=1)
    punished = repeated & (share > NATURAL_SHARE)
    hidden, _ = model.hidden(tokens[:, :-1])
    log_p = functional.log_softmax(model.logits(hidden[:, PROMPT_TOKENS - 1 :]), -1)
    p = log_p.gather(-1, answers.unsqueeze(-1)).squeeze(-1).exp()
    loss = -torch.log1p(-p.clamp(max=1.0 - 1e-5)) * punished
    return loss.sum() / counted.sum()


def before_end(answers: Tensor, config: TextConfig) -> Tensor:
    """Whether a token comes before the answer's first end token. [R,N] -> [R,N]."""
    ended = sum((answers == token).int() for token in config.eos_token_ids)
    return torch.as_tensor(ended).cumsum(-1) == 0


def repeated_share(answers: Tensor, config: TextConfig) -> float:
    """Share of the tokens of `answers` that complete a 4-gram said before."""
    counted = before_end(answers, config)
    return ((repeated_grams(answers) & counted).sum() / counted.sum().clamp(min=1)).item()


class OwnText:
    """Endless batches of the model's own continuations, made anew by the model as it is whenever they run out."""

    def __init__(self, model: TextModel, stream: Tensor, ends: Tensor, generator: torch.Generator) -> None:
        """`ends`: the places in `stream` where an assistant's answer begins and a prompt ends."""
        self.model, self.stream, self.generator = model, stream, generator
        self.ends = ends[ends >= PROMPT_TOKENS]
        self.rows: Iterator[Tensor] = iter(())
        self.repeated: list[float] = []
        """Share of repeated 4-grams in each round."""

    def batch(self) -> Tensor:
        """[ROWS_PER_STEP, PROMPT_TOKENS + ANSWER_TOKENS]."""
        rows = next(self.rows, None)
        if rows is None:
            rounds = continue_greedily(self.model, self._prompts(), ANSWER_TOKENS)
            self.repeated.append(repeated_share(rounds[:, PROMPT_TOKENS:], self.model.config))
            self.rows = iter(torch.split(rounds, ROWS_PER_STEP))
            rows = next(self.rows)
        return rows

    def _prompts(self) -> Tensor:
        chosen = self.ends[torch.randint(len(self.ends), (ROUND_ROWS,), generator=self.generator)]
        window = torch.arange(-PROMPT_TOKENS, 0, device=self.stream.device)
        return self.stream[chosen.to(self.stream.device)[:, None] + window].long()
