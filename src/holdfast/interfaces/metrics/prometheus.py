"""Metrics as text for Prometheus, version 0.0.4 of the format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.backends.distribution import Distribution
from holdfast.backends.runtime.metric_families import FAMILIES, Family
from holdfast.maintenance.monitoring.snapshot import MetricsSnapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "holdfast_"


def to_prometheus(*snapshots: MetricsSnapshot) -> str:
    """Return the metrics of stores as text for Prometheus: `to_prometheus(store.maintenance.metrics())`.

    Every metric has the label `store`, and `tenant` if the store was opened for one. Counters of a store that is open
    twice are added up.
    """
    families: dict[str, dict[tuple[tuple[str, str], ...], float | Distribution]] = {}
    for snapshot in snapshots:
        own = (("store", snapshot.store), *((("tenant", snapshot.tenant),) if snapshot.tenant else ()))
        for each in snapshot.samples:
            family, value = FAMILIES[each.family], each.value
            key = (*own, *((label, text) for label, text in zip(family.labels, each.labels, strict=True) if text))
            series = families.setdefault(each.family, {})
            series[key] = _join(family, series[key], value) if key in series else value
    lines: list[str] = []
    for name, family in FAMILIES.items():
        if name in families:
            lines += (f"# HELP {PREFIX}{name} {_escape(family.about)}", f"# TYPE {PREFIX}{name} {family.kind}")
            for key, value in families[name].items():
                lines += _series(PREFIX + name, key, value)
    return "\n".join(lines) + "\n"


def _join(family: Family, old: float | Distribution, new: float | Distribution) -> float | Distribution:
    if isinstance(old, Distribution) and isinstance(new, Distribution):
        joined = old.copy()
        joined.merge(new)
        return joined
    assert not isinstance(old, Distribution) and not isinstance(new, Distribution)  # noqa: S101, PT018 - of one family
    return old + new if family.kind == "counter" else max(old, new)


def _series(name: str, labels: tuple[tuple[str, str], ...], value: float | Distribution) -> Iterator[str]:
    if not isinstance(value, Distribution):
        yield f"{name}{_braces(labels)} {value!r}"
        return
    for bound, count in value.buckets().items():
        text = "+Inf" if bound == float("inf") else f"{bound:.10g}"
        yield f"{name}_bucket{_braces((*labels, ('le', text)))} {count}"
    yield f"{name}_sum{_braces(labels)} {value.total!r}"
    yield f"{name}_count{_braces(labels)} {value.count}"


def _braces(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{name}="{_escape(text, quote=True)}"' for name, text in labels) + "}" if labels else ""


def _escape(text: str, *, quote: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    # What is no Unicode text cannot be sent; a name with half a surrogate pair is still told apart.
    escaped = escaped.encode("utf-8", "backslashreplace").decode()
    return escaped.replace('"', '\\"') if quote else escaped


RULES_FILE = Path(__file__).with_name("prometheus_rules.yml")
