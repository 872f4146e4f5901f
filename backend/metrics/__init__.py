"""Metrics: what each one means (`registry`), and how a level's records become its figures (`level_result`)."""

from backend.metrics.acceptance import acceptance, per_position
from backend.metrics.client import client_gauge
from backend.metrics.distribution import distribution
from backend.metrics.latency import itl_ms, request_tpot_ms
from backend.metrics.level import level_result
from backend.metrics.registry import METRICS, MetricSpec, metric

__all__ = [
    "METRICS",
    "MetricSpec",
    "acceptance",
    "client_gauge",
    "distribution",
    "itl_ms",
    "level_result",
    "metric",
    "per_position",
    "request_tpot_ms",
]
