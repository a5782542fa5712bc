"""Metrics of stores for Prometheus: `to_prometheus(store.metrics())`."""

from __future__ import annotations

from holdfast.interfaces.metrics.prometheus import to_prometheus
from holdfast.store import FAMILIES, Distribution, Family, MetricsSnapshot, Sample

__all__ = [
    "FAMILIES",
    "Distribution",
    "Family",
    "MetricsSnapshot",
    "Sample",
    "to_prometheus",
]
