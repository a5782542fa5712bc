"""Where exporters of metrics read those of a store as they happen."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.backends.runtime.metrics import MetricsRegistry
from holdfast.security.handle import owner_handle
from holdfast.store.store import StoreOperations


class MetricsSource(NamedTuple):
    """The URL of a store, without passwords, and the registry of its metrics in this process."""

    url: str
    registry: MetricsRegistry


def metrics_source(store: StoreOperations) -> MetricsSource:
    """Return the source of the metrics of an open store."""
    context = owner_handle(store).engine.context
    return MetricsSource(context.backend.url, context.metrics)
