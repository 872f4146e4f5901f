"""The flags of the reference engine: declared once, read by its parser and by the agent's scan. No torch here.

The names are SGLang's. A flag stands here only if it changes something; its choices are this engine's own.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backend.schema.engine import EnvSwitch, Flag, FlagValue, MtpArchitecture, Scan

ENGINE_VERSION = "reference-0.1.0"
TARGET_ARCHITECTURE = "Qwen3_5MoeForConditionalGeneration"
DRAFT_ARCHITECTURE = "Qwen3_5ForCausalLMMTP"
MAX_DRAFT_STEPS = 5

_ROOT = Path(__file__).resolve().parents[2]
_FILE = Path(__file__).resolve().relative_to(_ROOT).as_posix()
_TYPES = {"int": int, "float": float, "str": str}


@dataclass(frozen=True)
class Declaration:
    """One flag: what the parser and the scan need, and the line of this file that declares it."""

    flag: str
    type: Literal["int", "float", "str", "bool"]
    help: str
    default: FlagValue
    choices: tuple[str, ...] | None
    aliases: tuple[str, ...]
    required: bool
    line: int

    @property
    def field(self) -> str:
        """The name under which `/server_info` reports the value."""
        return self.flag.removeprefix("--").replace("-", "_")


def _flag(
    flag: str,
    type_: Literal["int", "float", "str", "bool"],
    help_: str,
    default: FlagValue = None,
    *,
    choices: tuple[str, ...] | None = None,
    aliases: tuple[str, ...] = (),
    required: bool = False,
) -> Declaration:
    line = sys._getframe(1).f_lineno
    return Declaration(flag, type_, help_, default, choices, aliases, required, line)


_MOE_RUNNERS = ("auto", "loop", "grouped")

FLAGS: tuple[Declaration, ...] = (
    _flag("--model-path", "str", "Checkpoint directory (Hugging Face layout).", aliases=("--model",), required=True),
    _flag("--tokenizer-path", "str", "Directory of tokenizer.json. Default: the model path."),
    _flag("--host", "str", "Address to bind.", "127.0.0.1"),
    _flag("--port", "int", "Port to bind.", 30000),
    _flag("--served-model-name", "str", "Name that the API reports. Default: the model path."),
    _flag("--api-key", "str", "Clients must send it as a bearer token."),
    _flag("--random-seed", "int", "Seed of sampling. Default: a random one."),
    _flag(
        "--dtype",
        "str",
        "Type that weights are held in; auto is float32. Sums and activations are float32 either way.",
        "auto",
        choices=("auto", "float32", "bfloat16"),
    ),
    _flag("--context-length", "int", "Longest request in tokens. Default: the checkpoint's max_position_embeddings."),
    _flag("--mem-fraction-static", "float", "Share of available host memory for weights and pools.", 0.5),
    _flag("--max-running-requests", "int", "Requests decoded together; the rest wait.", 16),
    _flag("--max-total-tokens", "int", "Upper limit of the KV pool in tokens."),
    _flag("--chunked-prefill-size", "int", "Most prompt tokens in one forward; -1 for no limit.", 512),
    _flag("--disable-radix-cache", "bool", "Compute every prompt anew instead of keeping prefixes.", False),
    _flag("--stream-interval", "int", "Tokens between two streamed chunks of a request.", 1),
    _flag("--incremental-streaming-output", "bool", "Stream text and ids that are new instead of all so far.", False),
    _flag("--enable-metrics", "bool", "Serve /metrics.", False),
    _flag("--decode-log-interval", "int", "Decode steps between two log lines.", 40),
    _flag("--log-level", "str", "Log level.", "info", choices=("debug", "info", "warning", "error")),
    _flag("--skip-server-warmup", "bool", "Do not run a request before reporting ready.", False),
    _flag("--watchdog-timeout", "float", "Seconds that one scheduler step may take before the engine exits.", 300.0),
    _flag(
        "--moe-runner-backend",
        "str",
        "loop: one selected expert after the other. grouped: one batched product for few tokens, tokens sorted by "
        "expert for many. auto: grouped for several tokens and expanded experts, else loop.",
        "auto",
        choices=_MOE_RUNNERS,
    ),
    _flag(
        "--fp4-gemm-backend",
        "str",
        "Routed experts of an NVFP4 checkpoint. dequant_at_use: packed in memory, unpacked whenever a token chose "
        "them. dequant_at_load: expanded once, faster and larger. auto: dequant_at_use.",
        "auto",
        choices=("auto", "dequant_at_load", "dequant_at_use"),
    ),
    _flag("--mamba-ssm-dtype", "str", "Type of the delta-net states.", "float32", choices=("float32", "bfloat16")),
    _flag(
        "--speculative-algorithm",
        "str",
        "MTP speculative decoding with the checkpoint's own MTP layer; NEXTN is another name of EAGLE.",
        choices=("EAGLE", "NEXTN"),
    ),
    _flag("--speculative-draft-model-path", "str", "Directory of the mtp.* tensors. Default: the model path."),
    _flag(
        "--speculative-num-steps",
        "int",
        "Tokens drafted per verification. Default: 3.",
        choices=tuple(str(n) for n in range(1, MAX_DRAFT_STEPS + 1)),
    ),
    _flag("--speculative-eagle-topk", "int", "Branches per draft step; a chain is all there is.", choices=("1",)),
    _flag("--speculative-num-draft-tokens", "int", "Tokens per verification; always steps + 1."),
    _flag(
        "--speculative-moe-runner-backend",
        "str",
        "The MTP layer's MoE runner. Default: that of --moe-runner-backend.",
        choices=_MOE_RUNNERS,
    ),
)

THREADS_VARIABLE = "OMP_NUM_THREADS"
_ENV_LINE = sys._getframe().f_lineno - 1


def parser() -> argparse.ArgumentParser:
    """The command line's parser, built from FLAGS. A bad flag ends the process with status 2, as argparse does."""
    result = argparse.ArgumentParser(
        prog="python -m backend.reference",
        description="Slipstream's reference engine: Qwen3.5-MoE with MTP in torch on CPU, speaking SGLang's HTTP API.",
        allow_abbrev=False,
    )
    for item in FLAGS:
        if item.type == "bool":
            result.add_argument(item.flag, *item.aliases, action="store_true", help=item.help)
            continue
        kind = _TYPES[item.type]
        result.add_argument(
            item.flag,
            *item.aliases,
            dest=item.field,
            type=kind,
            default=item.default,
            choices=[kind(choice) for choice in item.choices] if item.choices else None,
            required=item.required,
            help=item.help,
        )
    return result


def scan() -> Scan:
    """The declarations as the agent, the form and the CLI read them."""
    return Scan(
        version=ENGINE_VERSION,
        style="reference",
        root=str(_ROOT),
        flags=[
            Flag(
                flag=item.flag,
                field=item.field,
                aliases=list(item.aliases),
                type=item.type,
                default=item.default,
                choices=list(item.choices) if item.choices else None,
                help=item.help,
                file=_FILE,
                line=item.line,
            )
            for item in FLAGS
        ],
        env=[
            EnvSwitch(
                name=THREADS_VARIABLE,
                type="int",
                default=1,
                help="Threads that torch computes with.",
                file=_FILE,
                line=_ENV_LINE,
            )
        ],
        algorithms=["EAGLE", "NEXTN"],
        mtp_architectures={TARGET_ARCHITECTURE: MtpArchitecture(draft=DRAFT_ARCHITECTURE)},
    )
