"""Counters and timings of what a program does. Hooks and agents record here; interfaces export them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from holdfast.backends.runtime.fork_safety import ForkSafeLock

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the buckets of a timing, in seconds."""


@dataclass(slots=True)
class Timing:
    """How often something took how long."""

    count: int = 0
    seconds: float = 0.0
    """The total."""
    worst: float = 0.0
    bucket_counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.worst = max(self.worst, seconds)
        self.bucket_counts[bisect_left(BOUNDS, seconds)] += 1

    def merge(self, other: Timing) -> None:
        self.count += other.count
        self.seconds += other.seconds
        self.worst = max(self.worst, other.worst)
        self.bucket_counts = [sum(pair) for pair in zip(self.bucket_counts, other.bucket_counts, strict=True)]

    def buckets(self) -> dict[float, int]:
        """Return how often it took at most so many seconds; cumulative, as in Prometheus."""
        buckets, total = {}, 0
        for bound, count in zip((*BOUNDS, float("inf")), self.bucket_counts, strict=True):
            total += count
            buckets[bound] = total
        return buckets


class Metrics:
    """Counters and timings by name, for many threads. A parent counts all that its children do."""

    def __init__(self, parent: Metrics | None = None) -> None:
        self._parent = parent
        self._lock = ForkSafeLock()
        self._counters: Counter[str] = Counter()
        self._timings: dict[str, Timing] = {}

    def add(self, **increments: int) -> None:
        """Add to counters."""
        with self._lock:
            for name, count in increments.items():
                self._counters[name] += count
        if self._parent is not None:
            self._parent.add(**increments)

    def add_duration(self, name: str, seconds: float) -> None:
        with self._lock:
            self._timings.setdefault(name, Timing()).add(seconds)
        if self._parent is not None:
            self._parent.add_duration(name, seconds)

    def counter(self, name: str) -> int:
        return self._counters[name]

    def read(self) -> tuple[Counter[str], dict[str, Timing]]:
        """Return a copy of all counters and timings."""
        with self._lock:
            timings = {name: replace(each, bucket_counts=[*each.bucket_counts]) for name, each in self._timings.items()}
            return self._counters.copy(), timings

    @classmethod
    def sum(cls, several: Iterable[Metrics]) -> Metrics:
        total = cls()
        for metrics in several:
            counters, timings = metrics.read()
            total._counters.update(counters)
            for name, timing in timings.items():
                total._timings.setdefault(name, Timing()).merge(timing)
        return total
