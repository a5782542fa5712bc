"""Stores with a clock that tests set, and kinds of jobs that tests watch."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from holdfast.backends.interface import Backend, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import TABLES, Table
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.jobs import JobContext
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.maintenance.jobs.execution import JobNotDue, RunEnd, run_job
from holdfast.maintenance.jobs.job import Job
from holdfast.maintenance.jobs.jobs import JobTable
from holdfast.maintenance.jobs.types import JobType
from holdfast.store.store import AsyncStore, Store
from tests.engine.lines import store_on

SECOND = 10**9
HOUR = 3600 * SECOND
DAY = 24 * HOUR


class Clock:
    """A clock that stands still until it is set. It begins at noon of a Sunday."""

    def __init__(self) -> None:
        self.now = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()) * SECOND

    def __call__(self) -> int:
        return self.now


class RunningClock(Clock):
    """A clock that goes on by itself, for what waits until a time has passed. It may be set like the other."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.monotonic_ns()

    def __call__(self) -> int:
        return self.now + time.monotonic_ns() - self._started


def timed(clock: Callable[[], int], backend: Backend | None = None) -> Store:
    """A store that goes by a clock."""
    return Store(Engine(EngineContext(backend or MemoryBackend(), clock=clock)), "")


def copied(on: Backend, fill: Callable[[Backend], object], **settings: Any) -> Store:
    """A store with what `fill` saves, whose rows are copied: a sweep that sets up hundreds of stores fills one."""
    run(on.apply([Put(table, row) for table, row in _rows_of(fill)]))
    return store_on(on, **settings)


@cache
def _rows_of(fill: Callable[[Backend], object]) -> list[tuple[Table, Row]]:
    backend = MemoryBackend()
    fill(backend)
    return [(table, row) for table in TABLES for row in run(backend.read([Scan(table, ())]))[0]]


def awaited(store: Store) -> AsyncStore:
    """The same store for asyncio."""
    return AsyncStore(store._engine, store.tenant)


def knows(*kinds: JobType) -> JobTypes:
    """The kinds of this package, and some more."""
    known = JobTypes()
    for kind in kinds:
        known.add(kind)
    return known


class Watched:
    """A kind of job that notes its runs, and does what a test wants."""

    def __init__(self, work: Callable[[JobContext], object] = lambda job: None) -> None:
        self.runs: list[str] = []
        self._work = work

    def kind(self, name: str = "watched") -> JobType:
        """The kind."""

        async def work(job: JobContext) -> object:
            self.runs.append(job.name)
            return self._work(job)

        return JobType(name, "for tests", work, lambda settings: None)


def run_due(book: JobTable) -> list[RunEnd]:
    """Run what is due, once, as a runner does."""
    ended = []
    for job in run(book.due()):
        try:
            ended.append(run(run_job(book, job.name, only_due=True)))
        except JobNotDue:
            continue
    return ended


def at(job: Job) -> str:
    """When a job is due, to the minute."""
    return "" if job.due is None else f"{job.due:%d %H:%M}"
