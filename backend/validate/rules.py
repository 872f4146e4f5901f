"""What SGLang refuses, changes or warns about at launch, as a table.

A rule applies where its condition holds and its anchor, a piece of the launch code's own words, stands in the installed
source; without the anchor it is unknown there. Conditions and messages are this project's; that a release has a rule is
told by its source alone.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from backend.schema.validate import Severity
from backend.validate.setting import STEPS, TOKENS, TOPK, Setting

Fix = dict[str, str]


@dataclass(frozen=True)
class Rule:
    """`anchor` None: arithmetic or an environment variable, which no source need confirm. `effective` gives the flags'
    values that will run; `silent` rules say nothing where the engine does not have them."""

    id: str
    severity: Severity
    message: str
    flags: tuple[str, ...]
    applies: Callable[[Setting], bool]
    anchor: re.Pattern[str] | None = None
    fix: Callable[[Setting], Fix] | None = None
    effective: Callable[[Setting], dict[str, str]] | None = None
    silent: bool = True


def _more_than_one(setting: Setting) -> bool:
    return setting.eagle and (setting.number(TOPK) or 0) > 1


def _pool(setting: Setting) -> int:
    """Candidates that a tree of this shape holds: topk + (steps - 1) * topk²."""
    steps, topk = setting.number(STEPS) or 0, setting.number(TOPK) or 0
    return topk + max(0, steps - 1) * topk * topk


def _attention(setting: Setting) -> set[str | None]:
    names = ("--attention-backend", "--decode-attention-backend", "--prefill-attention-backend")
    return {setting.value(name) for name in names}


def _plus_one(setting: Setting) -> dict[str, str]:
    return {TOKENS: str((setting.number(STEPS) or 0) + 1)}


def _keep_radix(setting: Setting) -> Fix:
    """The flag that keeps the prefix cache where the engine has it, else the one that gives it up."""
    strategy = setting.question.scan.flag("--mamba-scheduler-strategy")
    if strategy is not None and "extra_buffer" in (strategy.choices or []):
        return {"--mamba-scheduler-strategy": "extra_buffer"}
    return {"--disable-radix-cache": "true"}


def _radix_with_hybrid(setting: Setting) -> bool:
    strategy = setting.value("--mamba-scheduler-strategy", "--mamba-radix-cache-strategy")
    kept = not setting.given("--disable-radix-cache")
    return setting.hybrid and setting.speculates and kept and strategy in (None, "auto", "no_buffer")


RULES = (
    Rule(
        "running_requests_48",
        "override",
        "with speculation and no --max-running-requests the engine takes 48; an arm without speculation does not, so "
        "set it in both",
        ("--max-running-requests",),
        lambda s: s.eagle and not s.given("--max-running-requests"),
        re.compile(r"Max running requests is reset to 48"),
        fix=lambda _: {"--max-running-requests": "48"},
        effective=lambda _: {"--max-running-requests": "48"},
        silent=False,
    ),
    Rule(
        "draft_tokens_steps_plus_one",
        "override",
        "with top-k 1 the engine drafts steps + 1 tokens, whatever is asked for",
        (TOKENS,),
        lambda s: (
            s.eagle
            and s.number(TOPK) == 1
            and s.number(STEPS) is not None
            and s.number(TOKENS) is not None
            and s.number(TOKENS) != (s.number(STEPS) or 0) + 1
        ),
        re.compile(r"speculative_num_draft_tokens is adjusted to speculative_num_steps \+ 1"),
        fix=_plus_one,
        effective=_plus_one,
        silent=False,
    ),
    Rule(
        "steps_missing",
        "error",
        "top-k or draft tokens without steps: the launch asserts that all three are given or none",
        (STEPS, TOPK, TOKENS),
        lambda s: s.eagle and not s.given(STEPS) and (s.given(TOPK) or s.given(TOKENS)),
        re.compile(r"speculative_eagle_topk is None\s+and [\w.]*speculative_num_draft_tokens is None"),
        fix=lambda s: {STEPS: str(max(1, (s.number(TOKENS) or 4) - 1))},
        silent=False,
    ),
    Rule(
        "topk_missing",
        "error",
        "steps without top-k: the launch compares None with a number and ends; give all three",
        (TOPK, TOKENS),
        lambda s: s.eagle and s.given(STEPS) and not s.given(TOPK),
        re.compile(r"speculative_eagle_topk > 1"),
        fix=lambda s: {TOPK: "1", **_plus_one(s)},
        silent=False,
    ),
    Rule(
        "topk_with_trtllm_mha",
        "error",
        "attention backend trtllm_mha drafts with top-k 1 alone",
        (TOPK, "--attention-backend"),
        lambda s: _more_than_one(s) and "trtllm_mha" in _attention(s),
        re.compile(r"trtllm_mha backend only supports topk = 1"),
        fix=lambda s: {TOPK: "1", **_plus_one(s)},
        silent=False,
    ),
    Rule(
        "topk_with_pages",
        "error",
        "top-k above 1 with pages of several tokens runs on few attention backends",
        (TOPK, "--page-size", "--attention-backend"),
        lambda s: (
            _more_than_one(s)
            and (s.number("--page-size") or 1) > 1
            and s.value("--attention-backend") not in (None, "flashinfer", "fa3", "triton")
        ),
        re.compile(r"speculative_eagle_topk > 1 with page_size > 1"),
        fix=lambda _: {"--page-size": "1"},
        silent=False,
    ),
    Rule(
        "tree_too_small",
        "error",
        "the tree of these steps and top-k holds fewer candidates than draft tokens are asked for: it fails at work",
        (STEPS, TOPK, TOKENS),
        lambda s: (
            _more_than_one(s)
            and s.given(STEPS)
            and s.number(TOKENS) is not None
            and (s.number(TOKENS) or 0) - 1 > _pool(s)
        ),
        fix=lambda s: {TOKENS: str(_pool(s) + 1)},
    ),
    Rule(
        "radix_refused",
        "error",
        "a model with linear attention cannot speculate beside the prefix cache under the scheduling strategy "
        "no_buffer, which is this engine's default",
        ("--mamba-scheduler-strategy", "--disable-radix-cache"),
        _radix_with_hybrid,
        re.compile(r"is not compatible with radix cache when using --mamba-scheduler-strategy"),
        fix=_keep_radix,
    ),
    Rule(
        "radix_dropped",
        "override",
        "a model with linear attention loses its prefix cache with speculation, by a warning alone: an arm without "
        "speculation keeps it, so disable it in both",
        ("--disable-radix-cache",),
        _radix_with_hybrid,
        re.compile(r"Disabling radix cache since speculative decoding"),
        fix=lambda _: {"--disable-radix-cache": "true"},
        effective=lambda _: {"--disable-radix-cache": "true"},
    ),
    Rule(
        "extra_buffer_without_radix",
        "error",
        "the scheduling strategy extra_buffer is refused without the prefix cache",
        ("--mamba-scheduler-strategy", "--disable-radix-cache"),
        lambda s: (
            s.hybrid and s.given("--disable-radix-cache") and s.value("--mamba-scheduler-strategy") == "extra_buffer"
        ),
        re.compile(r"mamba extra_buffer is not compatible with --disable-radix-cache"),
        fix=lambda _: {"--mamba-scheduler-strategy": "no_buffer"},
    ),
    Rule(
        "overlap_off",
        "override",
        "speculation switches the overlap schedule off in this engine; SGLANG_ENABLE_SPEC_V2=True keeps it",
        ("--disable-overlap-schedule",),
        lambda s: s.eagle and s.env.get("SGLANG_ENABLE_SPEC_V2", "").lower() not in ("1", "true"),
        re.compile(r"You can set env SGLANG_ENABLE_SPEC_V2=True to enable"),
        effective=lambda _: {"--disable-overlap-schedule": "true"},
    ),
    Rule(
        "spec_v2_removed",
        "warning",
        "SGLANG_ENABLE_SPEC_V2 is not read any more by this engine, which always runs that worker",
        (),
        lambda s: "SGLANG_ENABLE_SPEC_V2" in s.env,
        re.compile(r"SGLANG_ENABLE_SPEC_V2 has been removed"),
    ),
    Rule(
        "fp4_trtllm_on_sm120",
        "error",
        "the FP4 kernels of TensorRT-LLM are made for compute capability 10 and not for 12 (from source; not tried on "
        "that hardware)",
        ("--fp4-gemm-backend", "--moe-runner-backend"),
        lambda s: (
            s.gpu_major == 12
            and s.nvfp4
            and "flashinfer_trtllm" in (s.value("--fp4-gemm-backend"), s.value("--moe-runner-backend"))
        ),
        re.compile(r"is_sm120_supported|sm120"),
        fix=lambda s: {
            flag: "flashinfer_cutlass"
            for flag in ("--fp4-gemm-backend", "--moe-runner-backend")
            if s.value(flag) == "flashinfer_trtllm"
        },
    ),
    Rule(
        "faked_acceptance",
        "error",
        "SGLANG_SIMULATE_ACC_LEN makes the engine pretend an accept length: nothing measured with it is true",
        (),
        lambda s: s.env.get("SGLANG_SIMULATE_ACC_LEN", "-1") not in ("-1", "0", ""),
    ),
)
