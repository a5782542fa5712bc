"""Jobs as they are kept: what is due when, and what a run leaves behind."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.backends.interface import Put, Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOBS
from holdfast.errors import (
    ConfigError,
    ConflictError,
    CorruptError,
    InvalidError,
    NotFoundError,
    TooLargeError,
    TransientError,
)
from holdfast.maintenance.jobs.api import AsyncJobs, Jobs
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.maintenance.jobs.job import KEPT_RUNS, retry_after
from holdfast.maintenance.jobs.jobs import JobTable
from holdfast.maintenance.jobs.types import JobResult, JobType
from tests.maintenance.kit import DAY, HOUR, SECOND, Clock, Watched, at, awaited, knows, run_due, timed


def test_a_job_is_kept_with_what_was_said_of_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url, tenant="acme") as store:
        made = Jobs(store).add("nightly", "prune", schedule="daily at 03:00", settings={"keep_last": 100})
        Jobs(store).add("by hand", "tidy")
    with holdfast.open(url, tenant="acme") as store:
        jobs = Jobs(store)
        assert [job.name for job in jobs.list()] == ["by hand", "nightly"]
        found = jobs.get("nightly")
        assert found == made
        assert (found.kind, found.schedule, found.settings) == ("prune", "daily at 03:00", {"keep_last": 100})
        assert found.last is None
        assert found.due is not None
        assert jobs.get("by hand").due is None
    with holdfast.open(url, tenant="other") as store:
        assert Jobs(store).list() == []


def test_a_job_is_due_at_its_time_and_runs_once_for_all_the_times_that_were_missed(clock: Clock) -> None:
    watched, store = Watched(lambda job: "did it"), timed(clock)
    kinds = knows(watched.kind())
    jobs, book = Jobs(store, kinds), JobTable(store, kinds)
    jobs.add("a", "watched", schedule="daily at 03:00")
    assert jobs.due() == []
    clock.now += 10 * DAY
    assert [job.name for job in jobs.due()] == ["a"]
    (ended,) = run_due(book)
    assert (ended.run.outcome, ended.run.summary) == ("ok", "did it")
    assert watched.runs == ["a"]
    assert run_due(book) == []
    assert at(jobs.get("a")) == "26 03:00"
    clock.now += DAY
    run_due(book)
    assert watched.runs == ["a", "a"]
    assert [each.ok for each in jobs.get("a").runs] == [True, True]


def test_those_that_waited_longest_come_first(clock: Clock) -> None:
    store, kinds = timed(clock), knows(Watched().kind())
    jobs = Jobs(store, kinds)
    for name, hours in (("c", 1), ("a", 3), ("b", 2)):
        jobs.add(name, "watched", schedule=f"every {hours}h")
    clock.now += 5 * HOUR
    assert [job.name for job in jobs.due()] == ["c", "b", "a"]


def test_a_job_that_fails_is_tried_again_after_longer_and_longer_times(clock: Clock) -> None:
    failing = [True]

    def work(job: object) -> str:
        if failing[0]:
            raise TransientError("the server is away", where="db", hint="Wait")
        return "well"

    store, kinds = timed(clock), knows(Watched(work).kind())
    jobs, book = Jobs(store, kinds), JobTable(store, kinds)
    jobs.add("a", "watched", schedule="daily at 03:00")
    clock.now += DAY
    waits = []
    for failures in range(1, 10):
        (ended,) = run_due(book)
        assert (ended.run.outcome, ended.run.code) == ("failed", "transient")
        assert ended.run.error == "the server is away (at db). Wait"
        job = jobs.get("a")
        assert job.failures == failures
        waits.append((job.due_ns - clock.now) // (60 * SECOND))
        clock.now = job.due_ns - 1
        assert run_due(book) == []
        clock.now += 1
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    failing[0] = False
    (ended,) = run_due(book)
    assert ended.run.ok
    assert (jobs.get("a").failures, at(jobs.get("a"))[-5:]) == (0, "03:00")


def test_a_job_that_finds_something_is_not_tried_again_before_its_time(clock: Clock) -> None:
    store, kinds = timed(clock), knows(Watched(lambda job: JobResult("two are damaged", ok=False)).kind())
    jobs, book = Jobs(store, kinds), JobTable(store, kinds)
    jobs.add("a", "watched", schedule="every 6h")
    clock.now += 6 * HOUR
    (ended,) = run_due(book)
    assert (ended.run.outcome, ended.run.summary, ended.run.ok) == ("findings", "two are damaged", False)
    assert (jobs.get("a").failures, jobs.get("a").due_ns) == (1, clock.now + 6 * HOUR)


def test_a_mistake_in_a_job_is_noted_and_raised_by_run(clock: Clock) -> None:
    def work(job: object) -> None:
        raise ZeroDivisionError("by zero")

    store, kinds = timed(clock), knows(Watched(work).kind())
    jobs = Jobs(store, kinds)
    jobs.add("a", "watched", schedule="every 6h")
    with pytest.raises(ZeroDivisionError):
        jobs.run("a")
    last = jobs.get("a").last
    assert last is not None
    assert (last.outcome, last.error, last.code) == ("failed", "ZeroDivisionError: by zero", "internal")
    assert last.ended is not None


def test_a_job_without_a_schedule_that_fails_waits_to_be_told(clock: Clock) -> None:
    def work(job: object) -> None:
        raise InvalidError("no")

    store, kinds = timed(clock), knows(Watched(work).kind())
    jobs = Jobs(store, kinds)
    jobs.add("a", "watched")
    with pytest.raises(InvalidError, match="no"):
        jobs.run("a")
    assert (jobs.get("a").failures, jobs.get("a").due) == (1, None)


def test_a_paused_job_is_not_due_and_goes_on_at_its_next_time(clock: Clock) -> None:
    watched, store = Watched(), timed(clock)
    kinds = knows(watched.kind())
    jobs, book = Jobs(store, kinds), JobTable(store, kinds)
    jobs.add("a", "watched", schedule="daily at 03:00")
    assert jobs.pause("a").paused
    assert jobs.pause("a").due is None
    clock.now += 5 * DAY
    assert run_due(book) == []
    jobs.run("a")  # by hand, it does run
    assert at(jobs.resume("a")) == "21 03:00"
    assert jobs.resume("a") == jobs.get("a")
    assert jobs.due() == []
    jobs.add("b", "watched", schedule="every 1h", paused=True)
    clock.now += 2 * HOUR
    assert jobs.due() == []


def test_running_by_hand_counts_as_the_last_time(clock: Clock) -> None:
    store, kinds = timed(clock), knows(Watched().kind())
    jobs = Jobs(store, kinds)
    jobs.add("a", "watched", schedule="every 6h")
    clock.now += 5 * HOUR
    assert jobs.run("a").ok
    assert jobs.get("a").due_ns == clock.now + 6 * HOUR


def test_a_clock_that_was_ahead_does_not_put_jobs_off_for_ever(clock: Clock) -> None:
    watched, store = Watched(), timed(clock)
    kinds = knows(watched.kind())
    jobs, book = Jobs(store, kinds), JobTable(store, kinds)
    jobs.add("calendar", "watched", schedule="daily at 03:00")
    jobs.add("span", "watched", schedule="every 6h")
    right = clock.now
    clock.now += 400 * DAY
    run_due(book)
    clock.now = right  # and put right again
    assert run_due(book) == []
    assert at(jobs.get("calendar")) == "16 03:00"
    assert jobs.get("span").due_ns == right + 6 * HOUR
    clock.now += DAY
    run_due(book)
    assert sorted(watched.runs) == ["calendar", "calendar", "span", "span"]


def test_a_retry_after_a_failure_is_no_wrong_clock(clock: Clock) -> None:
    def work(job: object) -> None:
        raise TransientError("away")

    store, kinds = timed(clock), knows(Watched(work).kind())
    jobs, book = Jobs(store, kinds), JobTable(store, kinds)
    jobs.add("a", "watched", schedule="every 1s")
    for _ in range(5):
        clock.now = max(clock.now, jobs.get("a").due_ns)
        assert len(run_due(book)) == 1
    due = jobs.get("a").due_ns
    assert due == clock.now + 16 * 60 * SECOND
    clock.now += SECOND
    assert run_due(book) == []
    assert jobs.get("a").due_ns == due


def test_the_last_runs_are_remembered_and_no_more(clock: Clock) -> None:
    store, kinds = timed(clock), knows(Watched().kind())
    jobs = Jobs(store, kinds)
    jobs.add("a", "watched")
    for _ in range(KEPT_RUNS + 5):
        clock.now += SECOND
        jobs.run("a")
    runs = jobs.get("a").runs
    assert len(runs) == KEPT_RUNS
    assert [each.started_ns for each in runs] == [clock.now - n * SECOND for n in range(KEPT_RUNS)]
    assert runs[0].started.isoformat().startswith("2026-11-15T12:00:25")


def test_a_job_is_replaced_only_on_demand_and_keeps_what_is_known_of_its_runs(clock: Clock) -> None:
    store, kinds = timed(clock), knows(Watched().kind())
    jobs = Jobs(store, kinds)
    jobs.add("a", "watched", schedule="every 6h")
    jobs.run("a")
    with pytest.raises(ConflictError, match="a job named 'a' already exists"):
        jobs.add("a", "tidy")
    changed = jobs.add("a", "tidy", schedule="every 1h", replace=True)
    assert (changed.kind, len(changed.runs), changed.due_ns) == ("tidy", 1, clock.now + HOUR)


def test_a_job_is_removed(clock: Clock) -> None:
    jobs = Jobs(timed(clock))
    jobs.add("a", "tidy")
    assert jobs.remove("a")
    assert not jobs.remove("a")
    for act in (jobs.get, jobs.pause, jobs.resume, jobs.run):
        with pytest.raises(NotFoundError, match="there is no job 'a'"):
            act("a")


def test_what_others_change_while_it_runs_stays(clock: Clock) -> None:
    store = timed(clock)
    kinds = JobTypes()
    jobs = Jobs(store, kinds)

    async def pauses(job: Any) -> None:
        jobs.pause("a")

    async def removes(job: Any) -> None:
        jobs.remove("b")

    kinds.add(JobType("pauses", "", pauses))
    kinds.add(JobType("removes", "", removes))
    jobs.add("a", "pauses", schedule="every 1h")
    jobs.add("b", "removes")
    assert jobs.run("a").ok
    assert jobs.get("a").paused
    assert jobs.get("a").runs[0].outcome == "ok"
    assert jobs.run("b").ok
    assert [job.name for job in jobs.list()] == ["a"]


def test_a_damaged_job_does_not_keep_others_from_running_and_can_be_removed(clock: Clock) -> None:
    watched, store = Watched(), timed(clock)
    kinds = knows(watched.kind())
    jobs, book = Jobs(store, kinds), JobTable(store, kinds)
    for name in ("a", "b"):
        jobs.add(name, "watched", schedule="every 1h")
    job = jobs.get("a")
    run(store._engine.context.stored.apply([Put(JOBS, Row(job.key, job.columns, b"HF nonsense"))]))
    clock.now += HOUR
    run_due(book)
    assert watched.runs == ["b"]
    with pytest.raises(CorruptError):
        jobs.list()
    assert jobs.remove("a")
    assert [job.name for job in jobs.list()] == ["b"]


def test_jobs_of_kinds_that_are_not_known_here_are_left_to_others(clock: Clock) -> None:
    store = timed(clock)
    Jobs(store, knows(Watched().kind())).add("a", "watched", schedule="every 1h")
    clock.now += HOUR
    assert Jobs(store).due() == []
    with pytest.raises(InvalidError, match="no kind of jobs 'watched'"):
        Jobs(store).run("a")


WRONG: list[tuple[Any, str, dict[str, Any], str]] = [
    ("", "tidy", {}, "from 1 to 200 bytes"),
    ("x" * 201, "tidy", {}, "from 1 to 200 bytes"),
    (7, "tidy", {}, "must be a string"),
    ("a", "tydi", {}, "no kind of jobs 'tydi'"),
    ("a", "tidy", {"schedule": "often"}, "does not begin with"),
    ("a", "tidy", {"settings": {"x": 1}}, "no setting 'x'"),
    ("a", "compact", {"settings": {"prefix": 1}}, "is of type str, not int"),
    ("a", "project", {"settings": {"again": "yes"}}, "is of type bool, not str"),
    ("a", "prune", {"settings": {}}, "the policy has no rule"),
    ("a", "prune", {"settings": {"keep": 1}}, "no setting 'keep'"),
    ("a", "prune", {"settings": {"keep_last": 0}}, "keep_last must be at least 1"),
    ("a", "prune", {"settings": {"keep_last": 1, "zone": "Mars"}}, "no time zone"),
    ("a", "prune", {"settings": {"keep_last": 1, "threads": "a"}}, "a list of names"),
    ("a", "tidy", {"settings": {"x": object()}}, "plain JSON"),
    ("a", "tidy", {"settings": {"x": math.nan}}, "plain JSON"),
    ("a", "tidy", {"settings": {"x": (1, 2)}}, "plain JSON"),
    ("a", "tidy", {"paused": 1}, "True or False"),
]


def test_wrong_use_is_refused_and_says_why(subtests: pytest.Subtests) -> None:
    for name, kind, more, said in WRONG:
        with subtests.test(kind=kind):
            jobs = Jobs(timed(Clock()))
            with pytest.raises(InvalidError, match=said):
                jobs.add(name, kind, **more)
            assert jobs.list() == []


def test_settings_that_are_too_large_are_refused(clock: Clock) -> None:
    """And not stored, never to be read again."""
    jobs = Jobs(timed(clock))
    with pytest.raises(TooLargeError, match="by a prefix or a query"):
        jobs.add("a", "verify", settings={"threads": ["x" * 1000] * 1000})
    assert jobs.list() == []
    jobs.add("a", "verify", settings={"threads": ["x" * 1000] * 200})
    assert len(jobs.get("a").settings["threads"]) == 200


def test_a_near_name_of_a_kind_is_suggested_and_no_kind_is_added_twice() -> None:
    with pytest.raises(InvalidError) as caught:
        JobTypes().get("prun")
    assert "Did you mean prune?" in str(caught.value)
    with pytest.raises(InvalidError, match="already"):
        JobTypes().add(JobType("prune", "", print))
    assert "prune" in JobTypes()
    assert "nothing" not in JobTypes()


@given(st.integers(1, 10**6))
def test_the_wait_after_failures_grows_and_has_an_end(failures: int) -> None:
    assert 60 * SECOND <= retry_after(failures) <= retry_after(failures + 1) <= HOUR


def test_the_same_under_asyncio(clock: Clock) -> None:
    watched = Watched(lambda job: "well")
    kinds = knows(watched.kind())
    store = awaited(timed(clock))

    async def main() -> None:
        jobs = AsyncJobs(store, kinds)
        await jobs.add("a", "watched", schedule="every 1h")
        assert (await jobs.run("a")).summary == "well"
        assert (await jobs.pause("a")).paused
        assert not (await jobs.resume("a")).paused
        clock.now += HOUR
        assert [job.name for job in await jobs.due()] == ["a"]
        assert [job.name for job in await jobs.list()] == ["a"]
        assert (await jobs.get("a")).runs[0].ok
        assert await jobs.remove("a")

    asyncio.run(main())


class Entry:
    """An entry point of another package."""

    def __init__(self, name: str, found: object) -> None:
        self.name, self.value, self._found = name, f"somewhere:{name}", found

    def load(self) -> object:
        return self._found


class Entries(list[Entry]):
    @property
    def names(self) -> set[str]:
        return {each.name for each in self}


def test_other_packages_plug_their_kinds_in(monkeypatch: pytest.MonkeyPatch) -> None:
    backup = JobType("archive", "copy the store elsewhere", lambda job: "copied")
    plugged = [Entry("archive", backup), Entry("broken", object()), Entry("misnamed", backup)]

    def entry_points(group: str, name: str = "") -> Entries:
        assert group == "holdfast.jobs"
        return Entries(each for each in plugged if not name or each.name == name)

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    assert "archive" in JobTypes().names()
    assert "archive" in JobTypes()
    jobs = Jobs(timed(Clock()))
    jobs.add("a", "archive")
    assert jobs.run("a").summary == "copied"
    for name in ("broken", "misnamed"):
        with pytest.raises(ConfigError, match="is not a job type with the name"):
            JobTypes().get(name)
