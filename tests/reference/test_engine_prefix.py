"""The prefix cache changes how much is computed and nothing that is said."""

import pytest
import torch
from engine_harness import run_all, scheduler

from backend.reference.prefix_cache import PrefixTree
from backend.reference.training.random_checkpoint import write_random_checkpoint

MTP = ("--speculative-algorithm", "NEXTN")
OFF = ("--disable-radix-cache",)
PAGE = 64


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    write_random_checkpoint(path, nvfp4=True)
    return path


def tokens(count, seed):
    return torch.randint(5, 384, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


SHARED = tokens(150, 1)  # two pages and 22 tokens
PROMPTS = [SHARED + tokens(20 + n, 10 + n) for n in range(4)]


@pytest.mark.parametrize("flags", [(), MTP, (*MTP, "--mamba-ssm-dtype", "bfloat16")], ids=["off", "mtp", "bf16"])
def test_text_is_the_same_with_and_without_the_cache(directory, flags):
    plain = scheduler(directory, *flags, *OFF)
    cached = scheduler(directory, *flags)
    params = {"max_new_tokens": 16, "ignore_eos": True}
    expected = [run_all(plain, [prompt], **params)[0] for prompt in PROMPTS]
    found = [run_all(cached, [prompt], **params)[0] for prompt in PROMPTS]
    assert [r.output for r in found] == [r.output for r in expected]
    assert [r.cached for r in found] == [0, 2 * PAGE, 2 * PAGE, 2 * PAGE]
    assert [r.cached for r in expected] == [0] * 4
    # The drafts are those of a drafter that saw the whole prompt, so just as many are accepted.
    assert [r.histogram for r in found] == [r.histogram for r in expected]


def test_the_last_prompt_token_is_always_computed_and_only_new_tokens_are(directory):
    engine = scheduler(directory)
    prompt = tokens(2 * PAGE, 3)
    first = run_all(engine, [prompt], max_new_tokens=4)[0]
    computed = engine.stats.prefill_computed
    again = run_all(engine, [prompt], max_new_tokens=4)[0]
    assert (first.cached, again.cached) == (0, PAGE)  # the second page would leave no token to compute
    assert engine.stats.prefill_computed - computed == PAGE
    assert engine.stats.prefill_cached == PAGE
    assert again.output == first.output


def test_a_flush_empties_it_and_a_flag_disables_it(directory):
    engine = scheduler(directory)
    run_all(engine, [PROMPTS[0]], max_new_tokens=2)
    flushed = engine.flush()
    engine.run_once()
    assert flushed.result(0) is True
    assert run_all(engine, [PROMPTS[0]], max_new_tokens=2)[0].cached == 0
    disabled = scheduler(directory, *OFF)._worker
    assert disabled.prefixes is None
    assert "prefix_cache" not in disabled.ledger


def test_more_prefixes_than_it_holds_push_out_the_oldest_and_text_stays_right(directory):
    engine = scheduler(directory, "--context-length", "256")  # four pages
    plain = scheduler(directory, *OFF)
    prompts = [tokens(140, 50 + n) for n in (0, 1, 2, 3, 3, 0)]  # two pages each
    cached = []
    for prompt in prompts:
        found = run_all(engine, [prompt], max_new_tokens=6, ignore_eos=True)[0]
        assert found.output == run_all(plain, [prompt], max_new_tokens=6, ignore_eos=True)[0].output
        assert engine._worker.prefixes.tree.used_pages <= 4
        cached.append(found.cached)
    # The last but one repeats what was just computed; the first one's pages went to others long ago.
    assert cached == [0, 0, 0, 0, 2 * PAGE, 0]


def test_prompts_that_run_together_share_pages_and_stay_right(directory):
    params = {"max_new_tokens": 12, "ignore_eos": True}
    expected = [run_all(scheduler(directory, *OFF), [p], **params)[0].output for p in PROMPTS]
    engine = scheduler(directory, *MTP, "--chunked-prefill-size", "64")
    assert [r.output for r in run_all(engine, PROMPTS, **params)] == expected
    assert [r.output for r in run_all(engine, PROMPTS, **params)] == expected


def keys(*numbers):
    return [n for number in numbers for n in [number] * PAGE]


def add(tree, *numbers):
    node = tree.root
    for number in numbers:
        node = tree.add(node, tuple(keys(number)))
        if node is None:
            return None
    return node


def test_the_tree_gives_up_the_leaf_that_was_unused_for_longest():
    tree = PrefixTree(3)
    add(tree, 1, 2)
    add(tree, 3)
    assert len(tree.match(keys(1, 2))) == 2  # 3 is now the oldest leaf
    add(tree, 4)
    assert tree.match(keys(3)) == []
    assert len(tree.match(keys(1, 2, 9))) == 2
    assert len(tree.match(keys(1, 7))) == 1
    assert tree.match(keys(2)) == []  # a page stands for its whole prefix


def test_the_tree_never_gives_up_the_page_that_it_extends():
    tree = PrefixTree(1)
    node = add(tree, 1)
    assert tree.add(node, tuple(keys(2))) is None
    assert len(tree.match(keys(1))) == 1
    other = add(tree, 5)
    assert other is not None
    assert node.page == -1
    assert tree.add(node, tuple(keys(2))) is None  # behind a page that has gone nothing can be kept
