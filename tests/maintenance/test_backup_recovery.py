"""Recovery to any time, in place, and what is never set back."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.runtime.drivers import run
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import Line
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, DeniedError, NotFoundError
from tests.maintenance.kit import DAY, Clock, timed
from tests.maintenance.test_backup import contents, fill
from tests.servers.places import COMPOSED, KINDS, place
from tests.support.interference import InterferingBackend
from tests.support.nightly import mostly_nightly

SECOND = 10**9
ACCOUNTS = 5


def same_store(store: Store, clock: Callable[[], int]) -> Store:
    """Return a store on the same data, with another clock, as in another process."""
    context = store._engine.context
    return Store(Engine(EngineContext(context.stored, clock=clock)), "")


def _skewed(clock: Clock, skew: int) -> Callable[[], int]:
    return lambda: clock.now + skew


def amounts(store: Store) -> dict[str, int]:
    return {each.thread: sum(store.thread(each.thread).get().state.values()) for each in store.threads().all()}


@pytest.mark.nightly
def test_the_whole_store_at_any_time_though_clocks_differ(repository: Path) -> None:
    """Writers whose clocks differ move amounts between threads. Whatever time is restored, what was saved
    together is there with all its parts or with none; nothing of a backup made before is missing, and nothing is there
    that a backup made after it does not have."""
    clock, random = Clock(), Random(3)
    store = timed(clock)
    writers = [same_store(store, _skewed(clock, skew)) for skew in (0, 25 * SECOND, -25 * SECOND)]
    balances: list[dict[int, int]] = [dict.fromkeys(range(ACCOUNTS), 0) for _ in writers]
    for number in range(ACCOUNTS):
        store.thread(f"account-{number}").put({"start": 100})
    committed: list[tuple[int, dict[str, int]]] = []
    made: list[tuple[int, dict[str, int]]] = []
    for round_number in range(18):
        clock.now += 10 * SECOND
        which = random.randrange(len(writers))
        one, other = random.sample(range(ACCOUNTS), 2)
        balances[which][one] -= 7
        balances[which][other] += 7
        with writers[which].transaction() as together:
            for account in (one, other):
                together.update(f"account-{account}", {f"writer-{which}": balances[which][account]})
        committed.append((clock.now, steps(store)))
        if round_number % 6 == 5:
            clock.now += SECOND
            store.backups(repository).create()
            made.append((clock.now, steps(store)))
    points = set()
    for at in range(made[0][0] + SECOND, made[-1][0] + SECOND, 9 * SECOND):
        with holdfast.open("memory://") as new:
            new.backups(repository).restore(to_datetime(at))
            assert sum(amounts(new).values()) == 100 * ACCOUNTS, "a transaction is there with one part only"
            found = steps(new)
            before = [each for time, each in made if time <= at][-1]
            after = next((each for time, each in made if time > at), made[-1][1])
            assert all(before[name] <= found[name] <= after[name] for name in after)
            assert new.maintenance.verify(level="decode").ok
            points.add(tuple(sorted(found.items())))
    assert len(points) > len(made) + 3, "there are points between the backups"


def steps(store: Store) -> dict[str, int]:
    return {each.thread: each.steps for each in store.threads().all()}


def test_with_one_clock_it_is_exactly_what_was_there(repository: Path) -> None:
    clock = Clock()
    store = timed(clock)
    expected = []
    for number in range(12):
        clock.now += 10 * SECOND
        store.thread("chat").put({"n": number})
        if number % 3 == 0:
            store.thread(f"new-{number}").put({"n": number})
        if number == 4:
            store.thread("chat").fork("side", at="HEAD~1")
            store.thread("chat").put({"n": "side"}, branch="side")
        if number == 6:
            store.thread("chat").switch("side")
            store.thread("chat").tag("good")
        if number == 8:
            store.state(agent="researcher")["goal"] = "find"
        expected.append((clock.now, described(store)))
        if number in (2, 9):
            clock.now += SECOND
            store.backups(repository).create()
    for time, then in expected[:10]:
        with holdfast.open("memory://") as new:
            new.backups(repository).restore(to_datetime(time + SECOND // 2))
            assert described(new) == then
    with holdfast.open("memory://") as new:
        backups = new.backups(repository)
        covered = backups.covered()
        assert covered is not None
        with pytest.raises(NotFoundError, match=re.escape(covered.last.isoformat())) as error:
            backups.restore(to_datetime(clock.now))
        assert error.value.code == "not-covered"
        backups.restore(covered.last)
        assert described(new) == expected[9][1]
        with pytest.raises(NotFoundError):
            new.backups(repository).restore(to_datetime(expected[0][0] - SECOND))


def described(store: Store) -> Any:
    threads = {
        each.thread: (
            store.thread(each.thread).get().state,
            [one.id for one in store.thread(each.thread).log(limit=100)],
        )
        for each in store.threads().all()
    }
    return threads, store.state(agent="researcher").get("goal", None)


def test_a_deleted_thread_is_there_before_it_was_deleted(repository: Path) -> None:
    clock = Clock()
    store = timed(clock)
    store.thread("chat").put({"n": 1})
    clock.now += SECOND
    store.backups(repository).create()
    clock.now += SECOND
    store.thread("chat").delete()
    clock.now += SECOND
    store.thread("chat").put({"n": "another"})
    clock.now += SECOND
    store.backups(repository).create()
    for at, wanted in ((clock.now - 3 * SECOND, 1), (clock.now, "another")):
        with holdfast.open("memory://") as new:
            new.backups(repository).restore(to_datetime(at))
            assert new.thread("chat").get().state == {"n": wanted}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [each for each in (*KINDS, *COMPOSED) if each != "memory"])
def test_into_another_kind_of_store(kind: str, repository: Path, tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        fill(store)
        store.backups(repository).create()
        expected = contents(store)
    with holdfast.open(place(kind, tmp_path)) as new:
        new.backups(repository).restore()
        assert contents(new) == expected
        assert new.maintenance.verify(level="decode").ok


@pytest.mark.parametrize("kind", mostly_nightly([each for each in KINDS if each != "memory"], daily=["sqlite"]))
def test_in_place_the_store_goes_back_and_writers_are_refused(kind: str, repository: Path, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    with holdfast.open(url) as store, holdfast.open(url) as writer:
        for each in (store, writer):
            each.thread("chat").put({"n": 1})
        writer.thread("deleted").put({"n": 1})
        store.state(agent="researcher")["goal"] = "find"
        made = store.backups(repository).create()
        writer.thread("chat").put({"n": 2})
        writer.thread("new").put({"n": 1})
        writer.thread("deleted").delete()
        writer.state(agent="researcher")["goal"] = "get lost"
        writer.state(agent="researcher")["more"] = 1
        report = store.backups(repository).restore(made.id, in_place=True)
        actions = {each.name: each.action for each in report.lines if each.kind in ("thread", "scope")}
        assert actions == {"chat": "switch", "deleted": "create", "agent:researcher": "revert", "new": "kept"}
        assert store.thread("chat").get().state == {"n": 1}
        assert dict(store.state(agent="researcher").items()) == {"goal": "find"}
        for save in (
            lambda: writer.thread("chat").put({"n": 3}),
            lambda: writer.thread("deleted").put({"n": 2}),
            lambda: writer.state(agent="researcher").set("goal", "?"),
        ):
            with pytest.raises(ConflictError, match="was restored from a backup") as error:
                save()
            assert error.value.code == "store-restored"
        assert writer.thread("chat").get().state == {"n": 1}, "reading goes on"
        writer.thread("new").put({"n": 2})  # it was not restored
        store.thread("chat").put({"n": 4})
        assert store.thread("chat").get(at="main").state == {"n": 2}, "what was there stays reachable"
        with holdfast.open(url) as again:
            again.thread("chat").put({"n": 5})
        assert store.maintenance.verify(level="decode").ok
        again_made = store.backups(repository).create()
    with holdfast.open("memory://") as copy:
        copy.backups(repository).restore(again_made.id)
        copy.thread("chat").put({"n": 6})  # marks do not travel


def test_a_restore_in_place_can_be_repeated(repository: Path) -> None:
    store = timed(Clock())
    for name in ("chat", "other"):
        store.thread(name).put({"n": 1})
    made = store.backups(repository).create()
    for name in ("chat", "other"):
        store.thread(name).put({"n": 2})
    assert [each.action for each in store.backups(repository).restore(made.id, in_place=True).lines] == ["switch"] * 2
    again = store.backups(repository).restore(made.id, in_place=True)
    assert [each.action for each in again.lines if each.kind == "thread"] == ["same"] * 2
    store.thread("chat").put({"n": 3})
    planned = store.backups(repository).restore(made.id, in_place=True, dry_run=True)
    assert {each.name: each.action for each in planned.lines} == {"chat": "switch", "other": "same"}
    store.backups(repository).restore(made.id, in_place=True)
    assert store.thread("chat").get().state == {"n": 1}


def test_a_writer_that_saves_until_the_last_moment_does_not_keep_head(repository: Path) -> None:
    """A save from another process before every single change of the store that a restore makes."""
    backend = InterferingBackend()
    store, writer = (Store(Engine(EngineContext(backend)), "") for _ in range(2))
    for each in (store, writer):
        run(each._engine.lines.generations.load(""))  # as opening a store does
    store.thread("chat").put({"n": 1})
    made = store.backups(repository).create()
    store.thread("chat").put({"n": 2})
    saved, refused = [0], [0]

    def save() -> None:
        try:
            writer.thread("chat").put({"n": f"late {saved[0]}"})
            saved[0] += 1
        except ConflictError:
            refused[0] += 1

    with backend.interfere(save, "apply", times=None):
        store.backups(repository).restore(made.id, in_place=True)
    assert saved[0], "the writer was there"
    save()
    assert refused[0]
    assert store.thread("chat").get().state == {"n": 1}
    assert store.thread("chat").get(at="main").state == {"n": f"late {saved[0] - 1}"}


# What is never set back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("into", ["the same store", "an empty one"])
def test_a_revoked_grant_and_a_freeze_do_not_come_back(into: str, repository: Path) -> None:
    store = timed(Clock())
    store.state(agent="researcher")["goal"] = "find"
    store.access.grant("agent:writer", "read", agent="researcher")
    store.access.grant("agent:frozen", "read", agent="researcher")
    assert store.as_identity("agent:writer").state(agent="researcher")["goal"] == "find"
    old = store.backups(repository).create()
    store.access.revoke(next(each for each in store.access.grants() if "writer" in str(each.to)))
    store.access.freeze("agent:frozen")
    store.backups(repository).create()
    target = store if into == "the same store" else timed(Clock())
    target.backups(repository).restore(old.id, in_place=target is store)
    for name in ("writer", "frozen"):
        with pytest.raises(DeniedError):
            target.as_identity(f"agent:{name}").state(agent="researcher")["goal"]
    assert target.audit.verify().ok


def test_leases_and_running_jobs_do_not_come_alive(repository: Path) -> None:
    clock = Clock()
    store = timed(clock)
    store.thread("chat").put({"n": 1})
    store.jobs.add("tidy", "tidy", schedule="every 1h")
    clock.now += DAY  # the job is due
    run(Lease(store._engine.context, Line("", "chat"), "work").acquire())
    store.backups(repository).create()
    new = timed(clock)
    new.backups(repository).restore()
    assert new.jobs.get("tidy").paused
    run(Lease(new._engine.context, Line("", "chat"), "work").acquire())
    with pytest.raises(ConflictError):
        run(Lease(store._engine.context, Line("", "chat"), "work").acquire())


@pytest.mark.parametrize("how", ["ended", "expired"])
def test_a_session_that_is_over_does_not_come_alive(how: str, repository: Path) -> None:
    clock = Clock()
    store = timed(clock)
    session = store.sessions.start(id="visit", ttl=timedelta(hours=1))
    session.state["n"] = 1
    old = store.backups(repository).create()
    assert store.sessions.get("visit").status == "active"
    clock.now += 60 * SECOND
    if how == "ended":
        store.sessions.end("visit")
        store.backups(repository).create()
    else:
        clock.now += DAY
    new = timed(clock)
    new.backups(repository).restore(old.id)
    assert new.sessions.get("visit").status != "active"
