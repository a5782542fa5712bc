"""One run of a job: the lease that it is done under, and how it is made to end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.backends.interface import Batch, Delete, Get, Put, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import Pause, run
from holdfast.backends.tables import JOBS, REFS
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, InvalidError, OutcomeUnknownError, TransientError, UnavailableError
from holdfast.jobs import JobContext
from holdfast.maintenance.jobs.api import AsyncJobs, Jobs
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.maintenance.jobs.execution import RunEnd, _start, run_job
from holdfast.maintenance.jobs.jobs import JobTable
from holdfast.maintenance.jobs.types import JobType
from holdfast.store.thread import ThreadOperations
from tests.agents.autosaved import until
from tests.maintenance.kit import HOUR, SECOND, Clock, Watched, awaited, knows, timed

LIFE = 0.6


def steps(count: int, done: list[int]) -> JobType:
    """A job of many steps, each of which saves a checkpoint."""

    async def work(job: JobContext) -> str:
        for number in range(count):
            await ThreadOperations[Any].put(job.store.thread("t"), {"n": number})
            done.append(number)
            job.progress(number + 1, count, "t")
        return "all"

    return JobType("steps", "", work)


def plain_steps(count: int, done: list[int]) -> JobType:
    """The same as a plain function."""

    def work(job: JobContext) -> str:
        for number in range(count):
            job.store.thread("t").put({"n": number})
            done.append(number)
            job.progress(number + 1, count, "t")
        return "all"

    return JobType("steps", "", work)


class Waiting(Wrapper):
    """A store that takes its time, as those do that are not in memory."""

    async def apply(self, batch: Batch) -> int | None:
        await Pause(0.002)
        return await super().apply(batch)


def once(store: Any, kinds: JobTypes, **more: Any) -> RunEnd:
    return run(run_job(JobTable(store, kinds), "a", only_due=False, **more))


def token(store: Any) -> Row | None:
    (rows,) = run(store._engine.context.backend.read([Get(REFS, [("", "", "lease", "job a", "")])]))
    return rows[0] if rows else None


@pytest.mark.parametrize("make", [steps, plain_steps], ids=["coroutine", "plain"])
def test_a_job_ends_between_two_steps_when_it_is_asked_to(make: Callable[[int, list[int]], JobType]) -> None:
    done: list[int] = []
    store, kinds = timed(time.time_ns), knows(make(50, done))
    jobs = Jobs(store, kinds)
    jobs.add("a", "steps", schedule="every 1h")
    due = jobs.get("a").due_ns
    ended = jobs.run("a", stop=lambda: len(done) >= 3)
    assert ended.outcome == "stopped"
    assert done == [0, 1, 2]
    assert store.thread("t").get().state == {"n": 2}
    assert token(store) is None
    assert jobs.get("a").due_ns == due  # it is run again
    assert jobs.get("a").failures == 0


def test_what_a_job_gives_back_at_its_end_is_given_back_when_it_is_stopped() -> None:
    store, line = timed(time.time_ns, Waiting(MemoryBackend())), Line("", "t")
    stop: list[bool] = []

    async def work(job: JobContext) -> None:
        lease = Lease(job.store._engine.context, line, "rewrite")
        await lease.acquire()
        try:
            stop.append(True)
            await ThreadOperations[Any].put(job.store.thread("t"), {"n": 1})
        finally:
            await lease.release()

    kinds = knows(JobType("holds", "", work))
    jobs = Jobs(store, kinds)
    jobs.add("a", "holds")
    assert jobs.run("a", stop=lambda: bool(stop)).outcome == "stopped"
    assert store.threads() == []
    run(Lease(store._engine.context, line, "rewrite").acquire())


def test_a_job_cannot_keep_itself_from_ending_by_catching_errors() -> None:
    tried: list[int] = []
    go_on: list[int] = []

    async def work(job: JobContext) -> None:
        for number in range(100):
            try:
                await ThreadOperations[Any].put(job.store.thread("t"), {"n": number})
            except Exception:
                tried.append(number)
            go_on.append(number)

    store, kinds = timed(time.time_ns, Waiting(MemoryBackend())), knows(JobType("stubborn", "", work))
    jobs = Jobs(store, kinds)
    jobs.add("a", "stubborn")
    assert jobs.run("a", stop=lambda: len(go_on) > 1).outcome == "stopped"
    assert (go_on, tried) == ([0, 1], [])


def test_only_one_runs_a_job_at_a_time() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(job: JobContext) -> str:
        begun.set()
        assert go_on.wait(120)
        return "first"

    store, kinds = timed(time.time_ns), knows(JobType("slow", "", work))
    jobs = Jobs(store, kinds)
    jobs.add("a", "slow")
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(jobs.run("a")))
    thread.start()
    assert begun.wait(120)
    try:
        with pytest.raises(ConflictError, match="another process is busy with the job a") as caught:
            jobs.run("a")
        assert caught.value.code == "under-way"
        assert jobs.get("a").runs[0].outcome == "running"
    finally:
        go_on.set()
        thread.join()
    assert results[0].summary == "first"


def test_a_run_that_takes_longer_than_a_lease_holds_keeps_it() -> None:
    clock, refused = Clock(), list[int]()

    def work(job: JobContext) -> None:  # in one call: nothing is asked of the store by it
        for turn in range(4):
            clock.now += int(0.8 * LIFE * SECOND)
            until(lambda: shown() == clock.now, 60)
            with pytest.raises(ConflictError):
                once(store, kinds, life=LIFE)
            refused.append(turn)

    def shown() -> Any:
        held = token(store)
        assert held is not None
        return held.columns[1]

    store, kinds = timed(clock), knows(JobType("slow", "", work))
    Jobs(store, kinds).add("a", "slow")
    assert once(store, kinds, life=LIFE).run.ok
    assert refused == [0, 1, 2, 3]


@pytest.mark.nightly
@pytest.mark.parametrize("make", [steps, plain_steps], ids=["coroutine", "plain"])
def test_a_job_whose_lease_went_to_another_stops_before_its_next_change(
    make: Callable[[int, list[int]], JobType],
) -> None:
    done: list[int] = []
    store = timed(time.time_ns)
    backend = store._engine.context.backend

    def tell(count: int, total: int | None, what: str) -> None:
        if count == 3:  # another takes it over, and the sign of life is refused
            run(backend.apply([Put(REFS, Row(("", "", "lease", "job a", ""), ("another", time.time_ns())))]))
            time.sleep(2 * LIFE)

    kinds = knows(make(50, done))
    jobs = Jobs(store, kinds)
    jobs.add("a", "steps", schedule="every 1h")
    with pytest.raises(ConflictError) as caught:
        once(store, kinds, life=LIFE, progress=tell)
    assert caught.value.code == "lease-lost"
    assert done == [0, 1, 2]
    left = token(store)
    assert left is not None
    assert left.columns[0] == "another"  # and is still theirs
    assert jobs.get("a").runs[0].outcome == "running"  # which whoever runs it now puts right


def test_a_process_that_slept_looks_before_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    store = timed(time.time_ns)
    backend = store._engine.context.backend
    asleep = [0.0]
    real = time.time
    monkeypatch.setattr("holdfast.maintenance.jobs.execution.time.time", lambda: real() + asleep[0])

    def tell(count: int, total: int | None, what: str) -> None:
        if count == 3:
            run(backend.apply([Put(REFS, Row(("", "", "lease", "job a", ""), ("another", time.time_ns())))]))
            asleep[0] = 3600.0

    kinds = knows(steps(50, done))
    Jobs(store, kinds).add("a", "steps")
    with pytest.raises(ConflictError) as caught:
        once(store, kinds, progress=tell)  # with a lease of a minute: no sign of life was due yet
    assert caught.value.code == "lease-lost"
    assert done == [0, 1, 2]


class Away(Wrapper):
    """A store that does not take signs of life."""

    def __init__(self, error: Exception) -> None:
        super().__init__(MemoryBackend())
        self.error = error
        self.away = False

    async def apply(self, batch: Batch) -> int | None:
        life = any(isinstance(change, Put) and change.space is REFS for change in batch)
        if self.away and life and not any(isinstance(change, Delete) for change in batch):
            raise self.error
        return await super().apply(batch)


@pytest.mark.parametrize("error", [TransientError("away"), UnavailableError("broken")], ids=["transient", "broken"])
def test_a_job_that_cannot_show_life_ends_before_others_take_it_for_dead(error: Exception) -> None:
    done: list[int] = []
    backend = Away(error)
    store, kinds = timed(time.time_ns, backend), knows(steps(10**6, done))

    def tell(count: int, total: int | None, what: str) -> None:
        backend.away = True
        time.sleep(0.01)

    Jobs(store, kinds).add("a", "steps")
    began = time.monotonic()
    with pytest.raises(ConflictError) as caught:
        once(store, kinds, life=LIFE, progress=tell)
    assert caught.value.code == "lease-lost"
    assert time.monotonic() - began < 100 * LIFE


def test_a_sign_of_life_whose_answer_was_lost_is_recognised() -> None:
    ground = timed(time.time_ns)._engine.context
    lease = Lease(ground, Line("", ""), "job a", 0.001)
    run(lease.acquire())
    made = Row(("", "", "lease", "job a", ""), (lease._row.columns[0], time.time_ns() + 5))
    run(ground.backend.apply([Put(REFS, made)]))  # what an earlier sign did, unknown to the holder
    time.sleep(0.01)
    run(lease.renew_if_due())
    assert run(lease.is_valid())


class Unsure(Wrapper):
    """A store that makes every change, and loses the answers to signs of life."""

    lost = 0

    async def apply(self, batch: Batch) -> int | None:
        outcome = await super().apply(batch)
        if threading.current_thread().name == "holdfast-job-life":
            self.lost += 1
            raise OutcomeUnknownError("no answer was received")
        return outcome


def test_a_job_whose_last_sign_of_life_had_no_answer_has_ended_all_the_same() -> None:
    backend = Unsure(MemoryBackend())
    kinds = knows(JobType("slow", "", lambda job: until(lambda: backend.lost, 60)))
    store = timed(time.time_ns, backend)
    Jobs(store, kinds).add("a", "slow")
    assert once(store, kinds, life=LIFE).run.ok
    assert token(store) is None
    assert [each.outcome for each in Jobs(store, kinds).get("a").runs] == ["ok"]


def test_clocks_that_differ_a_little_do_not_make_the_living_dead() -> None:
    clock = Clock()
    store = timed(clock)
    run(Lease(store._engine.context, Line("", ""), "job a").acquire())
    clock.now -= 5 * SECOND  # another machine, whose clock is behind
    with pytest.raises(ConflictError):
        run(Lease(store._engine.context, Line("", ""), "job a").acquire())
    clock.now -= HOUR  # a clock that was set back: nobody could ever have it otherwise
    run(Lease(store._engine.context, Line("", ""), "job a").acquire())


def test_a_run_that_was_killed_is_noted_as_such_by_the_next() -> None:
    clock = Clock()
    watched = Watched()
    store, kinds = timed(clock), knows(watched.kind())
    jobs = Jobs(store, kinds)
    jobs.add("a", "watched", schedule="every 1h")
    clock.now += HOUR

    book = JobTable(store, kinds)
    lease = Lease(store._engine.context, book.line, "job a")
    run(lease.acquire())
    run(_start(book, "a", lease, only_due=True))  # and then nothing more
    with pytest.raises(ConflictError):
        run(run_job(book, "a", only_due=True))
    clock.now += 61 * SECOND
    assert run(run_job(book, "a", only_due=True)).run.ok
    assert [each.outcome for each in jobs.get("a").runs] == ["ok", "killed"]
    assert watched.runs == ["a"]


def test_an_interrupt_is_noted_and_goes_on() -> None:
    def work(job: JobContext) -> None:
        raise KeyboardInterrupt

    store, kinds = timed(time.time_ns), knows(JobType("interrupted", "", work))
    jobs = Jobs(store, kinds)
    jobs.add("a", "interrupted", schedule="every 1h")
    with pytest.raises(KeyboardInterrupt):
        jobs.run("a")
    assert jobs.get("a").runs[0].outcome == "stopped"
    assert token(store) is None
    assert not [each for each in threading.enumerate() if each.name == "holdfast-job-life"]


def test_a_plain_function_runs_beside_the_loop_and_is_stopped() -> None:
    def slow(job: JobContext) -> None:
        while True:
            time.sleep(0.01)
            job.progress(1, None, "")

    store, kinds = timed(time.time_ns), knows(JobType("plain", "", slow))
    stop: list[bool] = []

    async def main() -> None:
        jobs = AsyncJobs(awaited(store), kinds)
        await jobs.add("a", "plain")
        task = asyncio.create_task(jobs.run("a", stop=lambda: bool(stop)))
        await asyncio.sleep(0.1)  # the loop goes on
        stop.append(True)
        assert (await task).outcome == "stopped"

    asyncio.run(main())
    assert not [each for each in threading.enumerate() if each.name == "holdfast-job-life"]


def test_cancelling_is_noted() -> None:
    store = timed(time.time_ns, Waiting(MemoryBackend()))

    async def work(job: JobContext) -> None:
        while True:
            await ThreadOperations[Any].put(job.store.thread("t"), {"n": 1})

    kinds = knows(JobType("endless", "", work))

    async def main() -> None:
        jobs = AsyncJobs(awaited(store), kinds)
        await jobs.add("a", "endless")
        task = asyncio.create_task(jobs.run("a"))
        while not store.threads():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await jobs.get("a")).runs[0].outcome == "stopped"

    asyncio.run(main())
    assert token(store) is None


@pytest.mark.parametrize("times", [1, 2])
def test_a_plain_function_is_waited_for_when_its_task_is_cancelled(times: int) -> None:
    """Nobody else may begin while it is at work. One who does not wait leaves the lease to run out."""
    store, go_on, ended = timed(time.time_ns), threading.Event(), threading.Event()
    at_work: list[Any] = []

    def slow(job: JobContext) -> None:
        at_work.append(job)
        assert go_on.wait(120)  # within a step, in which nothing can stop it
        ended.set()
        while True:
            job.progress(1, None, "")
            time.sleep(0.001)

    kinds = knows(JobType("plain", "", slow))

    async def main() -> None:
        jobs = AsyncJobs(awaited(store), kinds)
        await jobs.add("a", "plain")
        task = asyncio.create_task(jobs.run("a"))
        while not at_work:
            await asyncio.sleep(0.001)
        task.cancel()
        while not at_work[0].holder.cancelled:
            await asyncio.sleep(0.001)
        assert not (await asyncio.wait({task}, timeout=0.05))[0]
        if times == 1:
            go_on.set()
        else:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set() is (times == 1)
        assert (token(store) is None) is (times == 1)
        assert (await jobs.get("a")).runs[0].outcome == ("stopped" if times == 1 else "running")
        go_on.set()

    asyncio.run(main())


def test_a_plain_function_that_never_began_is_not_waited_for() -> None:
    """All threads for such work are busy."""
    store = timed(time.time_ns, MemoryBackend())
    kinds, began = knows(JobType("plain", "", lambda job: began.append(1))), list[int]()

    async def main() -> None:
        free = threading.Event()
        jobs = AsyncJobs(awaited(store), kinds)
        await jobs.add("a", "plain")
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            pool.submit(free.wait)
            task = asyncio.create_task(jobs.run("a"))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.wait({task}, timeout=60)
            free.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert token(store) is None

    asyncio.run(main())
    assert not began


def test_how_far_a_job_is_survives_a_kill() -> None:
    """It is stored while the job runs, with its signs of life."""
    store, marks = timed(time.time_ns), list[str]()

    def work(job: JobContext) -> str:
        marks.append(job.mark)
        if not job.mark:
            job.keep("half")
            end = time.monotonic() + 120
            while not (stored := Jobs(store).get("a").mark) and time.monotonic() < end:
                time.sleep(0.01)
            marks.append(stored)
            job.keep("more")
            raise TransientError("the store was away")
        return "all"

    kinds = knows(JobType("long", "", work))
    Jobs(store, kinds).add("a", "long")
    failed = once(store, kinds, life=LIFE)
    assert (failed.run.outcome, failed.job.mark) == ("failed", "more")
    done = once(store, kinds, life=LIFE)
    assert marks == ["", "half", "more"]
    assert (done.run.outcome, done.job.mark) == ("ok", "")


def test_what_a_job_keeps_is_small() -> None:
    store = timed(time.time_ns)
    kinds = knows(JobType("much", "", lambda job: job.keep("x" * 100_000)))
    Jobs(store, kinds).add("a", "much")
    with pytest.raises(InvalidError, match="at most"):
        Jobs(store, kinds).run("a")


def test_jobs_run_on_the_store_of_their_tenant() -> None:
    seen: list[str] = []

    async def work(job: JobContext) -> None:
        seen.append(job.store.tenant)
        await ThreadOperations[Any].put(job.store.thread("t"), {"n": job.settings["n"]})

    store = timed(time.time_ns)
    own = type(store)(store._engine, "acme")
    kinds = knows(JobType("saves", "", work, lambda settings: None))
    Jobs(own, kinds).add("a", "saves", settings={"n": 7})
    Jobs(own, kinds).run("a")
    assert seen == ["acme"]
    assert own.thread("t").get().state == {"n": 7}
    assert store.threads() == []


class TakenOver(Wrapper):
    """A store in which another takes the lease just before a batch that changes a job."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.before = 0
        """Before which such batch, counted down."""

    async def apply(self, batch: Batch) -> int | None:
        if any(isinstance(change, Put) and change.space is JOBS for change in batch):
            self.before -= 1
            if self.before == 0:
                taken = Row(("", "", "lease", "job a", ""), ("another", time.time_ns()))
                await super().apply([Put(REFS, CHECKSUMS.encode(REFS, taken))])
        return await super().apply(batch)


@pytest.mark.parametrize("when", [1, 2], ids=["start", "end"])
def test_a_lease_that_goes_to_another_at_the_start_or_the_end_changes_nothing(when: int) -> None:
    backend = TakenOver()
    store, kinds = timed(time.time_ns, backend), knows(Watched().kind())
    jobs = Jobs(store, kinds)
    jobs.add("a", "watched", schedule="every 1h")
    due = jobs.get("a").due_ns
    backend.before = when
    with pytest.raises(ConflictError) as caught:
        jobs.run("a")
    assert caught.value.code == "lease-lost"
    assert [each.outcome for each in jobs.get("a").runs] == ["running"] * (when - 1)
    assert jobs.get("a").due_ns == due
