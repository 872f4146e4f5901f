"""What an engine would do with a checkpoint, told from their files before anything is launched."""

from backend.validate.check import check
from backend.validate.trace import trace

__all__ = ["check", "trace"]
