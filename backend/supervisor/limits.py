"""Time limits of one supervisor: the project's thresholds, or shorter ones in tests."""

from dataclasses import dataclass

from backend import thresholds as t


@dataclass(frozen=True)
class Limits:
    """All in seconds."""

    starting_poll_s: float = t.STARTING_POLL_S
    ready_poll_s: float = t.READY_POLL_S
    starting_scan_s: float = t.STARTING_SCAN_S
    ready_scan_s: float = t.READY_SCAN_S
    smoke_timeout_s: float = t.SMOKE_TIMEOUT_S
    stop_grace_s: float = t.STOP_GRACE_S
    kill_wait_s: float = t.KILL_WAIT_S
    memory_wait_s: float = t.MEMORY_WAIT_S
    port_wait_s: float = t.PORT_WAIT_S
    silence_alarm_s: float = t.SILENCE_ALARM_S
    silence_limit_s: float = t.SILENCE_LIMIT_S
    collective_silence_alarm_s: float = t.COLLECTIVE_SILENCE_ALARM_S
    collective_silence_limit_s: float = t.COLLECTIVE_SILENCE_LIMIT_S
