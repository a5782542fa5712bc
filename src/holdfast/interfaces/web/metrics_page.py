"""The data of the page of metrics: what this server measured of the store, as plots, and how it changed since."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from typing import Any, NamedTuple

from holdfast.backends.distribution import Distribution
from holdfast.backends.runtime.metric_families import FAMILIES
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.web.overview import DAYS, DayBar, draw_days, draw_growth
from holdfast.interfaces.web.plots import Histogram, Line, amount, draw_histogram, draw_line, quantile
from holdfast.maintenance.jobs.job import Job
from holdfast.maintenance.monitoring.snapshot import MetricsSnapshot

_POINTS = 240
_APART = 2.0
"""The least seconds between two points of a line."""

_KEPT_SECONDS = 60.0

_EXAMINED = 500
"""How many checkpoints and events are read to count those of each day."""

_LINES = (
    ("storage_bytes", "Size of the store", "bytes"),
    ("operation_seconds", "Operations", "count"),
    ("cache_bytes", "Cache", "bytes"),
)


class MetricsHistory:
    """Some metrics over time, as they were when the page was looked at. They are in memory only."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[float, float]]] = {name: deque(maxlen=_POINTS) for name, _, _ in _LINES}
        self._lock = threading.Lock()
        self._last = 0.0
        self._kept: tuple[float, Any] | None = None

    def add(self, found: MetricsSnapshot) -> None:
        """Add a snapshot, unless there was one a moment ago."""
        now = time.time()
        with self._lock:
            if now - self._last < _APART:
                return
            self._last = now
            for name, points in self._points.items():
                points.append((now, found.value(name)))

    def kept(self, call: Call) -> Any:
        """Return what the store has over time. It is read again after a minute: the page is, every few seconds."""
        known, now = self._kept, time.monotonic()
        if known is None or now - known[0] > _KEPT_SECONDS:
            self._kept = known = (now, (draw_growth(call), list(_by_days(call))))
        return known[1]

    def points(self, name: str) -> list[tuple[float, float]]:
        """Return the points of a metric."""
        with self._lock:
            return list(self._points[name])


class DistributionPlot(NamedTuple):
    """A distribution: its labels, what it counts, and its bars."""

    label: str
    number: int
    median: str
    p95: str
    worst: str
    plot: Histogram


class FamilySection(NamedTuple):
    """A family of metrics with its plots, or its values."""

    name: str
    about: str
    plots: list[DistributionPlot]
    rows: list[tuple[str, str, int]]
    """Labels, the value as text, and its share of the largest in percent."""


class TimePlot(NamedTuple):
    """A metric over time."""

    title: str
    now: str
    low: str
    high: str
    line: Line | None


class DayPlot(NamedTuple):
    """How many of something there were on each of the last days."""

    title: str
    address: str
    """The page that has more of it."""
    unit: str
    bars: list[DayBar]
    stopped: bool
    """Whether not everything was read."""


class JobPlot(NamedTuple):
    """How long the runs of a job took."""

    name: str
    last: str
    since: datetime
    runs: int
    failed: int
    line: Line | None


def metrics_values(call: Call, history: MetricsHistory) -> dict[str, Any]:
    """Return what the page of metrics shows."""
    found = call.owned.maintenance.metrics()
    history.add(found)
    alerts = [each for each in call.owned.alerts.list() if each.state in ("pending", "firing")]
    (growth, days, complete), daily = history.kept(call)
    sections = [section for name in FAMILIES if (section := _section(found, name)) is not None]
    return {
        "over_time": [_over_time(found, history, *each) for each in _LINES],
        "distributions": [each for each in sections if each.plots],
        "values": [each for each in sections if each.rows],
        "alerts": alerts,
        "growth": growth,
        "days": days,
        "complete": complete,
        "daily": daily,
        "jobs": [plot for job in call.owned.jobs.list() if (plot := _runs(job)) is not None],
        "grafana": call.service.options.grafana,
    }


def _by_days(call: Call) -> Iterator[DayPlot]:
    """Yield how many tokens, failures and runs there were by day, of those that there were."""
    since = f"{DAYS - 1}d"
    usage = call.owned.usage(since=since, scan_limit=_EXAMINED)
    tokens = {date.fromisoformat(each.key): each.input + each.output for each in usage.sums}
    failures = call.owned.timeline.query(errors=True, since=since, limit=_EXAMINED, scan_limit=_EXAMINED)
    runs = call.owned.runs.list(limit=_EXAMINED)
    failed, submitted = Counter(each.time.date() for each in failures), Counter(each.created.date() for each in runs)
    for title, address, unit, numbers, stopped in (
        ("Tokens", f"/usage?since={since}", "token", tokens, usage.stopped),
        ("Failures", "/timeline?errors=true", "failure", failed, failures.next is not None),
        ("Runs", "/runs", "run", submitted, runs.next is not None),
    ):
        if numbers:
            yield DayPlot(title, address, unit, draw_days(numbers), stopped)


def _runs(job: Job) -> JobPlot | None:
    """Return how long the runs of a job took, as the store has them; None if there are none."""
    ended = sorted((each for each in job.runs if each.ended is not None), key=lambda each: each.started_ns)
    if not ended:
        return None
    took = [((each.started_ns / 1e9), (each.ended_ns - each.started_ns) / 1e9) for each in ended]
    line = draw_line(took) if len(took) > 1 else None
    failed = sum(each.outcome not in ("ok", "findings") for each in ended)
    return JobPlot(job.name, amount(took[-1][1], "seconds"), ended[0].started, len(ended), failed, line)


def _over_time(found: MetricsSnapshot, history: MetricsHistory, name: str, title: str, unit: str) -> TimePlot:
    line = draw_line(history.points(name))
    low, high = ("", "") if line is None else (amount(line.low, unit), amount(line.high, unit))
    return TimePlot(title, amount(found.value(name), unit), low, high, line)


def _section(found: MetricsSnapshot, name: str) -> FamilySection | None:
    family = FAMILIES[name]
    unit = "seconds" if "seconds" in name and "timestamp" not in name else "bytes" if "bytes" in name else "count"
    plots: list[DistributionPlot] = []
    numbers: list[tuple[str, float]] = []
    for sample in found.samples:
        if sample.family != name:
            continue
        label = _label(dict(zip(family.labels, sample.labels, strict=True)))
        value = sample.value
        if isinstance(value, Distribution):
            if value.count:
                plots.append(_plot(label, value, unit))
        else:
            numbers.append((label, float(value)))
    if not plots and not any(value for _, value in numbers):
        return None
    plots.sort(key=lambda each: -each.number)
    most = max((value for _, value in numbers), default=0) or 1.0
    rows = [
        (label, _when(value) if "timestamp" in name else amount(value, unit), max(0, round(100 * value / most)))
        for label, value in numbers
    ]
    return FamilySection(name, family.about, plots, rows)


def _plot(label: str, found: Distribution, unit: str) -> DistributionPlot:
    half, most = (amount(quantile(found, part), unit) for part in (0.5, 0.95))
    return DistributionPlot(label, found.count, half, most, amount(found.worst, unit), draw_histogram(found, unit))


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def _label(labels: Mapping[str, str]) -> str:
    return " ".join(f"{value}" if name != "error" else f"error {value}" for name, value in labels.items() if value)
