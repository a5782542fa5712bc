"""Timing side by side: on a noisy machine only figures taken in turns, in one run, can be compared."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

Job = Callable[[], object]


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
