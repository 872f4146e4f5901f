"""The engine as the HTTP side sees it: built once, then asked."""

import asyncio
import logging
import os
import secrets
import threading
import time
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from tokenizers import Tokenizer

from backend.clock import monotonic_s
from backend.errors import EngineError, InputError, SlipstreamError, UsageError
from backend.modeltext import load_chat_template, load_tokenizer
from backend.reference import loglines
from backend.reference.config import TextConfig
from backend.reference.config_check import check_config
from backend.reference.flags import DRAFT_ARCHITECTURE, ENGINE_VERSION, TARGET_ARCHITECTURE, THREADS_VARIABLE
from backend.reference.hostmemory import GIB, available_bytes
from backend.reference.limits import RefusedError, check_limits
from backend.reference.memory import PoolPlan, plan_pools
from backend.reference.request import Output, Request, SamplingParams
from backend.reference.scheduler import Scheduler
from backend.reference.server_args import ServerArgs
from backend.reference.shutdown import end_process
from backend.reference.stats import Stats
from backend.reference.tokenizer import TextStream
from backend.reference.weights import nbytes
from backend.reference.worker import Worker, load_mtp_weights, load_weights
from backend.thresholds import TEXT_SHRINK_MAX_RATIO

logger = logging.getLogger("slipstream.reference")

_WARMUP_PROMPT = [10, 11, 12, 13]
_WARMUP_TOKENS = 8
# SGLang's names of what its own `memory_usage` has; the other components keep those of the ledger.
_IN_MEMORY_USAGE = {"target_weights": "weight", "kv_pool": "kvcache"}
_LEAST_TOKENS = len(_WARMUP_PROMPT) + _WARMUP_TOKENS


@dataclass
class _Listener:
    """Where one request's outputs are waited for."""

    request: Request
    outputs: "asyncio.Queue[Output]"


@dataclass(frozen=True)
class Progress:
    """A request after one of its steps: all text and ids so far, what is new since the last, and whether it ended."""

    text: str
    new_text: str
    ids: list[int]
    new_ids: list[int]
    finish_reason: dict[str, Any] | None

    @property
    def failure(self) -> str | None:
        """Why the engine could not go on with it, if that is how it ended; its client's own abort is none."""
        reason = self.finish_reason or {}
        return str(reason["message"]) if "status_code" in reason else None


class Engine:
    """Model, scheduler and tokenizer of one server. Everything but the scheduler's thread runs on the event loop."""

    def __init__(self, args: ServerArgs) -> None:
        """Loads weights and allocates pools. Raises InputError, UsageError, or ConflictError when memory does not
        suffice."""
        torch.set_num_threads(_threads())
        self.args = args
        self.config = read_config(args)
        self.tokenizer: Tokenizer = load_tokenizer(Path(args.tokenizer_path))
        self.chat_template = load_chat_template(Path(args.tokenizer_path))
        _check_vocabulary(self.tokenizer, self.config, args)
        self._longest_token = max(map(len, self.tokenizer.get_vocab()), default=1)
        self.created = int(time.time())
        self.ready = False
        self.worker, self.plan = _build_worker(self.config, args)
        _check_room(args, self.plan)
        self.args = _settle_fp4(args, self.worker.target.weights.fp4)
        self.ledger = self.worker.ledger
        self._scheduler = Scheduler(args, self.worker, self.tokenizer, self.plan.kv_tokens, self._deliver, loglines)
        self._listeners: dict[str, _Listener] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start the scheduler's thread and, unless told not to, run one request. Raises EngineError when that fails."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run_scheduler, name="scheduler", daemon=True).start()
        if not self.args.skip_server_warmup:
            params = SamplingParams(max_new_tokens=_WARMUP_TOKENS, temperature=0, ignore_eos=True)
            try:
                last = await self.finish(self.make_request(_WARMUP_PROMPT, params))
            except RefusedError as error:
                raise EngineError(f"Initialization failed. warmup error: {error}") from error
            if failure := last.failure:
                raise EngineError(f"Initialization failed. warmup error: {failure} Copy the weights anew.")
            await self.flush()  # the warm-up is nobody's measurement
        self.ready = True
        logger.info(loglines.READY)

    def make_request(
        self, prompt: list[int], params: SamplingParams, rid: str | None = None, stream: bool = False
    ) -> Request:
        """Raises RefusedError for what cannot be served."""
        if rid in self._listeners:
            raise RefusedError(f"The rid {rid!r} is in use by a running request. Please send another, or none.")
        check_limits(prompt, params, self.config.vocab_size, self.plan.context_length, self.plan.kv_tokens)
        return Request(rid or secrets.token_hex(16), prompt, params, stream)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt. Raises RefusedError for a text so long that tokenising it would hold up everybody."""
        context = self.plan.context_length
        if len(text) > TEXT_SHRINK_MAX_RATIO * self._longest_token * context:
            raise RefusedError(
                f"The prompt's {len(text)} characters exceed the model's maximum context length of {context} tokens, "
                "however they are split. Please reduce the prompt."
            )
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def room(self, prompt: list[int]) -> int:
        """The longest output that a request with `prompt` can ask for, at least 1."""
        return max(1, min(self.plan.context_length, self.plan.kv_tokens) - len(prompt))

    async def generate(self, request: Request) -> AsyncIterator[Progress]:
        """How the request gets on, step by step; when not streaming, once. Leaving early aborts it."""
        listener = _Listener(request, asyncio.Queue())
        self._listeners[request.id] = listener
        text = TextStream(self.tokenizer, request.params.stop)
        ids: list[int] = []
        sent = ""
        finished = False
        self._scheduler.submit(request)
        try:
            while not finished:
                output = await listener.outputs.get()
                finished = output.finish_reason is not None
                ids.extend(output.token_ids)
                text.push(output.token_ids)
                so_far = text.final(output.finish_reason.get("matched")) if output.finish_reason else text.visible
                yield Progress(so_far, so_far[len(sent) :], ids, output.token_ids, output.finish_reason)
                sent = so_far
        finally:
            del self._listeners[request.id]
            if not finished:
                self.leave(request)

    async def finish(self, request: Request) -> Progress:
        """The request at its end."""
        last: Progress | None = None
        async for progress in self.generate(request):
            last = progress
        if last is None:
            raise RuntimeError(f"request {request.id} ended without a word")
        return last

    def abort(self, prefix: str) -> None:
        """End every request whose id starts with `prefix`."""
        self._scheduler.abort(lambda name: name.startswith(prefix))

    def leave(self, request: Request) -> None:
        """End this request alone: its client has left."""
        self._scheduler.abort(request.id.__eq__)

    @property
    def stats(self) -> Stats:
        """The scheduler's counters, as they are now."""
        return self._scheduler.stats

    async def flush(self) -> bool:
        """Empty the prefix cache and reset the acceptance totals; False while requests run or wait."""
        return await asyncio.wrap_future(self._scheduler.flush())

    def server_info(self) -> dict[str, object]:
        """`/server_info`: effective arguments, pool size, and the scheduler's state."""
        return {
            **self._effective(),
            "max_total_num_tokens": self.plan.kv_tokens,
            "max_req_input_len": min(self.plan.context_length, self.plan.kv_tokens) - 1,
            "internal_states": [self._internal_state()],
            "version": ENGINE_VERSION,
        }

    def _effective(self) -> dict[str, object]:
        return {**self.args.public(), "context_length": self.plan.context_length}

    def _internal_state(self) -> dict[str, object]:
        stats = self.stats
        state: dict[str, object] = {
            **self._effective(),
            "last_gen_throughput": stats.gen_throughput,
            "memory_usage": {
                **{_IN_MEMORY_USAGE.get(name, name): size / GIB for name, size in self.ledger.items()},
                "token_capacity": self.plan.kv_tokens,
                "graph": 0.0,
            },
            "memory_ledger_bytes": self.ledger,
            "effective_max_running_requests_per_dp": self.args.max_running_requests,
        }
        if stats.since_flush.length is not None:
            state["avg_spec_accept_length"] = stats.since_flush.length
        return state

    def _deliver(self, outputs: list[tuple[Request, Output]]) -> None:
        """Called by the scheduler's thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._hand_out, outputs)

    def _hand_out(self, outputs: list[tuple[Request, Output]]) -> None:
        for request, output in outputs:
            listener = self._listeners.get(request.id)
            if listener is not None and listener.request is request:
                listener.outputs.put_nowait(output)

    def _run_scheduler(self) -> None:
        try:
            self._scheduler.run_forever()
        except Exception:  # noqa: BLE001 - the top of a thread: whatever it was, the engine is of no use without it
            scheduler_died()

    async def watch(self) -> None:
        """End the process when one scheduler step takes longer than the watchdog allows."""
        timeout = self.args.watchdog_timeout
        while True:
            await asyncio.sleep(min(1.0, timeout / 4))
            began = self.stats.step_began_s
            if began is not None and monotonic_s() - began > timeout:
                logger.error("Scheduler watchdog timeout (self.watchdog_timeout=%s, self.soft=False)", timeout)
                end_process(1)


def read_config(args: ServerArgs) -> TextConfig:
    """Raises InputError for a path that holds no checkpoint, UsageError for more context than it is made for."""
    if not (Path(args.model_path) / "config.json").is_file():
        raise InputError(
            f"{args.model_path} is not a local folder and is not a valid model identifier: there is no config.json in "
            "it. Name a checkpoint directory with --model-path."
        )
    config = TextConfig.from_dir(args.model_path)
    check_config(config, Path(args.model_path) / "config.json")
    longest = config.max_position_embeddings
    if (args.context_length or 0) > longest:
        raise UsageError(
            f"--context-length {args.context_length} is longer than max_position_embeddings, the {longest} tokens that "
            f"{args.model_path} is made for; give at most that."
        )
    return config


def _check_room(args: ServerArgs, plan: PoolPlan) -> None:
    """Raises UsageError when not even the warm-up's request would fit."""
    room = min(plan.kv_tokens, plan.context_length)
    if room < _LEAST_TOKENS and not args.skip_server_warmup:
        raise UsageError(
            f"A request can have {room} tokens here (--max-total-tokens {plan.kv_tokens}, --context-length "
            f"{plan.context_length}), and the warm-up needs {_LEAST_TOKENS}; raise them to at least that."
        )


def _threads() -> int:
    given = os.environ.get(THREADS_VARIABLE) or "1"
    if not given.isdecimal() or int(given) < 1:
        raise UsageError(f"{THREADS_VARIABLE} is {given!r}, which is no number of threads; set it to 1 or more.")
    return int(given)


def _check_vocabulary(tokenizer: Tokenizer, config: TextConfig, args: ServerArgs) -> None:
    """Token ids beyond the model's would refuse ordinary prompts later. Raises InputError for the checkpoint's own
    tokenizer, UsageError for one that was named beside it."""
    size = tokenizer.get_vocab_size()
    if size > config.vocab_size:
        kind = InputError if args.tokenizer_path == args.model_path else UsageError
        raise kind(
            f"{args.tokenizer_path}/tokenizer.json has {size} tokens and the model in {args.model_path} knows "
            f"{config.vocab_size}; name the tokenizer of this model with --tokenizer-path."
        )


def _settle_fp4(args: ServerArgs, fp4: bool) -> ServerArgs:
    """What --fp4-gemm-backend comes to for this checkpoint."""
    if not fp4:
        if args.fp4_gemm_backend != "auto":
            logger.warning("fp4_gemm_backend has no effect: the checkpoint's experts are not stored in NVFP4.")
        return args
    return replace(args, fp4_gemm_backend="dequant_at_use") if args.fp4_gemm_backend == "auto" else args


def _build_worker(config: TextConfig, args: ServerArgs) -> tuple[Worker, PoolPlan]:
    available = available_bytes()
    loglines.load_begin()
    began = monotonic_s()
    weights = load_weights(config, args)
    size = nbytes(weights)
    loglines.load_end(monotonic_s() - began, TARGET_ARCHITECTURE, args.dtype, size)
    mtp = None
    if args.draft_steps:
        loglines.load_begin()
        began = monotonic_s()
        mtp = load_mtp_weights(config, args)
        loglines.load_end(monotonic_s() - began, DRAFT_ARCHITECTURE, args.dtype, nbytes(mtp))
        size += nbytes(mtp)
    plan, changes = plan_pools(config, args, size, available)
    for line in changes:
        logger.warning(line)
    worker = Worker(config, args, weights, mtp, plan)
    loglines.pools(_pool_bytes(worker), args, plan.kv_tokens, plan.context_length)
    return worker, plan


def _pool_bytes(worker: Worker) -> loglines.PoolBytes:
    states, mtp = worker.states, worker.mtp
    kv = [worker.target.kv, *([mtp.kv] if mtp is not None else [])]
    return loglines.PoolBytes(
        conv=states.conv.nbytes,
        ssm=states.ssm.nbytes,
        intermediate=(states.intermediate_ssm_nbytes, states.intermediate_conv_nbytes) if mtp is not None else None,
        kv=[(pool.keys.nbytes, pool.values.nbytes) for pool in kv],
    )


def cannot_serve(error: SlipstreamError) -> NoReturn:
    """Report a start that failed for a reason of the person who asked for it, in one line, and end the process."""
    logger.error("%s: %s", type(error).__name__, " ".join(str(error).split()))
    end_process(1)


def scheduler_died() -> NoReturn:
    """Report the exception being handled in SGLang's words and end the process."""
    logger.error("Scheduler hit an exception: %s", traceback.format_exc())
    logger.error("Received sigquit from a child process. It usually means the child failed.")
    end_process(1)
