"""Load tests: a closed loop against one server, in a process of its own, with one raw record per request."""

from backend.load.connection import parse_address
from backend.load.job import LoadJob
from backend.load.recover import SpooledRun, read_spool
from backend.load.target import LoadTarget

__all__ = ["LoadJob", "LoadTarget", "SpooledRun", "parse_address", "read_spool"]
