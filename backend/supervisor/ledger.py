"""Memory by component as an engine's start-up lines state it. Their "GB" is 2^30 bytes."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

from backend.schema.engine import LedgerItem

GIB = 2**30

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_WEIGHTS = re.compile(rf"Load weight end\..*\bmem usage={_NUMBER} ?GB")
_MAMBA = re.compile(rf"Mamba Cache is allocated\..*\bconv_state size: {_NUMBER} ?GB, ssm_state size: {_NUMBER} ?GB")
_MIDDLE_SSM = re.compile(rf"intermediate_ssm_state_cache size: {_NUMBER} ?GB")
_MIDDLE_CONV = re.compile(rf"intermediate_conv_window_cache size: {_NUMBER} ?GB")
_KV_SPLIT = re.compile(rf"KV Cache is allocated\..*\bK size: {_NUMBER} ?GB, V size: {_NUMBER} ?GB")
_KV_JOINT = re.compile(rf"KV [Cc]ache(?: is)? allocated\..*\bKV size: {_NUMBER} ?GB")
_GRAPHS = re.compile(rf"Capture (?P<which>.*?)\b(?:cuda|CUDA) graph end\..*\bmem usage={_NUMBER} ?GB")


@dataclass
class _Rank:
    """What one rank has said. Weights and KV come first for the target, then for the draft model."""

    items: dict[str, LedgerItem] = field(default_factory=dict)
    weights_read: int = 0
    pools_read: int = 0


class LedgerReader:
    """Collects memory figures line by line, per rank."""

    def __init__(self) -> None:
        self._ranks: dict[str, _Rank] = defaultdict(_Rank)

    def feed(self, message: str, rank: str, line: int) -> None:
        """`rank` is the line's tag (`TP0`), empty where the engine has one rank."""
        found = self._sizes(message, rank)
        for name, gib in found.items():
            known = self._ranks[rank].items.get(name)
            total = round(gib * GIB) + (known.bytes if known else 0)
            first_line = known.line if known else line
            self._ranks[rank].items[name] = LedgerItem(bytes=total, line=first_line, device=rank or "0")

    def items(self) -> dict[str, LedgerItem]:
        """Each component once: of the rank that needs most of it, which is the one that runs out first."""
        largest: dict[str, LedgerItem] = {}
        for rank in self._ranks.values():
            for name, item in rank.items.items():
                if name not in largest or item.bytes > largest[name].bytes:
                    largest[name] = item
        return largest

    def _sizes(self, message: str, rank: str) -> dict[str, float]:
        if match := _WEIGHTS.search(message):
            self._ranks[rank].weights_read += 1
            first = self._ranks[rank].weights_read == 1
            return {"target_weights" if first else "mtp_weights": float(match[1])}
        if match := _GRAPHS.search(message):
            return {"draft_graphs" if "draft" in match["which"] else "target_graphs": float(match[2])}
        if match := _MAMBA.search(message):
            sizes = {"mamba_state": float(match[1]) + float(match[2])}
            if middle := _MIDDLE_SSM.search(message):
                sizes["intermediate_ssm"] = float(middle[1])
            if middle := _MIDDLE_CONV.search(message):
                sizes["intermediate_conv"] = float(middle[1])
            return sizes
        return self._kv_sizes(message, rank)

    def _kv_sizes(self, message: str, rank: str) -> dict[str, float]:
        if match := _KV_SPLIT.search(message):
            size = float(match[1]) + float(match[2])
        elif match := _KV_JOINT.search(message):
            size = float(match[1])
        else:
            return {}
        self._ranks[rank].pools_read += 1
        return {"kv_pool" if self._ranks[rank].pools_read == 1 else "draft_kv": size}
