"""Judgements on a launch: how long it may be silent, and whether an engine that is ready is any use."""

from backend.clock import monotonic_s
from backend.schema.engine import Failure
from backend.supervisor.engine import Engine
from backend.supervisor.failures import failure
from backend.supervisor.limits import Limits

# Speculation that needs no second model.
_WITHOUT_DRAFT_MODEL = frozenset({"NGRAM"})


def silence(engine: Engine, limits: Limits) -> Failure | None:
    """Raises an alarm when nothing was written for long, and gives a failure when it was too long.

    The first collective of several GPUs is judged more strictly than loading or compiling: it is quick or it hangs.
    Compilers at work are a sign of life.
    """
    compilers = engine.tree.compilers() if engine.tree else []
    if compilers:
        engine.last_output_s = monotonic_s()
        engine.log.clock.detail(f"compiling kernels ({', '.join(compilers)})")
        return None
    quiet_s = monotonic_s() - engine.last_output_s
    phase = engine.log.clock.current or "init"
    collective = engine.log.in_collective_init
    alarm_s = limits.collective_silence_alarm_s if collective else limits.silence_alarm_s
    limit_s = limits.collective_silence_limit_s if collective else limits.silence_limit_s
    if quiet_s >= alarm_s:
        engine.alarm(
            f"silent: nothing was written for {alarm_s:g} s during {phase}; it is given up after {limit_s:g} s"
        )
    if quiet_s < limit_s:
        return None
    if collective:
        return failure(
            "nccl_init_stall", f"the GPUs did not finish setting up their communication within {limit_s:g} s"
        )
    return failure("watchdog_timeout", f"nothing was written for {limit_s:g} s during {phase}")


def readiness_alarms(engine: Engine) -> list[str]:
    """What is wrong with an engine that answers."""
    alarms = [_speculation(engine), _pool(engine)]
    return [alarm for alarm in alarms if alarm is not None]


def _speculation(engine: Engine) -> str | None:
    if not any(word.split("=")[0] == "--speculative-algorithm" for word in engine.argv):
        return None
    algorithm = engine.effective.get("speculative_algorithm")
    if not algorithm:
        return "spec_inactive: speculation was asked for, and the engine runs without it"
    loaded = engine.log.draft_loaded or "mtp_weights" in engine.own_ledger
    if algorithm not in _WITHOUT_DRAFT_MODEL and not loaded:
        return f"spec_inactive: speculation ({algorithm}) was asked for, and no draft model was loaded"
    return None


def _pool(engine: Engine) -> str | None:
    tokens, context = engine.log.max_total_tokens, engine.log.context_len
    if tokens is None or context is None or tokens >= context:
        return None
    return (
        f"kv_pool_small: the KV cache holds {tokens} tokens, less than one context of {context}; longer requests are "
        "refused. Raise --mem-fraction-static or shorten --context-length"
    )
