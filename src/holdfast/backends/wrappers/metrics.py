"""A store that tells what it does, and how long it takes: `metrics:?store=sqlite:///agents.db`."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.backends.interface import Backend, Batch, Query, Row, WordMatch, WordMatches
from holdfast.backends.wrappers.composite_urls import compose, open_parts, parts_of
from holdfast.backends.wrappers.counting import CountingBackend
from holdfast.errors import HoldfastError

BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Seconds: how many calls took no longer than each of these is counted."""


class MetricsBackend(CountingBackend):
    """Counts as `CountingBackend` does, and errors by kind, and times; all of it is in `status`.

    The names in `status`: `reads`, `queries`, `applies`, `refused`, `rows_read` and so on;
    `read_errors_TransientError`; `apply_seconds_sum`, and `apply_seconds_le_0.01` for the calls that took no more than
    0.01 s, errors among them.
    """

    schemes = ("metrics",)
    takes_tenant = True

    def __init__(self, inner: Backend) -> None:
        self._errors: Counter[str] = Counter()
        self._times = {"read": _Times(), "match": _Times(), "apply": _Times()}
        super().__init__(inner)

    @classmethod
    async def open(cls, url: str, *, tenant: str | None = None, **options: Any) -> MetricsBackend:
        """Open a store, and count what is done with it."""
        (store,) = await open_parts(parts_of(url, "metrics", (), options)["store"], tenant=tenant)
        return cls(store)

    @property
    def url(self) -> str:
        return compose("metrics", store=self.inner.url)

    def reset(self) -> None:
        super().reset()
        with self._lock:
            self._errors = Counter()
            self._times = {"read": _Times(), "match": _Times(), "apply": _Times()}

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        began = time.perf_counter()
        try:
            found = await super().read(queries)
        except HoldfastError as error:
            self._note("read", began, error)
            raise
        self._note("read", began)
        return found

    async def matched(self, match: WordMatch) -> WordMatches:
        began = time.perf_counter()
        try:
            found = await super().matched(match)
        except HoldfastError as error:
            self._note("match", began, error)
            raise
        self._note("match", began)
        return found

    async def apply(self, batch: Batch) -> int | None:
        began = time.perf_counter()
        try:
            refused = await super().apply(batch)
        except HoldfastError as error:
            self._note("apply", began, error)
            raise
        self._note("apply", began)
        return refused

    async def status(self) -> dict[str, int | float | str]:
        found = await self.inner.status()
        with self._lock:
            found |= {"reads": self.reads, "queries": self.queries, "matches": self.matches}
            found |= {"applies": self.applies, "refused": self.refused}
            found |= {
                "rows_read": self.rows_read.total(),
                "bytes_read": self.bytes_read.total(),
                "rows_written": self.rows_written.total(),
                "bytes_written": self.bytes_written.total(),
            }
            found |= self._errors
            for name, times in self._times.items():
                found |= times.told(name)
        return found

    def _note(self, call: str, began: float, error: HoldfastError | None = None) -> None:
        taken = time.perf_counter() - began
        with self._lock:
            self._times[call].add(taken)
            if error is not None:
                self._errors[f"{call}_errors_{type(error).__name__}"] += 1


class _Times:
    """How long calls took."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, taken: float) -> None:
        self._counts[bisect_left(BUCKETS, taken)] += 1
        self._sum += taken

    def told(self, name: str) -> dict[str, int | float | str]:
        found: dict[str, int | float | str] = {f"{name}_seconds_sum": self._sum}
        total = 0
        for bound, count in zip((*(f"{bound:g}" for bound in BUCKETS), "inf"), self._counts, strict=True):
            total += count
            found[f"{name}_seconds_le_{bound}"] = total
        return found
