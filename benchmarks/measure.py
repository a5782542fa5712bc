"""Timing side by side: on a noisy machine only figures taken in turns, in one run, can be compared."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import NamedTuple

Job = Callable[[], object]


class Figure(NamedTuple):
    """One measured figure. `floor`: it must not fall below; `ceiling`: it must not rise above."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    ceiling: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        above = self.floor is None or self.value >= self.floor
        return above and (self.ceiling is None or self.value <= self.ceiling)


def in_turns(jobs: dict[str, Job], rounds: int = 10, repeats: int = 4) -> dict[str, float]:
    """The best time of each job in milliseconds; the jobs take turns, a few repeats each."""
    best = dict.fromkeys(jobs, float("inf"))
    for job in jobs.values():
        job()  # first calls learn classes and fill caches
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, job in jobs.items():
                for _ in range(repeats):
                    start = time.perf_counter()
                    job()
                    best[name] = min(best[name], (time.perf_counter() - start) * 1000)
    finally:
        gc.enable()
    return best


def percentiles(jobs: dict[str, Job], rounds: int) -> dict[str, list[float]]:
    """All times of each job in microseconds, sorted; the jobs take turns, one call each."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    gc.collect()
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name].append((time.perf_counter() - start) * 1e6)
    return {name: sorted(taken) for name, taken in times.items()}
