"""A configuration as rules see it: what is given, what the engine declares for the rest, and what it will run on."""

from collections.abc import Mapping
from dataclasses import dataclass

from backend.validate.question import Question

STEPS, TOPK, TOKENS = "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens"
ALGORITHM = "--speculative-algorithm"
# Parts of GPU names to the major version of their compute capability (NVIDIA, "CUDA GPU compute capability").
GPU_MAJORS = (
    ("RTX PRO 6000", 12),
    ("RTX 50", 12),
    ("GB10", 12),
    ("B300", 10),
    ("B200", 10),
    ("B100", 10),
    ("H200", 9),
    ("H100", 9),
    ("H20", 9),
    ("GH200", 9),
    ("L40", 8),
    ("A100", 8),
    ("RTX 40", 8),
)


@dataclass(frozen=True)
class Setting:
    """`gpu_major` is None where the GPU is not known."""

    question: Question
    gpu_major: int | None = None

    def value(self, *flags: str) -> str | None:
        """The word given for the first of these flags that is given."""
        return next((v for flag in flags if (v := self.question.value(flag)) is not None), None)

    def given(self, flag: str) -> bool:
        return flag in self.question.given

    def number(self, flag: str) -> int | None:
        """A given whole number; None when it is not given or is none."""
        word = self.value(flag)
        return int(word) if word is not None and word.lstrip("-").isdecimal() else None

    @property
    def speculates(self) -> bool:
        return self.given(ALGORITHM)

    @property
    def eagle(self) -> bool:
        """Whether it drafts with an EAGLE-like worker, as NEXTN does."""
        return (self.value(ALGORITHM) or "").upper() in ("NEXTN", "EAGLE", "EAGLE3")

    @property
    def hybrid(self) -> bool:
        """Whether the model has linear-attention layers."""
        return bool(self.question.inspection.dims.linear_attention_layers)

    @property
    def env(self) -> Mapping[str, str]:
        return self.question.env

    @property
    def nvfp4(self) -> bool:
        return "NVFP4" in (self.question.inspection.quantization.algo or "").upper()


def gpu_major(name: str | None) -> int | None:
    """The major compute capability of a GPU by its name; None for one that is not known."""
    wanted = (name or "").upper().replace("-", " ")
    return next((major for part, major in GPU_MAJORS if part in wanted), None)
