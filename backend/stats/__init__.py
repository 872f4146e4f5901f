"""Comparing two runs: ratios with intervals, confounds, configuration differences, and a verdict that may be none."""

from backend.stats.compare import compare_runs

__all__ = ["compare_runs"]
