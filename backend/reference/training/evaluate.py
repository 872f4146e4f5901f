"""`python -m backend.reference.training.evaluate DIR`: held-out loss, greedy text and accept length of a checkpoint.

Computed by the training form in FP32, apart from the engine. Greedy speculative decoding emits what greedy decoding
emits, so the text is generated first, without drafts; the drafts from every position follow in one pass, and the verify
cycles are replayed over them.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from backend.reference.config import TextConfig
from backend.reference.export import read_weights
from backend.reference.training.corpus import Corpus, encode_document, held_out, read_sources
from backend.reference.training.decode import GreedyDecoder
from backend.reference.training.layers import KeyValue
from backend.reference.training.model import TextModel
from backend.reference.training.prompts import read_prompts
from backend.reference.training.tokenizer import render_chat

CODE_PROMPTS = Path("assets/prompts/code.jsonl")
MAX_STEPS = 5
LOOP_FREE_SHARE = 0.8  # of distinct 3-grams: less means the text repeats itself, which is easy to draft
WINDOW_TOKENS, WINDOWS_PER_FORWARD = 512, 8


@dataclass(frozen=True)
class Generation:
    """Greedy continuation of one prompt. `matches[i]`: how many of MAX_STEPS drafts made at token i were right."""

    text: str
    tokens: list[int]
    matches: list[int]
    distinct: float


def load_model(directory: Path, device: torch.device) -> TextModel:
    """The stored weights, computed in FP32."""
    model = TextModel(TextConfig.from_dir(directory))
    model.load_state_dict({name: tensor.float() for name, tensor in read_weights(directory).items()})
    return model.to(device).eval()


@torch.no_grad()
def cross_entropy(model: TextModel, stream: Tensor) -> float:
    """Mean loss in nat per token over consecutive windows of a token stream [N]."""
    width = WINDOW_TOKENS + 1
    windows = stream[: len(stream) // width * width].view(-1, width)
    total = 0.0
    for part in torch.split(windows, WINDOWS_PER_FORWARD):
        logits = model.logits(model.hidden(part[:, :-1])[0])
        total += functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum").item()
    return total / (len(windows) * WINDOW_TOKENS)


def generate(model: TextModel, prompts: Sequence[list[int]], new_tokens: int) -> list[list[int]]:
    """Greedy continuation of every prompt in one batch, not stopping at end tokens. Returns prompt and continuation."""
    device = next(model.parameters()).device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    longest = int(lengths.max())
    padded = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
    tokens = GreedyDecoder(model, len(prompts), longest + new_tokens)(padded, lengths)
    return [line[: len(prompt) + new_tokens] for line, prompt in zip(tokens.tolist(), prompts, strict=True)]


@torch.no_grad()
def draft_matches(model: TextModel, tokens: Tensor, steps: int = MAX_STEPS) -> Tensor:
    """For each token of [B,T]: how many drafts in a row, made once that token is known, equal what follows. [B,T].

    Entries too near the end to be judged count the drafts beyond it as wrong.
    """
    length = tokens.shape[1]
    hidden = model.hidden(tokens)[0][:, :-1]
    chain: list[KeyValue] = []
    guess, matches = tokens[:, 1:], torch.zeros_like(tokens)
    alive = torch.ones_like(tokens[:, 1:], dtype=torch.bool)
    for step in range(steps):
        hidden, _ = model.mtp(hidden, model.embed(guess), chain)
        guess = model.logits(hidden).argmax(-1)
        right = torch.zeros_like(alive)
        known = length - 2 - step
        right[:, :known] = guess[:, :known] == tokens[:, 2 + step :]
        alive = alive & right
        matches[:, 1:] += alive
    return matches


def accept_length(generations: Sequence[Generation], steps: int) -> float | None:
    """Tokens per verify, the bonus token included, over all complete verify cycles; None if there was none."""
    emitted = cycles = 0
    for generation in generations:
        position, last = 0, len(generation.tokens) - 1
        while position + steps + 1 <= last:
            accepted = min(steps, generation.matches[position])
            emitted, cycles, position = emitted + accepted + 1, cycles + 1, position + accepted + 1
    return emitted / cycles if cycles else None


def distinct_share(tokens: Sequence[int]) -> float:
    """Share of 3-grams that occur for the first time; 1 means no repetition."""
    grams = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
    return len(set(grams)) / len(grams) if grams else 1.0


def run_prompts(
    model: TextModel, tokenizer: Tokenizer, prompts: Sequence[str], new_tokens: int, end: Sequence[int]
) -> list[Generation]:
    """Generate after each prompt through the chat template; what follows an end token is not counted."""
    encoded = [list(tokenizer.encode(render_chat(prompt)).ids) for prompt in prompts]
    device = next(model.parameters()).device
    generations = []
    for prompt, sequence in zip(encoded, generate(model, encoded, new_tokens), strict=True):
        matches = draft_matches(model, torch.tensor([sequence], device=device))[0].tolist()
        answer = sequence[len(prompt) :]
        count = next((i + 1 for i, token in enumerate(answer) if token in end), len(answer))
        answer, judged = answer[:count], matches[len(prompt) : len(prompt) + count]
        generations.append(Generation(tokenizer.decode(answer), answer, judged, distinct_share(answer)))
    return generations


def summary(generations: Sequence[Generation]) -> dict[str, Any]:
    """The figures of a set of generations."""
    steps = range(1, MAX_STEPS + 1)
    lengths = {str(k): accept_length(generations, k) for k in steps}
    return {
        "prompts": len(generations),
        "tokens": sum(len(generation.tokens) for generation in generations),
        "distinct_3gram_share_mean": _rounded(statistics.fmean(g.distinct for g in generations)),
        "distinct_3gram_share_median": _rounded(statistics.median(g.distinct for g in generations)),
        "accept_length": {k: _rounded(value) for k, value in lengths.items()},
    }


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _held_out_stream(tokenizer: Tokenizer, corpus: Path | None) -> Tensor:
    if corpus is not None:
        return torch.from_numpy(Corpus.load(corpus).hold.astype("int64"))
    return torch.tensor(
        [token for source in held_out(read_sources()) for token in encode_document(tokenizer, source.text)]
    )


def evaluate(
    directory: Path,
    prompts: Sequence[str],
    new_tokens: int,
    device: torch.device,
    corpus: Path | None,
    loss_tokens: int | None = None,
) -> tuple[dict[str, Any], list[Generation]]:
    """All figures of a checkpoint, and the generations they come from. The loss is that of all held-out code, or of its
    first `loss_tokens`."""
    model = load_model(directory, device)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    generations = run_prompts(model, tokenizer, prompts, new_tokens, model.config.eos_token_ids)
    loop_free = [g for g in generations if g.distinct >= LOOP_FREE_SHARE]
    stream = _held_out_stream(tokenizer, corpus).to(device)[:loss_tokens]
    _say(f"{len(generations)} answers; now the loss of {len(stream):,} held-out tokens")
    figures = {
        "holdout_cross_entropy": round(cross_entropy(model, stream), 4) if len(stream) > WINDOW_TOKENS else None,
        "holdout_tokens": len(stream),
        "all": summary(generations),
        "loop_free": summary(loop_free) if loop_free else None,
    }
    return figures, generations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--prompts", type=Path, default=CODE_PROMPTS, help="a prompt file (default: the code prompts)")
    parser.add_argument("--limit", type=int, help="use only the first so many prompts")
    parser.add_argument("--tokens", type=int, default=96, help="tokens generated after each prompt")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--loss-tokens", type=int, help="tokens of held-out code for the loss (default: all; 0: none)")
    parser.add_argument("--corpus", type=Path, help="directory of a prepared corpus (default: the running Python's)")
    parser.add_argument("--texts", type=Path, help="write the generations here, one JSON object per line")
    options = parser.parse_args()
    prompts = read_prompts(options.prompts)[: options.limit]
    figures, generations = evaluate(
        options.directory, prompts, options.tokens, torch.device(options.device), options.corpus, options.loss_tokens
    )
    if options.texts:
        lines = [json.dumps(asdict(generation)) + "\n" for generation in generations]
        options.texts.write_text("".join(lines), encoding="utf-8")
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
