"""`python -m backend.reference.training --out DIR`: corpus, training and a complete checkpoint directory."""

import argparse
from pathlib import Path

import torch

from backend.reference.config import TextConfig
from backend.reference.export import read_weights
from backend.reference.training.checkpoint import write_checkpoint
from backend.reference.training.corpus import Corpus, build_corpus, read_sources, write_description
from backend.reference.training.trainer import Plan, Trainer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint directory to write")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, default=100_000_000, help="training tokens, all phases together")
    parser.add_argument("--minutes", type=float, default=600.0, help="end by then even if tokens are left")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, help="windows per step")
    parser.add_argument("--length", type=int, help="tokens per window")
    parser.add_argument("--corpus", type=Path, help="directory of the corpus (default: OUT/corpus; built if absent)")
    parser.add_argument("--corpus-only", action="store_true", help="build the corpus and stop")
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument("--resume", type=Path, help="checkpoint directory to take through the phases after the first")
    earlier.add_argument("--drafts-of", type=Path, help="checkpoint directory to take through the last phase alone")
    return parser.parse_args()


def prepared_corpus(directory: Path, config: TextConfig, seed: int) -> Corpus:
    """The corpus in `directory`, built there if it is not yet."""
    if not (directory / "train.npy").exists():
        sources = read_sources()
        corpus = build_corpus(sources, config.vocab_size, seed)
        corpus.save(directory)
        write_description(directory, sources, corpus)
    return Corpus.load(directory)


def main() -> None:
    options, config = arguments(), TextConfig()
    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward pass is not reproducible
    corpus = prepared_corpus(options.corpus or options.out / "corpus", config, options.seed)
    if options.corpus_only:
        return
    on_gpu = options.device == "cuda"
    batch, length = options.batch or (16 if on_gpu else 8), options.length or (1024 if on_gpu else 256)
    plan = Plan(options.tokens, options.minutes, batch, length, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(config, corpus, plan, torch.device(options.device), options.out)
    if options.drafts_of:
        trainer.run_drafts(read_weights(options.drafts_of))
    else:
        trainer.run(read_weights(options.resume) if options.resume else None)
    trainer.save()
    weights, peaks = trainer.model.state_dict(), trainer.input_peaks()
    write_checkpoint(options.out, config, weights, corpus.tokenizer, peaks)


if __name__ == "__main__":
    main()
