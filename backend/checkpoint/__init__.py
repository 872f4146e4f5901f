"""Checkpoint directories in Hugging Face layout: is this one, and what does its config.json say."""

from backend.checkpoint.directory import read_config, require_checkpoint, require_tokenizer, text_config

__all__ = ["read_config", "require_checkpoint", "require_tokenizer", "text_config"]
