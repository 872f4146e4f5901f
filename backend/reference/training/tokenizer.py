"""Byte-level BPE tokenizer in the layout of the Qwen family: special tokens, chat template, the four files.

Its text splitting is Qwen2's to the letter: transformers rebuilds a `Qwen2Tokenizer` with its own normalizer and
pre-tokenizer around the vocabulary, so any other would give other tokens there (and in engines that use it).
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

# The position in this tuple is the token id.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
)
END_OF_TEXT, IM_START, IM_END, IMAGE_PAD, VIDEO_PAD, VISION_START, VISION_END = range(len(SPECIAL_TOKENS))

# The alternatives of Qwen2's splitting rule, in its order.
WORDS = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",  # letters, with one character that is neither letter nor digit before them
        r"\p{N}",  # digits one by one
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",  # signs
        r"\s*[\r\n]+",  # line ends
        r"\s+(?!\S)",  # white space but for its last character, which goes with the word
        r"\s+",
    )
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for item in message.content -%}"
    "{%- if item.type == 'image' or item.type == 'image_url' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif item.type == 'video' -%}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif item.text is defined -%}{{ item.text }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)


ANSWER_MARK = "<|im_start|>assistant\n"


def render_chat(user: str) -> str:
    """Text of a conversation with one user turn, up to where the assistant begins; what CHAT_TEMPLATE renders."""
    return f"<|im_start|>user\n{user}<|im_end|>\n{ANSWER_MARK}"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE of exactly `vocab_size` entries (fewer if the texts are too short), special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_tokenizer(directory: Path, tokenizer: Tokenizer, max_length: int) -> None:
    """Write tokenizer.json, tokenizer_config.json, vocab.json and merges.txt; `max_length` in tokens."""
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    model = json.loads(tokenizer.to_str())["model"]
    (directory / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), encoding="utf-8")
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(_config(max_length), indent=1), encoding="utf-8")


def _config(max_length: int) -> dict[str, Any]:
    flags = {"special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "processor_class": "Qwen3VLProcessor",
        "eos_token": SPECIAL_TOKENS[IM_END],
        "pad_token": SPECIAL_TOKENS[END_OF_TEXT],
        "bos_token": None,
        "unk_token": None,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:]),
        "added_tokens_decoder": {str(i): {"content": token, **flags} for i, token in enumerate(SPECIAL_TOKENS)},
        "chat_template": CHAT_TEMPLATE,
    }
