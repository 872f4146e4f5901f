"""`python -m backend.reference.export --bf16 DIR [--model DIR]`: a copy of a checkpoint with all weights in BF16.

For engines and hardware without FP4: the routed experts are dequantised and stacked per layer as in the published
BF16 checkpoints, every other file is copied, and the configuration no longer speaks of quantisation.
"""

import argparse
import json
import re
import shutil
import sys
from collections import defaultdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.errors import InputError, SlipstreamError
from backend.files import read_json_object
from backend.paths import TINY_CHECKPOINT
from backend.reference.nvfp4 import dequantize
from backend.reference.quantization import QUANT_FILE as QUANT_FILE

WEIGHTS_FILE = "model.safetensors"
Weights = dict[str, Tensor]

_EXPERT = re.compile(r"(?P<experts>.+\.mlp\.experts)\.(?P<number>\d+)\.(?P<matrix>gate|up|down)_proj\.weight")
_SCALES = (".weight_scale", ".weight_scale_2", ".input_scale")


def read_weights(directory: Path) -> Weights:
    """Tensors of a checkpoint directory under the names of the BF16 layout: NVFP4 ones as FP32, others as stored.

    Raises InputError when there are no weights, they cannot be read, or a quantised one lacks its scales.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise InputError(f"{directory} holds no *.safetensors file; name a checkpoint directory with weights.")
    stored: Weights = {}
    for file in files:
        try:
            stored.update(load_file(file))
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file} cannot be read as safetensors: {error}.") from error
    try:
        return _stack_experts(_dequantised(stored))
    except KeyError as error:
        raise InputError(f"{directory} lacks the tensor {error} that belongs to its NVFP4 weights.") from error


def _dequantised(stored: Weights) -> Weights:
    """Raises KeyError with the name of a missing scale."""
    return {
        name: dequantize(tensor, stored[f"{name}_scale"], stored[f"{name}_scale_2"])
        if tensor.dtype == torch.uint8
        else tensor
        for name, tensor in stored.items()
        if not name.endswith(_SCALES)
    }


def _stack_experts(weights: Weights) -> Weights:
    """Per-expert matrices become `gate_up_proj` [E, 2I, H] and `down_proj` [E, H, I]. Raises KeyError."""
    result: Weights = {}
    counts: dict[str, int] = defaultdict(int)
    for name, tensor in weights.items():
        if match := _EXPERT.fullmatch(name):
            counts[match["experts"]] = max(counts[match["experts"]], int(match["number"]) + 1)
        else:
            result[name] = tensor
    for experts, count in counts.items():
        gate, up, down = (
            torch.stack([weights[f"{experts}.{number}.{matrix}_proj.weight"] for number in range(count)])
            for matrix in ("gate", "up", "down")
        )
        result[f"{experts}.gate_up_proj"], result[f"{experts}.down_proj"] = torch.cat([gate, up], 1), down
    return result


def write_bf16(weights: Weights, file: Path) -> None:
    """Save `weights`, rounded to BF16."""
    rounded = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in weights.items()}
    save_tensors(rounded, file)


def save_tensors(tensors: Weights, file: Path) -> None:
    """A safetensors file that every user may read: engines often run as another one than who exported."""
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)


def export_bf16(model: Path, directory: Path) -> None:
    """Write the BF16 copy of checkpoint `model` to `directory`, which must be absent or empty.

    Raises InputError when `model` is no readable checkpoint or `directory` holds something.
    """
    if not (model / "config.json").exists():
        raise InputError(f"{model} holds no config.json; name a checkpoint directory with --model.")
    if directory.exists() and any(directory.iterdir()):
        raise InputError(f"{directory} is not empty; name a directory for the copy that does not exist yet.")
    config = read_json_object(model / "config.json")
    weights = read_weights(model)
    directory.mkdir(parents=True, exist_ok=True)
    left_out = {QUANT_FILE, "README.md", f"{WEIGHTS_FILE}.index.json"}
    for file in sorted(model.iterdir()):
        if file.is_file() and file.suffix != ".safetensors" and file.name not in left_out:
            shutil.copyfile(file, directory / file.name)
    config.pop("quantization_config", None)
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    write_bf16(weights, directory / WEIGHTS_FILE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m backend.reference.export", description=__doc__)
    parser.add_argument("--bf16", type=Path, required=True, metavar="DIR", help="where to write the copy")
    parser.add_argument("--model", type=Path, default=TINY_CHECKPOINT, metavar="DIR", help="the checkpoint to copy")
    options = parser.parse_args()
    try:
        export_bf16(options.model, options.bf16)
    except SlipstreamError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    size = (options.bf16 / WEIGHTS_FILE).stat().st_size
    sys.stdout.write(f"{options.bf16}: BF16 copy of {options.model}, {size / 2**20:.1f} MiB of weights\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
