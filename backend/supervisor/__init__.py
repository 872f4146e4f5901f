"""Launches engines in process groups of their own, follows their logs, watches every descendant, and ends them."""

from backend.supervisor.diagnose import diagnose_log
from backend.supervisor.limits import Limits
from backend.supervisor.memory import host_memory_used
from backend.supervisor.state import transition
from backend.supervisor.supervisor import Supervisor

__all__ = ["Limits", "Supervisor", "diagnose_log", "host_memory_used", "transition"]
