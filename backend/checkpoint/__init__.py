"""Checkpoint directories in Hugging Face layout: is this one, what do its files say, does it hold an MTP layer."""

from backend.checkpoint.directory import read_config, require_checkpoint, require_tokenizer, text_config
from backend.checkpoint.inspect import inspect_checkpoint
from backend.checkpoint.shards import Tensors, read_tensors

__all__ = [
    "Tensors",
    "inspect_checkpoint",
    "read_config",
    "read_tensors",
    "require_checkpoint",
    "require_tokenizer",
    "text_config",
]
