"""Runners in this process: in a thread, in a task."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Delete, Put, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOBS
from holdfast.backends.wrappers import Wrapper
from holdfast.errors import CorruptError, InvalidError, TransientError, UnavailableError
from holdfast.jobs import JobContext
from holdfast.maintenance.jobs.api import AsyncJobs, Jobs
from holdfast.maintenance.jobs.job import Job, JobRun
from holdfast.maintenance.jobs.runner import AsyncJobRunner, JobRunner
from holdfast.maintenance.jobs.types import JobResult, JobType
from tests.damaged import flipped
from tests.maintenance.kit import HOUR, Clock, Watched, awaited, knows, timed
from tests.support.nightly import mostly_nightly


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(params=mostly_nightly(["memory", "sqlite"], daily=["sqlite"]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as opened:
        yield opened


def test_a_runner_in_a_thread_runs_what_is_due_and_stops(store: holdfast.Store) -> None:
    watched = Watched(lambda job: "well")
    kinds = knows(watched.kind())
    seen: list[tuple[str, str]] = []

    def on_run(job: Job, ended: JobRun) -> None:
        if job.kind == "watched":  # there is another, in every store
            seen.append((job.name, ended.summary))

    with JobRunner(store, kinds, look_every=0.05, on_run=on_run) as runner:
        Jobs(store, kinds).add("a", "watched", schedule="every 1s")
        Jobs(store, kinds).add("later", "watched", schedule="every 1d")
        with pytest.raises(InvalidError, match="running already"):
            runner.start()
        wait_for(lambda: len(watched.runs) >= 2)
    count = len(watched.runs)
    assert set(watched.runs) == {"a"}
    assert seen == [("a", "well")] * count
    # Its thread is gone, and with it whatever could run anything.
    assert not [each for each in threading.enumerate() if each.name == "holdfast-jobs"]
    assert len(watched.runs) == count
    with runner:  # and again
        wait_for(lambda: len(watched.runs) > count)


def test_a_job_in_the_middle_is_stopped_with_its_runner_and_goes_on_with_the_next(store: holdfast.Store) -> None:
    begun = threading.Event()

    def slow(job: JobContext) -> None:
        begun.set()
        while True:
            time.sleep(0.01)
            job.progress(0, None, "")

    kinds = knows(JobType("slow", "", slow))
    jobs = Jobs(store, kinds)
    jobs.add("a", "slow", schedule="every 1s")
    for outcomes in (["stopped"], ["stopped", "stopped"]):
        begun.clear()
        with JobRunner(store, kinds, look_every=0.05):
            assert begun.wait(120)
        assert [each.outcome for each in jobs.get("a").runs] == outcomes


def test_a_runner_is_stopped_by_what_it_calls(store: holdfast.Store) -> None:
    kinds = knows(Watched().kind())
    Jobs(store, kinds).add("a", "watched", schedule="every 1s")
    runners: list[JobRunner] = []

    def stop(job: Job, ended: JobRun) -> None:
        if job.name == "a":
            runners[0].stop()

    runners.append(JobRunner(store, kinds, look_every=0.05, on_run=stop))
    runners[0].work()
    assert len(Jobs(store, kinds).get("a").runs) == 1
    runners[0].start()
    runners[0].stop()


@pytest.mark.nightly
def test_of_two_runners_one_runs_each_time(store: holdfast.Store) -> None:
    watched = Watched(lambda job: time.sleep(0.05))
    kinds = knows(watched.kind())
    jobs = Jobs(store, kinds)
    for number in range(3):
        jobs.add(f"job-{number}", "watched", schedule="every 1s")
    with JobRunner(store, kinds, look_every=0.02), JobRunner(store, kinds, look_every=0.02):
        wait_for(lambda: all(len(jobs.get(f"job-{number}").runs) >= 2 for number in range(3)))
    found = [job for job in jobs.list() if job.kind == "watched"]
    assert sum(len(job.runs) for job in found) == len(watched.runs)
    for job in found:
        starts = sorted(each.started_ns for each in job.runs)
        assert all(later - earlier >= 10**9 for earlier, later in pairwise(starts))


class Flaky(Wrapper):
    """A store that is away for a while."""

    def __init__(self, error: Exception) -> None:
        super().__init__(MemoryBackend())
        self.error = error
        self.failing = 0

    async def read(self, queries: Any) -> list[list[Row]]:
        if self.failing:
            self.failing -= 1
            raise self.error
        asked: list[Query] = list(queries)
        return await super().read(asked)


def test_a_runner_outlives_a_store_that_is_away_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    backend = Flaky(TransientError("away"))
    store, watched = timed(time.time_ns, backend), Watched()
    kinds = knows(watched.kind())
    Jobs(store, kinds).add("a", "watched", schedule="every 1s")
    backend.failing = 3
    with JobRunner(store, kinds, look_every=0.05):
        wait_for(lambda: bool(watched.runs))
    assert "could not be read" in caplog.text


def test_a_runner_ends_with_a_store_that_failed_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    backend = Flaky(UnavailableError("the disk is gone"))
    store = timed(time.time_ns, backend)
    backend.failing = 10**9
    runner = JobRunner(store, look_every=0.05).start()
    wait_for(lambda: "the runner of jobs ended" in caplog.text)
    with pytest.raises(UnavailableError, match="the disk is gone"):
        runner.stop()
    runner.stop()


def test_a_runner_outlives_jobs_that_are_removed_or_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    store = timed(clock)
    jobs = Jobs(store)
    for name in ("gone", "later", "newer", "spoilt", "well"):
        jobs.add(name, "tidy", schedule="every 1h")
    backend = store._engine.context.backend
    (rows,) = run(backend.read([Scan(JOBS, ())]))
    by_name = {str(row.key[2]): row for row in rows}
    later, newer = by_name["later"], by_name["newer"]
    # A schedule, and a form of the record, that only a later release knows.
    run(backend.apply([Put(JOBS, later._replace(columns=(later.columns[0], "fortnightly", *later.columns[2:])))]))
    run(backend.apply([Put(JOBS, newer._replace(body=newer.body[:2] + b"\x7f" + newer.body[3:]))]))
    clock.now += 2 * HOUR
    runner = JobRunner(store)
    due = runner._table.due

    async def and_then() -> list[Job]:
        found = await due()
        spoilt = by_name["spoilt"]
        await backend.apply([Delete(JOBS, by_name["gone"].key), Put(JOBS, spoilt._replace(body=flipped(spoilt.body)))])
        return found

    runner._table.due = and_then  # type: ignore[method-assign]
    run(runner.round())
    assert [run.outcome for run in jobs.get("well").runs] == ["ok"]
    for name in ("later", "newer", "spoilt"):
        assert f"the job {name} is " in caplog.text


def test_what_becomes_of_jobs_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails(job: JobContext) -> None:
        raise CorruptError("damaged")

    def errs(job: JobContext) -> None:
        raise ZeroDivisionError

    clock = Clock()
    store = timed(clock)
    kinds = knows(
        JobType("fails", "", fails),
        JobType("errs", "", errs),
        JobType("finds", "", lambda job: JobResult("two are damaged", ok=False)),
        JobType("well", "", lambda job: "very well"),
    )
    for kind in ("fails", "errs", "finds", "well"):
        Jobs(store, kinds).add(f"it-{kind}", kind, schedule="every 1h")
    clock.now += HOUR
    with caplog.at_level(logging.INFO, logger="holdfast.jobs"):
        run(JobRunner(store, kinds).round())
    said = {each.getMessage(): (each.levelname, bool(each.exc_info)) for each in caplog.records}
    assert said == {
        "job it-errs failed: ZeroDivisionError: ": ("ERROR", True),
        "job it-fails failed: damaged": ("ERROR", False),
        "job it-finds: two are damaged": ("WARNING", False),
        "job it-well: ok very well": ("INFO", False),
        "job credentials: ok no credentials found": ("INFO", False),
    }


def test_the_pause_is_until_the_next_is_due_and_not_for_long(tmp_path: Path) -> None:
    clock = Clock()
    store, kinds = timed(clock), knows(Watched().kind())
    runner = JobRunner(store, kinds, look_every=15.0)
    assert run(runner.round()) == 15.0
    Jobs(store, kinds).add("a", "watched", schedule="every 4s")
    assert run(runner.round()) == 4.0
    Jobs(store, kinds).pause("a")
    assert run(runner.round()) == 15.0


def test_what_a_runner_must_not_be_told() -> None:
    with pytest.raises(InvalidError, match="longer than 0"):
        JobRunner(timed(Clock()), look_every=0)
    with pytest.raises(InvalidError, match="longer than 0"):
        AsyncJobRunner(awaited(timed(Clock())), life=-1)


@pytest.mark.nightly
def test_a_runner_in_a_task(tmp_path: Path) -> None:
    watched = Watched(lambda job: "well")
    kinds = knows(watched.kind())

    async def main() -> None:
        async with holdfast.aopen(f"sqlite:///{tmp_path}/store.db") as store:
            jobs = AsyncJobs(store, kinds)
            await jobs.add("a", "watched", schedule="every 1s")
            async with AsyncJobRunner(store, kinds, look_every=0.05) as runner:
                with pytest.raises(InvalidError, match="running already"):
                    runner.start()
                while len(watched.runs) < 2:
                    await asyncio.sleep(0.02)
            count = len(watched.runs)
            assert len((await jobs.get("a")).runs) == count
            await runner.stop()
            async with runner:
                while len(watched.runs) == count:
                    await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_job_in_a_task_is_stopped_and_the_loop_goes_on() -> None:
    store = timed(time.time_ns)
    begun = threading.Event()

    def slow(job: JobContext) -> None:
        begun.set()
        while True:
            time.sleep(0.01)
            job.progress(0, None, "")

    kinds = knows(JobType("slow", "", slow))
    Jobs(store, kinds).add("a", "slow", schedule="every 1s")

    async def main() -> None:
        async with AsyncJobRunner(awaited(store), kinds, look_every=0.05):
            while not begun.is_set():
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert Jobs(store, kinds).get("a").runs[0].outcome == "stopped"
