"""Exporters of metrics: Prometheus, OpenTelemetry, and what belongs to them."""
