"""What a checkpoint says of its quantisation, held against what its tensors are. No torch here."""

from pathlib import Path
from typing import Any

from backend.errors import InputError
from backend.files import read_json_object

QUANT_FILE = "hf_quant_config.json"
_ALGORITHM, _GROUP_SIZE = "NVFP4", 16
# Where each of the two files keeps it: the first is ModelOpt's own, the second what loaders of the hub read.
_SECTIONS = {QUANT_FILE: "quantization", "config.json": "quantization_config"}


def check_quantization(directory: Path, packed: bool) -> None:
    """Raises InputError when the files of `directory` contradict its routed experts, which are `packed` in NVFP4 or
    plain. An engine that trusts these files would fail on such a checkpoint or compute nonsense."""
    sections = {directory / name: _read(directory / name, section) for name, section in _SECTIONS.items()}
    declared = {file: found for file, found in sections.items() if found}
    if packed and not declared:
        raise InputError(
            f"The routed experts in {directory} are stored in NVFP4, but neither {QUANT_FILE} nor quantization_config "
            f"in config.json says so; copy {QUANT_FILE} from where the checkpoint came from."
        )
    for file, found in declared.items():
        algorithm, group = found.get("quant_algo"), found.get("group_size", _GROUP_SIZE)
        if not packed:
            raise InputError(
                f"{file} says that the weights are quantised (quant_algo {algorithm!r}), but the routed experts are "
                "not; leave that out of a BF16 checkpoint, or copy the quantised weights anew."
            )
        if algorithm != _ALGORITHM or group != _GROUP_SIZE:
            raise InputError(
                f"{file} says quant_algo {algorithm!r} with group_size {group!r}; this engine reads {_ALGORITHM!r} "
                f"with {_GROUP_SIZE}, or a BF16 checkpoint without that file: choose one of those."
            )


def _read(file: Path, section: str) -> dict[str, Any]:
    try:
        found = read_json_object(file).get(section)
    except FileNotFoundError:
        return {}
    if found is not None and not isinstance(found, dict):
        raise InputError(f"{file} holds {section} {found!r}, not an object; copy it anew.")
    if found is None and file.name == QUANT_FILE:
        raise InputError(f"{file} has no {section!r}; copy it anew.")
    return found or {}
