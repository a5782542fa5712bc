"""Timing side by side: on a noisy machine only figures taken in turns, in one run, can be compared."""

from __future__ import annotations

import gc
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self, TypeVar

T = TypeVar("T")
Job = Callable[[], object]

_IO = pathlib.Path("/proc/self/io")


class Figure(NamedTuple):
    """One measured figure. `floor`: it must not fall below; `ceiling`: it must not rise above."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    ceiling: float | None = None
    note: str = ""
    goal: float | None = None
    """What it is meant to reach, where the bound still is short of that."""
    missing: bool = False
    """It could not be measured here, for want of a server; the note says why. In CI that is a failure."""

    @property
    def holds(self) -> bool:
        if self.missing:
            return not os.environ.get("CI")
        above = self.floor is None or self.value >= self.floor
        return above and (self.ceiling is None or self.value <= self.ceiling)

    @property
    def reached(self) -> bool:
        """Whether it is where it is meant to be."""
        return self.holds and (
            self.goal is None or (self.value >= self.goal if self.ceiling is None else self.value <= self.goal)
        )


class Row(NamedTuple):
    """What one candidate spends on a call or a turn; nothing is asked of it. None: not applicable, or not known."""

    what: str
    who: str
    wall: float
    """Milliseconds."""
    cpu: float
    """Milliseconds, of all threads of the process."""
    written: float | None = None
    """Bytes."""
    commits: float | None = None
    disk: float | None = None
    """Bytes in all, after closing."""


class Curve(NamedTuple):
    """How something grows: for the plot."""

    plot: str
    who: str
    x: list[float]
    y: list[float]


class Table(NamedTuple):
    """Figures of several stores side by side; nothing is asked of them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


class Result(NamedTuple):
    """What a case found."""

    figures: Sequence[Figure]
    rows: Sequence[Row] = ()
    curves: Sequence[Curve] = ()
    tables: Sequence[Table] = ()


def missing(what: str, why: object) -> Figure:
    """Stands for what cannot be measured on this machine."""
    return Figure(what, float("nan"), "", note=str(why), missing=True)


def turns(who: Iterable[T], rounds: int) -> Iterator[T]:
    """All in turns, some rounds, each round beginning with another: who comes after whom makes a difference."""
    order = [*who]
    for number in range(rounds):
        first = number % len(order)
        yield from (*order[first:], *order[:first])


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


class Cost(NamedTuple):
    """What one call took."""

    wall: float
    """Milliseconds."""
    cpu: float
    """Milliseconds, of all threads of the process."""
    written: int | None
    """Bytes handed to the system by all threads of the process, to logs and files alike; None where no `/proc` says."""


def written() -> int | None:
    """Bytes that this process handed to the system so far."""
    if not _IO.exists():
        return None
    return next(int(line.split()[1]) for line in _IO.read_text().splitlines() if line.startswith("wchar"))


class Meter:
    """Measures what is done in a `with` block."""

    cost: Cost

    def __enter__(self) -> Self:
        self._written = written()
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        now = written()
        self.cost = Cost(wall * 1000, cpu * 1000, None if now is None or self._written is None else now - self._written)


def cost(job: Job) -> Cost:
    """Do a job once."""
    with Meter() as meter:
        job()
    return meter.cost


def costs(jobs: dict[str, Job], rounds: int) -> dict[str, list[Cost]]:
    """What each call of each job took; the jobs take turns, one call each."""
    found: dict[str, list[Cost]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    gc.collect()
    for name in turns(jobs, rounds):
        found[name].append(cost(jobs[name]))
    return found


def typical(taken: Sequence[Cost]) -> Cost:
    """The median of the times; the mean of the bytes, since some calls also do what others left over."""
    sizes = [each.written for each in taken if each.written is not None]
    return Cost(
        statistics.median(each.wall for each in taken),
        statistics.median(each.cpu for each in taken),
        round(statistics.mean(sizes)) if sizes else None,
    )
