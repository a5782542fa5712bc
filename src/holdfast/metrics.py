"""Metrics of stores, for Prometheus and OpenTelemetry: `to_prometheus(store.metrics())`."""

from __future__ import annotations

from holdfast.interfaces.metrics.endpoint import MetricsEndpoint
from holdfast.interfaces.metrics.opentelemetry import export_to_opentelemetry
from holdfast.interfaces.metrics.prometheus import to_prometheus
from holdfast.store import FAMILIES, RULES, Alert, Distribution, Family, MetricsSnapshot, Sample

__all__ = [
    "FAMILIES",
    "RULES",
    "Alert",
    "Distribution",
    "Family",
    "MetricsEndpoint",
    "MetricsSnapshot",
    "Sample",
    "export_to_opentelemetry",
    "to_prometheus",
]
