"""Metrics of stores, for Prometheus and OpenTelemetry: `to_prometheus(store.maintenance.metrics())`."""

from __future__ import annotations

from holdfast.interfaces.metrics.endpoint import MetricsEndpoint
from holdfast.interfaces.metrics.opentelemetry import export_to_opentelemetry
from holdfast.interfaces.metrics.prometheus import to_prometheus

__all__ = ["MetricsEndpoint", "export_to_opentelemetry", "to_prometheus"]
