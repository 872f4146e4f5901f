"""Prompt prefixes that were computed before: a tree of pages, each with what a request needs to go on behind it.

A hybrid model can resume only where the states of its delta-net layers were kept, so a page holds, besides the keys
and values of its tokens, the states after its last token. Pages are copied out of and into a request's own memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend.reference.cache import KvPool, StatePool
from backend.thresholds import PREFIX_PAGE_TOKENS


@dataclass
class Node:
    """One page in the tree. `page` is its place in the store; the root has none (-1)."""

    page: int
    key: tuple[int, ...]
    parent: "Node | None"
    children: "dict[tuple[int, ...], Node]" = field(default_factory=dict)
    used: int = 0  # when a request last passed here, in requests


class PrefixTree:
    """Which prefixes are held, and which page gives way when all are taken: the leaf that was unused for longest."""

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._clock = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.root = Node(-1, (), None)
        self._free = list(range(self._pages))
        self._nodes: list[Node] = []

    @property
    def used_pages(self) -> int:
        """Pages that hold something."""
        return len(self._nodes)

    def match(self, tokens: Sequence[int]) -> list[Node]:
        """The pages that `tokens` begin with, in order, as far as they are held."""
        self._clock += 1
        found = []
        node = self.root
        for key in _pages_of(tokens):
            child = node.children.get(key)
            if child is None:
                break
            child.used = self._clock
            found.append(child)
            node = child
        return found

    def add(self, parent: Node, key: tuple[int, ...]) -> Node | None:
        """The page of `key` behind `parent`, new or old; None when there is no room or `parent` itself has gone."""
        self._clock += 1
        parent.used = self._clock
        if parent is not self.root and parent.page < 0:
            return None
        known = parent.children.get(key)
        if known is None:
            page = self._take(parent)
            if page is None:
                return None
            known = parent.children[key] = Node(page, key, parent)
            self._nodes.append(known)
        known.used = self._clock
        return known

    def _take(self, keep: Node) -> int | None:
        if self._free:
            return self._free.pop()
        leaves = [node for node in self._nodes if not node.children and node is not keep]
        if not leaves:
            return None
        oldest = min(leaves, key=lambda node: node.used)
        self._nodes.remove(oldest)
        if oldest.parent is not None:
            del oldest.parent.children[oldest.key]
        page, oldest.page = oldest.page, -1
        return page


def _pages_of(tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for end in range(PREFIX_PAGE_TOKENS, len(tokens) + 1, PREFIX_PAGE_TOKENS):
        yield tuple(tokens[end - PREFIX_PAGE_TOKENS : end])


class PageStore:
    """The tensors of all pages: `keys`, `values` [pages, layers, kv heads, page tokens, head_dim], `ssm` and `conv` as
    in StatePool with pages for slots, `hidden` [pages, H] the final hidden state of the last token."""

    def __init__(self, pages: int, pools: Sequence[KvPool], states: StatePool, hidden: int) -> None:
        self._pools = pools
        self._states = states
        self._copies = [
            tuple(torch.zeros(pages, *_page_shape(side)) for side in (pool.keys, pool.values)) for pool in pools
        ]
        self.ssm = torch.zeros(states.ssm.shape[0], pages, *states.ssm.shape[2:], dtype=states.ssm.dtype)
        self.conv = torch.zeros(states.conv.shape[0], pages, *states.conv.shape[2:])
        self.hidden = torch.zeros(pages, hidden)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        copies = sum(side.nbytes for copy in self._copies for side in copy)
        return copies + self.ssm.nbytes + self.conv.nbytes + self.hidden.nbytes

    def save(self, page: int, first: int, hidden: Tensor) -> None:
        """Copy keys and values from pool token `first` on, and the last token's hidden state [H]. States come from
        the forward itself."""
        for pool, copy in zip(self._pools, self._copies, strict=True):
            for side, kept in zip((pool.keys, pool.values), copy, strict=True):
                kept[page] = side[:, :, first : first + PREFIX_PAGE_TOKENS]
        self.hidden[page] = hidden

    def record(self, pages: "dict[int, int]", layer: int, done: int, ssm: Tensor, inputs: Tensor) -> None:
        """During a prefill: keep the states of delta-net layer `layer` if a page (by its last token) ends after `done`
        tokens. `ssm` [heads, dk, dv]; `inputs` [K-1 + T, conv_dim] of the convolution."""
        page = pages.get(done)
        if page is not None:
            self.ssm[layer, page] = ssm
            self.conv[layer, page] = inputs[done : done + self.conv.shape[2]]

    def load(self, pages: Sequence[int], start: int, slot: int) -> Tensor:
        """Put pages at pool token `start` on and the last one's states into `slot`; returns its hidden state [1, H]."""
        for pool, copy in zip(self._pools, self._copies, strict=True):
            for side, kept in zip((pool.keys, pool.values), copy, strict=True):
                for n, page in enumerate(pages):
                    first = start + n * PREFIX_PAGE_TOKENS
                    side[:, :, first : first + PREFIX_PAGE_TOKENS] = kept[page]
        self._states.ssm[:, slot] = self.ssm[:, pages[-1]]
        self._states.conv[:, slot] = self.conv[:, pages[-1]]
        return self.hidden[pages[-1] : pages[-1] + 1]


def _page_shape(side: Tensor) -> tuple[int, int, int, int]:
    layers, heads, _, dim = side.shape
    return layers, heads, PREFIX_PAGE_TOKENS, dim


class PrefixCache:
    """Tree and store together, as the worker uses them."""

    def __init__(self, pages: int, pools: Sequence[KvPool], states: StatePool, hidden: int) -> None:
        self.tree = PrefixTree(pages)
        self.store = PageStore(pages, pools, states, hidden)

    @staticmethod
    def nbytes(pages: int, kv_bytes_per_token: int, state_bytes: int, hidden: int) -> int:
        """Bytes of a cache of `pages` pages: keys and values, one sequence's states, one hidden state each."""
        return pages * (PREFIX_PAGE_TOKENS * kv_bytes_per_token + state_bytes + hidden * torch.float32.itemsize)

    def nodes_of(self, chain: list[Node], prompt: Sequence[int], past: int, count: int) -> "dict[int, Node]":
        """Pages for the tokens `past` … `past + count` of `prompt`, by the number of new tokens after which they end.

        `chain` are the prompt's pages so far; it grows. Empty once a page could not be had, or off the page grid.
        """
        result: dict[int, Node] = {}
        if past % PREFIX_PAGE_TOKENS or len(chain) * PREFIX_PAGE_TOKENS != past:
            return result
        for done in range(PREFIX_PAGE_TOKENS, count + 1, PREFIX_PAGE_TOKENS):
            key = tuple(prompt[past + done - PREFIX_PAGE_TOKENS : past + done])
            node = self.tree.add(chain[-1] if chain else self.tree.root, key)
            if node is None:
                break
            chain.append(node)
            result[done] = node
        return result
