"""Metrics for OpenTelemetry, by its API alone: which SDK sends them where is the program's choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from holdfast._lazy import missing_extra
from holdfast.backends.distribution import Distribution
from holdfast.backends.runtime.metric_families import FAMILIES, Family
from holdfast.backends.runtime.metrics import Sample
from holdfast.store.metric_sources import metrics_source
from holdfast.store.store import AsyncStore, Store

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

OPERATION = "db.client.operation.duration"
"""The stable name of the durations of operations. Other metrics have the prefix `holdfast.`."""

_UNITS = {"seconds": "s", "bytes": "By", "batches": "{batch}"}


def export_to_opentelemetry(
    store: Store | AsyncStore, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """Export the metrics of a store by a provider of meters, or by the global one. Returns a function that ends it.

    Durations of operations have the stable name `db.client.operation.duration`, with the attributes `db.system.name`,
    `db.namespace`, `db.operation.name` and `error.type`. It needs the extra `otel`; without an SDK nothing is sent.
    """
    try:
        from opentelemetry.metrics import Observation, get_meter_provider
    except ImportError as error:
        raise missing_extra("otel", error) from error
    from holdfast import __version__

    meter = (meter_provider or get_meter_provider()).get_meter("holdfast", __version__)
    url, registry = metrics_source(store)
    own = _attributes(urlsplit(url))
    read = _ReadAtMostOnceASecond(registry.read)
    histograms: dict[str, Any] = {}
    for family in FAMILIES.values():
        if family.kind == "histogram" and family.name in _OBSERVED:
            name = OPERATION if family.name == "operation_seconds" else _name(family)
            histograms[family.name] = meter.create_histogram(
                name, _unit(family), family.about, explicit_bucket_boundaries_advisory=family.bounds
            )
    ended = False

    def observe(family: Family, value: float, labels: tuple[str, ...]) -> None:
        instrument = histograms.get(family.name)
        if instrument is not None:
            instrument.record(value, own | _labels(family, labels))

    def observe_all(family: Family) -> Callable[[object], Iterable[Observation]]:
        def callback(options: object) -> Iterable[Observation]:  # noqa: ARG001 - the interface's signature
            for sample in () if ended else read():
                if sample.family == family.name and not isinstance(sample.value, Distribution):
                    yield Observation(sample.value, own | _labels(family, sample.labels))

        return callback

    for family in FAMILIES.values():
        if family.kind == "counter":
            meter.create_observable_counter(_name(family), [observe_all(family)], _unit(family), family.about)
        elif family.kind == "gauge":
            meter.create_observable_gauge(_name(family), [observe_all(family)], _unit(family), family.about)
    remove = registry.add_listener(observe)

    def end() -> None:
        nonlocal ended
        ended = True
        remove()

    return end


class _ReadAtMostOnceASecond:
    """Reads metrics for all callbacks of one export at once."""

    def __init__(self, read: Callable[[], list[Sample]]) -> None:
        self._read = read
        self._at = -1.0
        self._samples: list[Sample] = []

    def __call__(self) -> list[Sample]:
        if time.monotonic() - self._at > 1.0:
            self._samples, self._at = self._read(), time.monotonic()
        return self._samples


_OBSERVED = frozenset({"operation_seconds", "backend_seconds", "backend_bytes"})
"""Distributions whose values are recorded one by one; the others are counted elsewhere."""


def _attributes(url: SplitResult) -> dict[str, str]:
    system = {"postgres": "postgresql", "rediss": "redis"}.get(url.scheme, url.scheme) or "sqlite"
    attributes = {"db.system.name": system, "db.namespace": url.path.lstrip("/") or url.netloc or url.scheme}
    if url.hostname:
        attributes["server.address"] = url.hostname
    return attributes


def _labels(family: Family, labels: tuple[str, ...]) -> dict[str, str]:
    if family.name == "operation_seconds":
        operation, error = labels
        return {"db.operation.name": operation, **({"error.type": error} if error else {})}
    return {f"holdfast.{name}": text for name, text in zip(family.labels, labels, strict=True)}


def _name(family: Family) -> str:
    base, _, last = family.name.removesuffix("_total").rpartition("_")
    return "holdfast." + (base if last in _UNITS and base else f"{base}_{last}".lstrip("_")).replace("_", ".", 1)


def _unit(family: Family) -> str:
    return _UNITS.get(family.name.removesuffix("_total").rpartition("_")[2], "1")
