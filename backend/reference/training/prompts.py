"""`python -m backend.reference.training.prompts FILE`: the load client's `code` prompts, from held-out files."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from backend.reference.training.corpus import Source, Turn, held_out, read_sources, source_turns

PROMPT_TOKENS = (60, 200)
PROMPTS_PER_FILE = 6


def held_out_prompts(sources: Sequence[Source], tokenizer: Tokenizer, seed: int) -> list[dict[str, str]]:
    """Up to four prompts from each held-out file, evenly spread over it: `id`, `text` and `source` (file:line)."""
    prompts: list[dict[str, str]] = []
    for source in held_out(sources):
        fitting = [turn for turn in source_turns(source, seed) if _is_prompt(source, turn, tokenizer)]
        for turn in fitting[:: max(1, len(fitting) // PROMPTS_PER_FILE)][:PROMPTS_PER_FILE]:
            name = f"code-{len(prompts) + 1:03d}"
            prompts.append({"id": name, "text": turn.user, "source": f"Lib/{source.path}:{turn.line}"})
    return prompts


def _is_prompt(source: Source, turn: Turn, tokenizer: Tokenizer) -> bool:
    """Whether the turn has a fitting length and begins with a top-level statement."""
    low, high = PROMPT_TOKENS
    first = source.text.splitlines()[turn.line - 1]
    return low <= len(tokenizer.encode(turn.user).ids) <= high and first[:1].strip() != ""


def write_prompts(file: Path, prompts: Sequence[dict[str, str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts), encoding="utf-8")


def read_prompts(file: Path) -> list[str]:
    """The texts of a prompt file."""
    return [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--checkpoint", type=Path, default=Path("assets/tiny-qwen3.5-moe"), help="for its tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    write_prompts(arguments.file, held_out_prompts(read_sources(), tokenizer, arguments.seed))


if __name__ == "__main__":
    main()
