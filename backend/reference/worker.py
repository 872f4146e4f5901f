"""Runs the model for requests: prompts in, tokens out. It knows caches and sampling, but nothing of queues or HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from backend.reference.attention import Rotary, Span
from backend.reference.cache import Extents, KvPool, StatePool
from backend.reference.config import TextConfig
from backend.reference.memory import TORCH_DTYPES, PoolPlan, drafted_tokens, full_attention_layers
from backend.reference.model import MtpModel, Record, TargetModel
from backend.reference.prefix_cache import Node, PrefixCache
from backend.reference.request import Request
from backend.reference.sampling import forbid_early_end, probabilities
from backend.reference.server_args import ServerArgs
from backend.reference.verify import verify_greedy, verify_sampled
from backend.reference.weights import Checkpoint, MtpWeights, TargetWeights, load_mtp, load_target, nbytes
from backend.thresholds import PREFIX_PAGE_TOKENS


def load_weights(config: TextConfig, args: ServerArgs) -> TargetWeights:
    """The main model's weights. Raises InputError when the checkpoint does not fit."""
    at_use = args.fp4_gemm_backend != "dequant_at_load"
    with Checkpoint(Path(args.model_path), config, TORCH_DTYPES[args.dtype], at_use) as checkpoint:
        return load_target(checkpoint)


def load_mtp_weights(config: TextConfig, args: ServerArgs) -> MtpWeights:
    """The MTP layer's weights, from the draft path if one is given. Raises InputError when they are missing."""
    directory = Path(args.speculative_draft_model_path or args.model_path)
    with Checkpoint(directory, config, TORCH_DTYPES[args.dtype]) as checkpoint:
        return load_mtp(checkpoint)


@dataclass
class _Prompt:
    """What a prompt's next chunk needs of the prefix cache: its pages so far, and after a resumption the final hidden
    state [1, H] of the last token that was not computed."""

    nodes: list[Node]
    boundary: Tensor | None = None


class Worker:
    """Model, caches and random numbers. Requests in `step` sit in slots 0 … len - 1, in that order."""

    def __init__(
        self, config: TextConfig, args: ServerArgs, weights: TargetWeights, mtp: MtpWeights | None, plan: PoolPlan
    ) -> None:
        self.config = config
        self.draft_steps = args.draft_steps
        self.drafted = drafted_tokens(args)
        physical = plan.kv_tokens + plan.kv_slack
        self.extents = Extents(physical)
        self.states = StatePool.allocate(
            config, args.max_running_requests, self.drafted, TORCH_DTYPES[args.mamba_ssm_dtype]
        )
        kv = KvPool.allocate(config, full_attention_layers(config), physical)
        rotary = Rotary(config, plan.context_length + self.drafted)
        self.target = TargetModel(config, weights, kv, self.states, rotary, args.moe_runner_backend)
        self.mtp: MtpModel | None = None
        if mtp is not None and args.speculative_moe_runner_backend is not None:
            draft_kv = KvPool.allocate(config, 1, physical)
            self.mtp = MtpModel(self.target, mtp, draft_kv, args.speculative_moe_runner_backend)
        self.prefixes: PrefixCache | None = None
        if plan.prefix_pages:
            pools = [kv, *([self.mtp.kv] if self.mtp is not None else [])]
            self.prefixes = PrefixCache(plan.prefix_pages, pools, self.states, config.hidden_size)
        self._prompts: dict[str, _Prompt] = {}
        self._seeded: dict[str, torch.Generator] = {}
        self._random = torch.Generator().manual_seed(args.random_seed)

    @property
    def ledger(self) -> dict[str, int]:
        """Bytes of the tensors that are really there, by component. Embedding and head are the target's alone."""
        items = {
            "target_weights": nbytes(self.target.weights),
            "kv_pool": self.target.kv.nbytes,
            "mamba_state": self.states.state_nbytes,
        }
        if self.mtp is not None:
            items |= {
                "mtp_weights": nbytes(self.mtp.weights),
                "draft_kv": self.mtp.kv.nbytes,
                "intermediate_ssm": self.states.intermediate_ssm_nbytes,
                "intermediate_conv": self.states.intermediate_conv_nbytes,
            }
        if self.prefixes is not None:
            items["prefix_cache"] = self.prefixes.store.nbytes
        return items

    def reserve(self, request: Request) -> bool:
        """Give `request` its KV range; False when there is no room now."""
        request.kv_start = self.extents.take(request.reserved_tokens + self.drafted)
        return request.kv_start is not None

    def release(self, request: Request) -> None:
        """Take the KV range back."""
        self._prompts.pop(request.id, None)
        self._seeded.pop(request.id, None)
        if request.kv_start is not None:
            self.extents.give_back(request.kv_start)
            request.kv_start = None

    def move(self, source: int, target: int) -> None:
        """A request changes from slot `source` to slot `target`."""
        self.states.move(source, target)

    def swap(self, one: int, other: int) -> None:
        """Two requests exchange their slots."""
        self.states.swap(one, other)

    @torch.inference_mode()
    def begin(self, request: Request) -> None:
        """Make `request.slot` ready for the first chunk of its prompt, with as much of it as the prefix cache has."""
        self.states.clear(request.slot)
        if self.prefixes is None or request.kv_start is None:
            return
        nodes = self.prefixes.tree.match(request.prompt[:-1])  # the last token's logits are needed
        self._prompts[request.id] = prompt = _Prompt(nodes)
        if nodes:
            pages = [node.page for node in nodes]
            prompt.boundary = self.prefixes.store.load(pages, request.kv_start, request.slot).clone()
            request.past = request.cached = len(pages) * PREFIX_PAGE_TOKENS

    @torch.inference_mode()
    def prefill(self, request: Request, limit: int) -> list[int] | None:
        """At most `limit` more prompt tokens of `request`.

        Returns None while the prompt is not done, then the first output token; an empty list means NaN.
        """
        chunk = request.prompt[request.past : request.past + limit]
        span = _span(request, len(chunk))
        nodes = self._new_pages(request, span)
        hidden = self.target.prefill(torch.tensor(chunk), span, request.slot, self._record(nodes))
        request.past += len(chunk)
        done = request.past == len(request.prompt)
        following = request.prompt[span.past + 1 : request.past + 1]
        tokens: list[int] | None = None
        if done:
            tokens = self._choose(self.target.logits(hidden[-1:]), [request])[0]
            if not tokens:
                return tokens
            following = [*following, tokens[0]]
        if self.mtp is not None:
            last = self._extend_prompt(self.mtp, request, hidden, following, span)
            if done:
                self._draft([request], last)
        for count, node in nodes.items():
            if self.prefixes is not None and node.page >= 0:
                first = span.start + span.past + count - PREFIX_PAGE_TOKENS
                self.prefixes.store.save(node.page, first, hidden[count - 1])
        return tokens

    def _new_pages(self, request: Request, span: Span) -> "dict[int, Node]":
        prompt = self._prompts.get(request.id)
        if self.prefixes is None or prompt is None:
            return {}
        return self.prefixes.nodes_of(prompt.nodes, request.prompt, span.past, span.count)

    def _record(self, nodes: "dict[int, Node]") -> Record | None:
        if self.prefixes is None or not nodes:
            return None
        return partial(self.prefixes.store.record, {count: node.page for count, node in nodes.items()})

    def _extend_prompt(
        self, mtp: MtpModel, request: Request, hidden: Tensor, following: list[int], span: Span
    ) -> Tensor:
        """Draft entries of a prompt chunk. The entry before a resumed prefix's end depends on the token behind it, so
        it is made anew from the hidden state that was kept."""
        prompt = self._prompts.get(request.id)
        if prompt is not None and prompt.boundary is not None:
            hidden = torch.cat([prompt.boundary, hidden])
            following = [request.prompt[span.past], *following]
            span = Span(span.start, span.past - 1, span.count + 1)
            prompt.boundary = None
        return mtp.extend(hidden, torch.tensor(following), [span])

    def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        if self.prefixes is not None:
            self.prefixes.tree.clear()

    @torch.inference_mode()
    def step(self, requests: Sequence[Request]) -> list[list[int]]:
        """The next tokens of each running request: one, or with MTP up to steps + 1. An empty list means NaN."""
        return self._decode(requests) if self.mtp is None else self._verify(self.mtp, requests)

    def _decode(self, requests: Sequence[Request]) -> list[list[int]]:
        last = torch.tensor([request.output[-1] for request in requests])
        hidden = self.target.decode(last, [_span(request, 1) for request in requests])
        for request in requests:
            request.past += 1
        return self._choose(self.target.logits(hidden), requests)

    def _verify(self, mtp: MtpModel, requests: Sequence[Request]) -> list[list[int]]:
        size = self.drafted
        block = [token for request in requests for token in (request.output[-1], *request.drafts)]
        spans = [_span(request, size) for request in requests]
        hidden = self.target.verify(torch.tensor(block), spans)
        results = self._choose(self.target.logits(hidden), requests)
        kept = [max(1, len(tokens)) for tokens in results]
        self.target.accept(kept)
        stand = torch.tensor([n * size + place for n, count in enumerate(kept) for place in range(count)])
        following = torch.tensor([token for tokens in results for token in tokens or [0]])
        spans = [_span(request, count) for request, count in zip(requests, kept, strict=True)]
        last = mtp.extend(hidden.index_select(0, stand), following, spans)
        for request, tokens, count in zip(requests, results, kept, strict=True):
            request.past += count
            if tokens:
                request.count_verification(count - 1)
        self._draft(requests, last)
        return results

    def _draft(self, requests: Sequence[Request], last: Tensor) -> None:
        if self.mtp is None:
            return
        drafts = self.mtp.draft(last, [_span(request, 0) for request in requests], self.draft_steps)
        for request, row in zip(requests, drafts.tolist(), strict=True):
            request.drafts = row

    def _choose(self, logits: Tensor, requests: Sequence[Request]) -> list[list[int]]:
        """Tokens that follow, from logits [len(requests) * T, V], where T - 1 drafts of each request were verified."""
        size = logits.shape[0] // len(requests)
        for n, request in enumerate(requests):
            if request.params.min_new_tokens > len(request.output):
                ends = (*self.config.eos_token_ids, *request.params.stop_token_ids)
                forbid_early_end(logits[n * size : (n + 1) * size], request, ends)
        best = logits.max(-1)
        highest, choices = best.values.tolist(), best.indices.tolist()
        results: list[list[int]] = []
        for n, request in enumerate(requests):
            rows = slice(n * size, (n + 1) * size)
            drafts = request.drafts[: size - 1]
            if any(value != value for value in highest[rows]):  # NaN anywhere in a row makes its maximum NaN
                results.append([])
            elif request.params.greedy:
                results.append(verify_greedy(choices[rows], drafts))
            else:
                results.append(
                    verify_sampled(probabilities(logits[rows], request.params), drafts, self._random_of(request))
                )
        return results

    def _random_of(self, request: Request) -> torch.Generator:
        if request.params.seed is None:
            return self._random
        if request.id not in self._seeded:
            self._seeded[request.id] = torch.Generator().manual_seed(request.params.seed)
        return self._seeded[request.id]


def _span(request: Request, count: int) -> Span:
    if request.kv_start is None:
        raise RuntimeError(f"request {request.id} runs without KV memory")
    return Span(request.kv_start, request.past, count)
