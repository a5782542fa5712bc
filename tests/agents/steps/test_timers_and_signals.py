"""Timers and signals: kept across restarts, in order, each once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.agents.steps import timers
from holdfast.agents.steps.signals import Signal
from holdfast.agents.steps.timers import fire_timers
from holdfast.backends.interface import Batch, Put, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOBS
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, HoldfastError, InvalidError, NotFoundError
from holdfast.jobs import JobRunner
from holdfast.maintenance.jobs.api import Jobs
from tests.agents.steps.desk import ID, Desk, desk_of
from tests.maintenance.kit import Clock, Watched, knows, timed

HOUR = 3600 * 10**9
DEFAULT = "credentials"
"""The job that runners add to every store."""


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory:") as opened:
        yield opened


def names_of(desk: Desk) -> list[str]:
    return [each.name for each in desk.steps.signals()]


def test_signals_are_in_order_kept_and_each_id_is_one(store: Store) -> None:
    desk = desk_of(store)
    for number in range(12):
        assert store.agents.signal(ID, "approved", number, id=f"s{number}")
        assert not store.agents.signal(ID, "approved", "again", id=f"s{number}")
    store.agents.signal(ID, "other")
    got = [desk_of(store).wait_for("approved") for _ in range(12)]
    assert [(each.value, each.id) for each in got if each is not None] == [(n, f"s{n}") for n in range(12)]
    assert not store.agents.signal(ID, "approved", "again", id="s3"), "its id is known after it was taken"
    assert desk.wait_for("approved", timeout=0.01) is None
    assert names_of(desk) == ["other"]
    with pytest.raises(NotFoundError):
        store.agents.signal("none", "approved")
    for wrong in ("", "a/b", "x" * 500):
        with pytest.raises(InvalidError):
            store.agents.signal(ID, wrong)


def test_a_wait_under_a_key_gets_the_same_signal_after_a_restart_and_has_one_deadline() -> None:
    clock = Clock()
    store = timed(clock)
    desk_of(store)
    store.agents.signal(ID, "approved", 1)
    store.agents.signal(ID, "approved", 2)
    first = desk_of(store).wait_for("approved", key="a")
    assert first is not None
    assert first.value == 1
    assert desk_of(store).wait_for("approved", key="a") == first
    second = desk_of(store).wait_for("approved", key="b")
    assert second is not None
    assert second.value == 2

    waiting = threading.Thread(target=lambda: desk_of(store).wait_for("approved", timeout="1h", key="c"))
    waiting.daemon = True
    waiting.start()
    while run(desk_of(store).steps._line.read(lambda view: view.item("wait/c"))) is None:
        time.sleep(0.01)
    clock.now += 2 * HOUR
    assert desk_of(store).wait_for("approved", timeout="1h", key="c") is None, "it began to wait two hours ago"
    store.agents.signal(ID, "approved", 3)
    assert desk_of(store).wait_for("approved", timeout="1h", key="c") is None, "that nothing came is recorded"
    left = desk_of(store).wait_for("approved")
    assert left is not None
    assert left.value == 3


def test_who_waits_under_one_key_gets_one_signal_also_if_both_wait_at_once(store: Store) -> None:
    desk_of(store)
    got: list[Signal | None] = []
    both = [
        threading.Thread(target=lambda: got.append(desk_of(store).wait_for("approved", key="a")), daemon=True)
        for _ in range(2)
    ]
    for each in both:
        each.start()
    while run(desk_of(store).steps._line.read(lambda view: view.item("wait/a"))) is None:
        time.sleep(0.01)
    time.sleep(0.05)  # the second one waits, too; if it comes late, it finds the record
    store.agents.signal(ID, "approved", 1)
    for each in both:
        each.join(10)
    assert [each and each.value for each in got] == [1, 1]
    with pytest.raises(ConflictError) as raised:
        desk_of(store).wait_for("other", timeout=0, key="a")
    assert raised.value.code == "step-arguments"
    store.agents.signal(ID, "cafe\u0301", 2)
    spelled = desk_of(store).wait_for("caf\u00e9", timeout=0)
    assert spelled is not None
    assert spelled.value == 2


def test_two_who_wait_without_a_key_share_the_signals(store: Store) -> None:
    desk_of(store)
    got: list[Signal | None] = []
    both = [
        threading.Thread(target=lambda: got.extend(desk_of(store).wait_for("s", timeout=20) for _ in range(10)))
        for _ in range(2)
    ]
    for each in both:
        each.start()
    for number in range(20):
        store.agents.signal(ID, "s", number)
    for each in both:
        each.join(30)
    assert sorted(each.value for each in got if each is not None) == list(range(20))


def test_ids_of_signals_are_forgotten_in_time() -> None:
    clock = Clock()
    store = timed(clock)
    desk = desk_of(store)
    for number in range(20):
        store.agents.signal(ID, "s", number, id=f"s{number}")
    clock.now += 31 * 24 * HOUR
    for number in range(5):
        assert store.agents.signal(ID, "s", number, id=f"later {number}")
    keys = run(desk.steps._line.read(lambda view: view.all_keys("signal-")))
    assert len(keys) == 2 * 5
    assert store.agents.signal(ID, "s", 0, id="s1"), "it is another one by now"


def test_who_waits_in_another_thread_is_woken(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "a.db") as other:
        desk, got = desk_of(store), list[tuple[object, float]]()

        def wait() -> None:
            signal = desk.wait_for("approved", timeout=30)
            got.append((signal and signal.value, time.monotonic()))

        thread = threading.Thread(target=wait)
        thread.start()
        other.agents.signal(ID, "approved", "yes")
        sent = time.monotonic()
        thread.join()
        assert got[0][0] == "yes"
        assert got[0][1] - sent < 5


def test_timers_are_delivered_once_and_late_by_less_than_a_second(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, holdfast.open(tmp_path / "a.db") as other:
        desk = desk_of(other)
        with JobRunner(store), JobRunner(other):  # two, and a timer that is set after they have looked
            cancelled = desk.timers.set("never", "0.5s")
            assert desk.timers.cancel("never")
            assert not desk.timers.cancel("never")
            due = desk.timers.set("reminder", 0.5, signal="remind", value={"order": 42}).due
            got = desk.wait_for("remind", timeout=20)
        assert got is not None
        assert got.value == {"order": 42}
        assert timedelta(0) <= got.time - due < timedelta(seconds=1)
        assert cancelled.due < got.time
        assert (names_of(desk), desk.timers.list()) == ([], [])
        assert [each.name for each in store.jobs.list()] == [DEFAULT], "timers are no jobs"
        assert stored_timers(other._handle.engine.context.backend) == []


def test_timers_are_delivered_while_a_job_runs(store: Store) -> None:
    desk, begun, ended = desk_of(store), threading.Event(), threading.Event()

    def work(_: object) -> None:
        begun.set()
        assert ended.wait(20)

    kinds = knows(Watched(work).kind("slow"))
    Jobs(store, kinds).add("slow", "slow", schedule="every 1s")
    with JobRunner(store, kinds):
        assert begun.wait(20)
        due = desk.timers.set("reminder", 0.05).due
        while not (found := desk.steps.signals()):
            assert datetime.now(UTC) - due < timedelta(seconds=10)
            time.sleep(0.01)
        ended.set()
    assert found[0].time - due < timedelta(seconds=1)


def stored_timers(backend: Any) -> list[Any]:
    """Return the keys of the rows of timers: those that are not of the job that every store has."""
    return [row.key for row in run(backend.read([Scan(JOBS, ("",))]))[0] if row.key[2] != DEFAULT]


class Eager(MemoryBackend):
    """A store with a runner that looks at every moment: after each write."""

    runner: JobRunner | None = None
    busy = False

    async def apply(self, batch: Batch) -> int | None:
        done = await super().apply(batch)
        if self.runner is not None and not self.busy:
            self.busy = True
            await self.runner.fire_timers()
            self.busy = False
        return done


def test_a_timer_that_is_due_while_it_is_set_is_delivered() -> None:
    backend = Eager()
    store = timed(Clock(), backend)
    desk = desk_of(store)
    backend.runner = JobRunner(timed(Clock(), backend))
    past = datetime(2020, 1, 1, tzinfo=UTC)
    desk.timers.set("now", past)
    desk.timers.set("now", past)
    assert names_of(desk) == ["now", "now"]
    assert desk.timers.list() == []
    assert run(backend.read([Scan(JOBS, ("",))]))[0] == []


def test_an_agent_that_waits_needs_no_runner_for_its_timers() -> None:
    clock, backend = Clock(), MemoryBackend()
    desk = desk_of(timed(clock, backend))
    for number in range(3):
        desk.timers.set(f"t{number}", f"{number + 1}h", signal="s", value=number)
    desk.timers.set("t1", "2h", signal="s", value="set again")
    desk.timers.cancel("t2")
    clock.now += 10 * HOUR
    got = [desk_of(timed(clock, backend)).wait_for("s", timeout=0) for _ in range(3)]
    assert [each and each.value for each in got] == [0, "set again", None]
    assert run(backend.read([Scan(JOBS, ("",))]))[0] == []
    assert run(desk.steps._line.read(lambda view: view.all_keys("timer"))) == []


def test_an_agent_that_waits_is_woken_by_its_timer(store: Store) -> None:
    desk = desk_of(store)
    due = desk.timers.set("reminder", 0.1).due
    got = desk.wait_for("reminder", timeout=20)
    assert got is not None
    assert timedelta(0) <= got.time - due < timedelta(seconds=1)


def test_deleted_and_erased_agents_leave_no_rows_of_timers(store: Store) -> None:
    for id in ("deleted", "erased", "stays"):
        desk = desk_of(store, id)
        desk.metadata["subject"] = id
        desk.save()
        desk.timers.set("t", "1h")
    store.agents.delete("deleted")
    store.erasure.erase("erased")
    (row,) = run(store._handle.engine.context.backend.read([Scan(JOBS, ("",))]))[0]
    assert timers._decode(row)["agent"] == "stays"


def timer_rows(store: Store) -> list[Row]:
    (rows,) = run(store._handle.engine.context.backend.read([Scan(JOBS, ("",))]))
    return [row for row in rows if str(row.key[2]).startswith(timers.PREFIX)]


def test_a_restore_to_a_moment_has_the_timers_of_then(tmp_path: Path) -> None:
    clock = Clock()
    store = timed(clock)
    desk = desk_of(store)
    desk.timers.set("early", "1h")
    store.backups(tmp_path / "backups").create()
    clock.now += HOUR // 4
    desk.timers.set("late", "2h")
    desk.timers.cancel("early")
    moment = clock.now
    clock.now += HOUR // 4
    desk.timers.cancel("late")
    desk.timers.set("after", "3h")
    store.backups(tmp_path / "backups").create()
    copy = timed(clock)
    copy.backups(tmp_path / "backups").restore(to_datetime(moment))
    assert [timers._decode(row)["timer"] for row in timer_rows(copy)] == ["late"]
    clock.now += 4 * HOUR
    JobRunner(copy).run_due()
    assert names_of(desk_of(copy)) == ["late"]
    assert not timer_rows(copy)


def test_a_backup_does_not_have_the_rows_of_all_timers_again(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        backups = store.backups(tmp_path / "backups")
        for id in ("many", "one"):
            desk_of(store, id)
        for number in range(300):
            store.agents.timers("many").set(f"timer {number}", "1h")
        backups.create()
        store.agents.timers("one").set("one more", "1h")
        assert backups.create().added < 5_000, "300 rows of timers take 12 kB"


def test_timers_are_restored_with_their_agents_and_only_with_them(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        for id in ("a", "b"):
            desk_of(store, id).timers.set("t", 0.05)
        desk_of(store, "b").once("charge", abs, -1)
        store.backups(tmp_path / "backups").create()
        JobRunner(store).run_due()
    for agents in (["b"], ["a", "b"]):
        with holdfast.open(tmp_path / f"{len(agents)}.db") as copy:
            backups = copy.backups(tmp_path / "backups")
            backups.restore() if len(agents) == 2 else backups.restore(threads=["b"], kinds="agent")
            assert len(timer_rows(copy)) == len(agents)
            time.sleep(0.06)
            for _ in range(2):
                JobRunner(copy).run_due()
            assert [names_of(desk_of(copy, id)) for id in agents] == [["t"]] * len(agents)
            assert desk_of(copy, "b").once("charge", abs, -1) == 1


def test_timers_survive_a_restart_and_a_clock_that_is_set_back_delivers_nothing_twice() -> None:
    clock, backend = Clock(), MemoryBackend()
    desk = desk_of(timed(clock, backend))
    desk.timers.set("a", "1h")
    desk.timers.set("b", "1h")
    desk.timers.set("b", "3h")  # set again
    store = timed(clock, backend)  # another process
    runner = JobRunner(store)
    assert [each.name for each in desk_of(store).timers.list()] == ["a", "b"]
    runner.run_due()
    assert names_of(desk_of(store)) == []
    clock.now += HOUR
    runner.run_due()
    assert names_of(desk_of(store)) == ["a"]
    clock.now -= 5 * HOUR
    runner.run_due()
    assert names_of(desk_of(store)) == ["a"]
    desk_of(store).timers.set("c", "1h")
    clock.now += HOUR
    runner.run_due()
    assert sorted(names_of(desk_of(store))) == ["a", "c"], "by the clock as it is now"
    clock.now += 6 * HOUR
    runner.run_due()
    runner.run_due()
    assert sorted(names_of(desk_of(store))) == ["a", "b", "c"]
    assert stored_timers(backend) == []


def test_a_damaged_timer_and_those_of_deleted_agents_do_not_stop_others(store: Store) -> None:
    desk, gone = desk_of(store), desk_of(store, "gone")
    desk.timers.set("a", 0.001)
    context = store._handle.engine.context
    (row,) = run(context.backend.read([Scan(JOBS, ("",))]))[0]
    damaged = row._replace(key=(*row.key[:2], f"{timers.PREFIX}{1:020d}/x"), body=b"nonsense")
    run(context.backend.apply([Put(JOBS, damaged)]))
    gone.timers.set("b", 0.001)
    store.agents.delete("gone")
    time.sleep(0.002)
    JobRunner(store).run_due()
    assert names_of(desk) == ["a"]
    assert stored_timers(context.stored) == [damaged.key]
    assert run(JobRunner(store).fire_timers()) > 0.1, "it does not keep the runner busy"
    assert not store.agents.exists("gone")


class Counting(MemoryBackend):
    """Counts the rows of timers that are read."""

    rows = 0

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        answers = await super().read(queries)
        self.rows += sum(len(rows) for query, rows in zip(queries, answers, strict=True) if query.space is JOBS)
        return answers


@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_what_is_due_is_found_without_reading_what_is_not(count: int) -> None:
    clock, backend = Clock(), Counting()
    store = timed(clock, backend)
    desk = desk_of(store)
    desk.timers.set("first", "1h")
    (row,) = run(backend.read([Scan(JOBS, ("",))]))[0]
    for number in range(count):  # rows as they are stored; the timers of their agents are not needed
        name = f"{timers.PREFIX}{clock.now + 2 * HOUR + number:020d}/{number}"
        run(backend.apply([Put(JOBS, row._replace(key=(*row.key[:2], name)))]))
    clock.now += HOUR
    backend.rows = 0
    JobRunner(store).run_due()
    assert names_of(desk) == ["first"]
    assert backend.rows <= 8, "the one that is due, the next one, and a few times the job that every store has"
    store.jobs.add("nightly", "tidy", schedule="daily at 03:00")
    assert [job.name for job in store.jobs.list()] == [DEFAULT, "nightly"]
    assert backend.rows <= 12


def test_a_sleep_is_continued_after_a_restart_and_can_be_cancelled() -> None:
    clock, backend = Clock(), MemoryBackend()
    store = timed(clock, backend)
    desk, slept = desk_of(store), list[bool]()
    thread = threading.Thread(target=lambda: slept.append(desk.sleep("1h", key="nap")))
    thread.start()
    while not (found := desk_of(store).timers.list()):
        time.sleep(0.01)
    assert [(each.name, each.signal) for each in found] == [("nap", "")]
    clock.now += 2 * HOUR  # and the process is gone, as far as the next one knows
    begun = time.monotonic()
    assert desk_of(store).sleep("1h", key="nap")
    assert time.monotonic() - begun < 10
    thread.join()  # it sees that the sleep is over
    clock.now -= 10 * HOUR
    assert desk_of(store).sleep("1h", key="nap"), "it is over, whatever the clock says"
    assert slept == [True]

    thread = threading.Thread(target=lambda: slept.append(desk.sleep_until("1h", key="long")))
    thread.start()
    while not desk_of(store).timers.list():
        time.sleep(0.01)
    assert desk_of(store).timers.cancel("long")
    thread.join()
    assert slept == [True, False]
    past = datetime(2020, 1, 1, tzinfo=UTC)
    assert desk.sleep_until(past, key="past")


def test_a_sleep_is_not_longer_because_the_clock_was_set_back() -> None:
    clock = Clock()
    desk = desk_of(timed(clock))
    begun = time.monotonic()
    thread = threading.Thread(target=lambda: desk.sleep(0.3, key="nap"))
    thread.start()
    clock.now -= HOUR
    thread.join()
    assert time.monotonic() - begun < 10


def test_wrong_timers(store: Store) -> None:
    desk = desk_of(store)
    for wrong in ("yesterday", -1, "soon", None):
        with pytest.raises(HoldfastError):
            desk.timers.set("a", wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidError):
        desk.timers.set("a/b", "1h")
    with pytest.raises(HoldfastError):
        desk.timers.set("a", "1h", value=threading.Lock())
    with pytest.raises(InvalidError):
        store.jobs.add("\x01timer/1", "tidy")
    assert desk.timers.list() == []
    assert run(fire_timers(store._handle)) == 0
    assert run(store._handle.engine.context.backend.read([Scan(JOBS, ("",))]))[0] == []
