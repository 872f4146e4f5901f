"""The engine against transformers' Qwen3.5-MoE on the BF16 copy of the shipped checkpoint, and its tokenizer."""

import json
import statistics
import time
from pathlib import Path

import pytest
import torch
from engine_harness import run_all, scheduler
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer
from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM

from backend.paths import TINY_CHECKPOINT
from backend.reference.attention import Span
from backend.reference.export import export_bf16
from backend.reference.training.tokenizer import render_chat

PROMPTS = Path(__file__).parents[2] / "assets" / "prompts"
NEW_TOKENS = 32


def chats(name):
    rows = [json.loads(line) for line in (PROMPTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    return [render_chat(row["text"]) for row in rows]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(str(TINY_CHECKPOINT / "tokenizer.json"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("oracle") / "bf16"
    export_bf16(TINY_CHECKPOINT, directory)
    return directory


@pytest.fixture(scope="module")
def oracle(copy):
    """transformers' text model in FP32. It must find every tensor it wants, and leave only the MTP layer unread."""
    text = AutoConfig.from_pretrained(copy).text_config
    model, loading = Qwen3_5MoeForCausalLM.from_pretrained(
        copy, config=text, dtype=torch.float32, output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["mismatched_keys"]
    assert all(name.startswith("mtp.") for name in loading["unexpected_keys"])
    return model.eval()


def continued(oracle, prompt):
    """Greedy tokens of transformers, which ends at no token here."""
    generated = oracle.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=oracle.config.vocab_size,  # none
    )
    return generated[0, len(prompt) :].tolist()


def prefix(ours, theirs):
    """How many tokens agree before the first that does not."""
    return next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(theirs))


@torch.inference_mode()
def test_logits_of_the_nvfp4_checkpoint_equal_those_of_its_bf16_copy_in_transformers(oracle, tokenizer):
    target = scheduler(TINY_CHECKPOINT)._worker.target
    for slot, prompt in enumerate(chats("code")[:3]):
        ids = tokenizer.encode(prompt).ids
        ours = target.logits(target.prefill(torch.tensor(ids), Span(512 * slot, 0, len(ids)), slot))
        theirs = oracle(torch.tensor([ids])).logits[0]
        # Logits reach 20 and differ by 2e-5 where only the order of sums differs.
        assert torch.allclose(ours.float(), theirs, atol=2e-3)


@pytest.mark.full
@torch.inference_mode()
def test_greedy_tokens_agree_with_transformers_over_forty_prompts(oracle, tokenizer):
    prompts = [tokenizer.encode(prompt).ids for prompt in chats("code")[:80:2]]
    requests = run_all(scheduler(TINY_CHECKPOINT), prompts, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    agreed = sum(
        prefix(request.output, continued(oracle, prompt)) for request, prompt in zip(requests, prompts, strict=True)
    )
    assert len(prompts) == 40
    print(f"{agreed} of {40 * NEW_TOKENS} tokens agree")
    assert agreed / (40 * NEW_TOKENS) >= 0.95


def test_transformers_cuts_text_into_the_same_tokens(tokenizer, copy):
    theirs = AutoTokenizer.from_pretrained(copy)
    for text in [*chats("code"), *chats("chat"), *chats("hard"), "it's I'LL\t\t x1234  \n\n   y\r\n"]:
        ids = tokenizer.encode(text).ids
        assert theirs(text)["input_ids"] == ids
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_the_chat_template_gives_the_same_tokens_in_transformers(tokenizer, copy):
    messages = [{"role": "user", "content": "def f():\n"}]
    theirs = AutoTokenizer.from_pretrained(copy).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True
    )
    assert theirs["input_ids"] == tokenizer.encode(render_chat("def f():\n")).ids


@pytest.mark.full
def test_decoding_without_mtp_is_no_slower_than_transformers(oracle, tokenizer):
    engine = scheduler(TINY_CHECKPOINT, "--fp4-gemm-backend", "dequant_at_load")
    ratios = []
    for prompt in [tokenizer.encode(chat).ids for chat in chats("code")[:6]]:
        began = time.perf_counter()
        run_all(engine, [prompt], max_new_tokens=NEW_TOKENS, ignore_eos=True)
        between = time.perf_counter()
        continued(oracle, prompt)
        ratios.append((between - began) / (time.perf_counter() - between))
    print(f"seconds of ours over those of transformers: {statistics.median(ratios):.2f}")
    assert statistics.median(ratios) <= 1.0
