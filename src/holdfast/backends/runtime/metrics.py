"""Metrics of what a program does with a store: counters, gauges and distributions.

Every open store has one `MetricsRegistry`, which its backend, hooks, agents and jobs share. `holdfast.metrics` exports
it. `metric_families` lists what is measured. Labels have few values: there are no names of threads or agents.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TypeAlias

import msgspec

from holdfast.backends.distribution import Distribution
from holdfast.backends.runtime.fork_safety import ForkSafeLock, reinit_after_fork
from holdfast.backends.runtime.metric_families import (
    ATTEMPTS,
    BACKEND_BYTES,
    BACKEND_SECONDS,
    FAMILIES,
    OPERATION_SECONDS,
    VALIDATION_FAILURES,
    Family,
)
from holdfast.errors import HoldfastError


class Metrics:
    """Counters and durations of one object by name, for many threads. A parent counts all that its children do."""

    def __init__(self, parent: Metrics | None = None) -> None:
        self._parent = parent
        self._lock = ForkSafeLock()
        self._counters: Counter[str] = Counter()
        self._durations: dict[str, Distribution] = {}

    def add(self, **increments: int) -> None:
        """Add to counters."""
        with self._lock:
            for name, count in increments.items():
                self._counters[name] += count
        if self._parent is not None:
            self._parent.add(**increments)

    def add_duration(self, name: str, seconds: float) -> None:
        with self._lock:
            self._durations.setdefault(name, Distribution()).add(seconds)
        if self._parent is not None:
            self._parent.add_duration(name, seconds)

    def counter(self, name: str) -> int:
        return self._counters[name]

    def read(self) -> tuple[Counter[str], dict[str, Distribution]]:
        """Return a copy of all counters and durations."""
        with self._lock:
            return self._counters.copy(), {name: each.copy() for name, each in self._durations.items()}

    @classmethod
    def sum(cls, several: Iterable[Metrics]) -> Metrics:
        total = cls()
        for metrics in several:
            counters, durations = metrics.read()
            total._counters.update(counters)
            for name, each in durations.items():
                total._durations.setdefault(name, Distribution()).merge(each)
        return total


Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = "float | Distribution"


class Sample(msgspec.Struct, frozen=True):
    """A value of a family, by the values of its labels in their order."""

    family: str
    labels: Labels
    value: Value


Collector: TypeAlias = Callable[[], Iterable[Sample]]
"""Returns current values that something else counts."""

Listener: TypeAlias = Callable[[Family, float, Labels], None]
"""Is told of every observation of a distribution."""


class MetricsRegistry:
    """The metrics of an open store, for many threads, and for signal handlers. Names are those of `FAMILIES`."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, Labels], float] = {}
        self._distributions: dict[tuple[str, Labels], Distribution] = {}
        self._collectors: list[Collector] = []
        self._listeners: tuple[Listener, ...] = ()
        self.reinit_locks()
        self._requests = {
            request: (
                self._distribution(BACKEND_SECONDS, (request,)),
                self._distribution(BACKEND_BYTES, (request,)),
            )
            for request in ("read", "write")
        }
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """Replace the lock in a forked child."""
        # Reentrant: a signal handler may save while this thread counts.
        self._lock = threading.RLock()

    def count(self, family: str, *labels: str, by: float = 1) -> None:
        """Add to a counter."""
        key = family, labels
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + by

    def observe(self, family: str, value: float, *labels: str) -> None:
        """Add a value to a distribution."""
        found = self._distributions.get((family, labels))
        if found is None:
            found = self._distribution(family, labels)
        found.add(value)
        if self._listeners:
            self._report(family, value, labels)

    def observe_request(self, request: str, seconds: float, size: int) -> None:
        """Measure a read or a write of rows. One call for both, since every operation makes some."""
        times, sizes = self._requests[request]
        times.add(seconds)
        sizes.add(size)
        if self._listeners:
            self._report(BACKEND_SECONDS, seconds, (request,))
            self._report(BACKEND_BYTES, size, (request,))

    def _distribution(self, family: str, labels: Labels) -> Distribution:
        with self._lock:
            return self._distributions.setdefault((family, labels), Distribution(FAMILIES[family].bounds))

    def _report(self, family: str, value: float, labels: Labels) -> None:
        for listener in self._listeners:
            listener(FAMILIES[family], value, labels)

    def end_operation(self, operation: str, start: float, error: BaseException | None = None) -> None:
        """Measure an operation of the API that started at a time of `perf_counter`."""
        seconds = perf_counter() - start
        code = "" if error is None else error_code(error)
        self.observe(OPERATION_SECONDS, seconds, operation, code)
        if operation in ATTEMPTS:
            self._count_attempt(*ATTEMPTS[operation], failed=bool(code))
        if code == "schema-mismatch":
            self.count(VALIDATION_FAILURES, "schema")

    @contextmanager
    def attempt(self, family: str, kind: str) -> Iterator[None]:
        """Count an attempt, and whether it succeeds or fails."""
        try:
            yield
        except BaseException:
            self._count_attempt(family, kind, failed=True)
            raise
        self._count_attempt(family, kind, failed=False)

    def _count_attempt(self, family: str, kind: str, *, failed: bool) -> None:
        self.count(family, kind, "attempted")
        self.count(family, kind, "failed" if failed else "succeeded")

    def add_collector(self, collector: Collector) -> None:
        """Add a function that is called whenever the metrics are read."""
        with self._lock:
            self._collectors.append(collector)

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Add a function that is told of every observation. Returns a function that removes it."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def remove() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return remove

    def read(self) -> list[Sample]:
        """Return all current values."""
        with self._lock:
            samples = [Sample(*key, value) for key, value in self._counters.items()]
            samples += [Sample(*key, each.copy()) for key, each in self._distributions.items()]
            collectors = list(self._collectors)
        for collector in collectors:
            samples += collector()
        return samples


def error_code(error: BaseException) -> str:
    """Return what an error is counted as: its code, or `internal` if it is not one of this library."""
    return error.code if isinstance(error, HoldfastError) else "internal"
