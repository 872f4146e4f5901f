"""Load tests: a closed loop against one server, in a process of its own, with one raw record per request."""

from backend.load.job import LoadJob
from backend.load.recover import SpooledRun, read_spool
from backend.load.target import LoadTarget

__all__ = ["LoadJob", "LoadTarget", "SpooledRun", "read_spool"]
