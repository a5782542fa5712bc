"""Threads, agents and sessions that have not changed for long are deleted: whole, and never what just changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

import holdfast
from holdfast.agents.steps.records import StepLine, StoredStep
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.interface import Put
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.types import to_datetime
from holdfast.errors import DeniedError, InvalidError, NotFoundError, VetoError
from holdfast.langgraph import HoldfastSaver
from holdfast.maintenance import stale_lines
from holdfast.maintenance.jobs.api import Jobs
from holdfast.maintenance.stale_lines import StaleReport
from holdfast.state.reader import ScopeView
from holdfast.state.writer import KeyWrite
from holdfast.store.store import Store
from tests.agents.steps.desk import ID, desk_of
from tests.maintenance.kit import DAY, HOUR, SECOND, Clock, awaited, timed
from tests.servers.places import KINDS, place
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.kills import MOMENTS, kill_at_write, run_in_child
from tests.support.nightly import mostly_nightly


@pytest.fixture
def store(clock: Clock) -> Store:
    return timed(clock)


def names(report: StaleReport) -> list[str]:
    return [each.name for each in report.deleted]


def skipped(report: StaleReport) -> dict[str, str]:
    return {each.name: each.problem for each in report.skipped}


def threads(store: Any) -> list[str]:
    return [each.thread for each in store.threads()]


def ttl_writes(backend: InterferingBackend) -> int:
    """How many batches wrote a TTL, or tried to."""
    rows = [[each.row for each in batch if isinstance(each, Put)] for batch in backend.batches]
    return sum(any(row.key[2:] == ("ttl", "", "") for row in several) for several in rows)


# By a query ---------------------------------------------------------------------------------------------------------


def test_a_query_deletes_whole_threads_and_says_which(store: Store, clock: Clock) -> None:
    for name in ("old", "old␟child", "other"):
        store.thread(name).put({"n": 1})
    clock.now += 100 * DAY
    store.thread("new").put({"n": 1})
    planned = store.maintenance.delete_stale("updated<90d", dry_run=True)
    assert threads(store) == ["new", "old", "old␟child", "other"]
    report = store.maintenance.delete_stale("updated<90d")
    assert (planned.deleted, planned.skipped) == (report.deleted, report.skipped)
    assert names(report) == ["old", "other"]
    assert report.deleted[0].steps == 2, "the namespaces are part of the thread"
    assert threads(store) == ["new"]
    assert store.maintenance.delete_stale("updated<90d").deleted == []
    records = [each for each in store.audit.query() if each.action == "delete"]
    assert {each.detail["rule"] for each in records} == {"updated<90d"}
    assert store.audit.verify().ok
    assert store.maintenance.verify(level="decode").findings == []


def test_a_change_of_a_namespace_or_of_another_branch_is_one_of_the_thread(store: Store, clock: Clock) -> None:
    for name in ("a", "a␟child", "b", "c"):
        store.thread(name).put({"n": 1})
    store.thread("b").fork("draft")
    clock.now += 100 * DAY
    store.thread("a␟child").put({"n": 2})
    store.thread("b").put({"n": 2}, branch="draft")
    assert names(store.maintenance.delete_stale("updated<90d")) == ["c"]
    assert threads(store) == ["a", "a␟child", "b"]


def test_namespaces_without_their_thread_go_together(store: Store, clock: Clock) -> None:
    for name in ("a␟x", "a␟y", "b␟x"):
        store.thread(name).put({"n": 1})
    clock.now += 100 * DAY
    store.thread("b␟x").put({"n": 2})
    assert names(store.maintenance.delete_stale("updated<90d", dry_run=True)) == ["a"]
    assert names(store.maintenance.delete_stale("updated<90d")) == ["a"]
    assert threads(store) == ["b␟x"]


def test_a_prefix_and_other_conditions(store: Store, clock: Clock) -> None:
    for name in ("x/1", "x/2", "y/1"):
        store.thread(name).put({"n": 1})
    store.thread("x/2").put({"n": 2})
    clock.now += 100 * DAY
    assert names(store.maintenance.delete_stale("updated<90d steps<2", prefix="x/")) == ["x/1"]
    assert threads(store) == ["x/2", "y/1"]


def test_holds_and_pins_keep_a_thread(store: Store, clock: Clock) -> None:
    for name in ("free", "held", "inside", "inside␟child", "pinned"):
        store.thread(name).put({"n": 1})
    store.thread("held").hold(reason="case 7")
    store.thread("inside␟child").hold(reason="case 8")
    store.thread("pinned").pin(reason="shown")
    clock.now += 100 * DAY
    report = store.maintenance.delete_stale("updated<90d", dry_run=True)
    assert names(report) == ["free"]
    assert skipped(report) == {
        "held": "the thread is held: case 7",
        "inside": "the thread is held: case 8",
        "pinned": "a checkpoint is pinned: shown",
    }
    assert store.maintenance.delete_stale("updated<90d").skipped == report.skipped
    store.thread("held").release()
    store.thread("pinned").unpin()
    assert names(store.maintenance.delete_stale("updated<90d")) == ["held", "pinned"]


def test_a_hook_may_object(store: Store, clock: Clock) -> None:
    for name in ("a", "b"):
        store.thread(name).put({"n": 1})
    seen: list[str] = []

    @store.hooks.before("checkpoint.delete")
    def object_to_a(call: Any) -> None:
        seen.append(call.scope)
        if call.scope == "a":
            raise VetoError("a stays")

    clock.now += 100 * DAY
    report = store.maintenance.delete_stale("updated<90d")
    assert names(report) == ["b"]
    assert "a stays" in skipped(report)["a"]
    assert seen == ["a", "b"]
    assert threads(store) == ["a"]


def test_tenants_have_their_own(clock: Clock) -> None:
    store = timed(clock)
    other = Store(store._engine, "acme")
    for each in (store, other):
        each.thread("t").put({"n": 1}, ttl="1d")
    clock.now += 100 * DAY
    assert names(other.maintenance.delete_stale()) == ["t"]
    assert (threads(store), threads(other)) == (["t"], [])
    assert names(store.maintenance.delete_stale("updated<90d")) == ["t"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kinds": "scope", "where": "updated<1d"}, "not lines of kind scope"),
        ({"kinds": "agent"}, "agents and sessions have no TTL"),
        ({"where": "updated<"}, "updated<"),
    ],
    ids=str,
)
def test_wrong_rules(store: Store, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        store.maintenance.delete_stale(**arguments)
    settings = {name: [value] if name == "kinds" else value for name, value in arguments.items()}
    with pytest.raises(InvalidError, match=message):
        Jobs(store).add("stale", "delete-stale", settings=settings)


def test_an_identity_deletes_nothing(store: Store) -> None:
    store.thread("t").put({"n": 1})
    view = store.as_identity(agent="writer")
    assert not hasattr(view, "maintenance")


def test_the_job_does_the_same(store: Store, clock: Clock) -> None:
    for name in ("a", "b"):
        store.thread(name).put({"n": 1}, ttl="1d")
    store.thread("c").put({"n": 1})
    store.thread("b").hold()
    clock.now += 100 * DAY
    Jobs(store).add("ttl", "delete-stale")
    ended = Jobs(store).run("ttl")
    assert (ended.outcome, ended.summary) == (
        "ok",
        "1 threads, 0 agents and 0 sessions deleted; 1 are held, pinned or at work",
    )
    assert threads(store) == ["b", "c"]
    Jobs(store).add("stale", "delete-stale", settings={"where": "updated<90d", "kinds": ["thread", "agent"]})
    assert Jobs(store).run("stale").summary.startswith("1 threads, 0 agents")
    assert threads(store) == ["b"]


@pytest.mark.parametrize("kind", ["thread", "session"])
def test_a_pass_that_deletes_nothing_says_how_far_it_is_and_can_be_stopped(
    kind: str, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stale_lines, "_PAGE", 2)
    for number in range(5):
        store.thread(f"t{number}").put({"n": number})
        store.sessions.start(f"s{number}")
    seen: list[tuple[int, str]] = []

    def note(done: int, _total: int | None, name: str) -> None:
        seen.append((done, name))

    def run_job(stop: Callable[[], bool] = lambda: False) -> str:
        seen.clear()
        return jobs.run("stale", progress=note, stop=stop).outcome

    jobs = Jobs(store)
    jobs.add("stale", "delete-stale", settings={"where": "updated<90d", "kinds": [kind]})
    assert run_job() == "ok"
    assert sorted({done for done, _ in seen} - {0}) == [2, 4, 5]
    assert seen[-1] == (5, f"{kind[0]}4")
    assert run_job(stop=lambda: len(seen) == 1) == "stopped"
    assert len(seen) == 1
    clock.now += 91 * DAY
    assert run_job() == "ok"
    assert {f"{kind[0]}{number}" for number in range(5)} == {name for _, name in seen}, "each that is deleted"
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_with_asyncio(store: Store, clock: Clock) -> None:
    async def use() -> None:
        other = awaited(store)
        await other.thread("t").put({"n": 1}, ttl="1d")
        assert await other.thread("t").expires() == to_datetime(clock.now + DAY)
        await other.thread("t").expire("2d")
        clock.now += 2 * DAY
        assert names(await other.maintenance.delete_stale()) == ["t"]

    asyncio.run(use())


# TTL ----------------------------------------------------------------------------------------------------------------


def test_a_thread_expires_so_long_after_its_last_change(store: Store, clock: Clock) -> None:
    thread = store.thread("t")
    thread.put({"n": 1}, ttl="2d")
    store.thread("forever").put({"n": 1})
    assert thread.expires() == to_datetime(clock.now + 2 * DAY)
    clock.now += DAY
    thread.put({"n": 2})
    assert thread.expires() == to_datetime(clock.now + 2 * DAY)
    clock.now += DAY
    store.thread("t␟child").put({"n": 2})
    clock.now += 2 * DAY - HOUR
    assert store.maintenance.delete_stale().deleted == []
    clock.now += HOUR
    assert names(store.maintenance.delete_stale()) == ["t"]
    assert threads(store) == ["forever"]
    (record,) = [each for each in store.audit.query() if each.action == "delete"]
    assert record.detail["rule"] == "ttl 2d"
    thread.put({"n": 1})
    assert thread.expires() is None, "a new thread of the name has no TTL"


def test_it_is_changed_and_removed(store: Store, clock: Clock) -> None:
    thread = store.thread("t")
    thread.put({"n": 1}, ttl=timedelta(days=1))
    thread.update({"n": 2}, ttl="3d")
    assert thread.expires() == to_datetime(clock.now + 3 * DAY)
    thread.expire("5d")
    assert thread.expires() == to_datetime(clock.now + 5 * DAY)
    thread.expire(None)
    assert thread.expires() is None
    clock.now += 10 * DAY
    assert store.maintenance.delete_stale().deleted == []
    thread.put({"n": 3}, ttl="3d")
    assert thread.expires() == to_datetime(clock.now + 3 * DAY)
    with store.transaction() as transaction:
        transaction.put("t", {"n": 4}, ttl="4d")
    assert thread.expires() == to_datetime(clock.now + 4 * DAY)


def test_a_ttl_is_a_duration_of_a_thread_that_exists(store: Store) -> None:
    for wrong in (0, -1, "soon", True):
        with pytest.raises(InvalidError):
            store.thread("t").put({"n": 1}, ttl=wrong)
    assert threads(store) == []
    with pytest.raises(InvalidError, match="namespace"):
        store.thread("t␟child").put({"n": 1}, ttl="1d")
    for act in (store.thread("t").expires, lambda: store.thread("t").expire("1d")):
        with pytest.raises(NotFoundError):
            act()


def test_it_is_written_only_when_it_changes(clock: Clock) -> None:
    backend = InterferingBackend()
    store, other = timed(clock, backend), timed(clock, backend)
    for number in range(10):
        store.thread("t").put({"n": number}, ttl="1d")
    assert ttl_writes(backend) == 2, "with the first two saves"
    store.thread("t").put({"n": 9}, ttl="1d", if_changed=True)
    assert ttl_writes(backend) == 2
    for number in range(10):
        store.thread("t").put({"n": number}, ttl="2d")
    assert ttl_writes(backend) == 3
    other.thread("t").delete()
    other.thread("t").put({"n": 0})
    for number in range(3):
        store.thread("t").put({"n": number}, ttl="2d")
    assert ttl_writes(backend) == 4, "another thread of that name"
    assert other.thread("t").expires() == to_datetime(clock.now + 2 * DAY)
    other.thread("t").expire(None)
    for number in range(3):
        store.thread("t").put({"n": number}, ttl="2d")
    assert ttl_writes(backend) == 5
    assert other.thread("t").expires() == to_datetime(clock.now + 2 * DAY)


def test_it_is_stored_whatever_others_do_meanwhile(clock: Clock) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        store, other = timed(clock, backend), timed(clock, backend)
        store.thread("t").put({"n": 0}, ttl="1d")
        store.thread("t").put({"n": 1}, ttl="1d")

        def act() -> None:
            other.thread("t").delete()
            other.thread("t").put({"n": "other"})

        with moment.interfere(backend, act):
            store.thread("t").put({"n": 2}, ttl="1d")
        if moment.came or not moment.used:
            store.thread("t").put({"n": 3}, ttl="1d")
        assert store.thread("t").expires() == to_datetime(clock.now + DAY)

    at_every_moment(scenario, ["apply"])


def test_who_sets_it_may_delete_the_thread(store: Store, clock: Clock) -> None:
    store.thread("shared").put({"n": 1})
    store.access.grant("agent:writer", ["read", "write"], thread="shared")
    view = store.as_identity(agent="writer")
    view.thread("own").put({"n": 1}, ttl="1d")
    assert view.thread("own").expires() == to_datetime(clock.now + DAY)
    view.thread("shared").put({"n": 2})
    for act in (lambda: view.thread("shared").put({"n": 3}, ttl="1d"), lambda: view.thread("shared").expire("1d")):
        with pytest.raises(DeniedError):
            act()
    saver = HoldfastSaver(view, ttl="1d")
    with pytest.raises(DeniedError):
        graph_on(saver).invoke({"n": 1}, {"configurable": {"thread_id": "shared"}})
    assert store.thread("shared").get().state == {"n": 2}
    assert store.thread("shared").expires() is None
    store.access.grant("agent:writer", ["read", "write", "delete"], thread="shared")
    view.thread("shared").put({"n": 3}, ttl="1d")
    assert store.thread("shared").expires() is not None


def test_prune_and_repack_leave_it(store: Store, clock: Clock) -> None:
    for number in range(50):
        store.thread("t").put({"n": number}, ttl="1d")
    store.maintenance.prune(keep_last=1)
    store.maintenance.compact()
    assert store.thread("t").expires() == to_datetime(clock.now + DAY)
    assert store.maintenance.verify(level="decode").findings == []
    assert names(store.maintenance.delete_stale("updated<0s", dry_run=True)) == []


def test_a_branch_has_that_of_its_thread(store: Store, clock: Clock) -> None:
    thread = store.thread("t")
    thread.put({"n": 1}, ttl="1d")
    thread.fork("draft")
    clock.now += DAY - HOUR
    thread.put({"n": 2}, branch="draft")
    clock.now += 2 * HOUR
    assert store.maintenance.delete_stale().deleted == []
    clock.now += DAY
    assert names(store.maintenance.delete_stale()) == ["t"]


@pytest.mark.parametrize("kind", mostly_nightly([*KINDS], daily=["memory", "sqlite"]))
@pytest.mark.parametrize("hidden", [None, False, True], ids=["plain", "encrypted", "hidden names"])
def test_on_every_store(kind: str, hidden: bool | None, tmp_path: Path) -> None:
    encryption = None if hidden is None else Encryption(LocalKeys(b"k" * 32), hide_names=hidden)
    with holdfast.open(place(kind, tmp_path), encryption=encryption) as store:
        store.thread("short").put({"n": 1}, ttl=0.000001)
        store.thread("short␟child").put({"n": 1})
        store.thread("long").put({"n": 1}, ttl="30d")
        expires = store.thread("long").expires()
        assert expires is not None
        assert expires - store.thread("long").get().time == timedelta(days=30)
        desk_of(store)
        session = store.sessions.start("visit")
        session.state["seen"] = 1
        store.sessions.start("silent")
        assert names(store.maintenance.delete_stale()) == ["short"]
        report = store.maintenance.delete_stale("updated<0s", kinds=["thread", "agent", "session"])
        assert names(report) == ["long", ID, "silent", "visit"]
        assert threads(store) == []
        assert not store.agents.exists(ID)
        assert list(store.sessions.list()) == []
        assert store.maintenance.verify().findings == []


# It goes along ------------------------------------------------------------------------------------------------------


def copy_to(store: Store, folder: Path) -> Store:
    target = holdfast.open(folder / "target.db")
    store.maintenance.copy_to(target)
    return target


def copy_again(store: Store, folder: Path) -> Store:
    store.thread("t").expire("5d")
    target = copy_to(store, folder)
    store.thread("t").expire("1d")
    store.maintenance.copy_to(target)
    return target


def export_and_import(store: Store, folder: Path) -> Store:
    target = holdfast.open(folder / "target.db")
    store.maintenance.export(folder / "threads.jsonl")
    target.maintenance.import_(folder / "threads.jsonl")
    return target


def back_up_and_restore(store: Store, folder: Path) -> Store:
    store.backups(folder / "repository").create()
    target = holdfast.open(folder / "target.db")
    target.backups(folder / "repository").restore()
    return target


def restore_in_place(store: Store, folder: Path) -> Store:
    store.backups(folder / "repository").create()
    store.thread("t").delete()
    store.backups(folder / "repository").restore(in_place=True)
    return holdfast.open(folder / "store.db")


WAYS: list[Callable[[Store, Path], Store]] = [
    copy_to,
    copy_again,
    export_and_import,
    back_up_and_restore,
    restore_in_place,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_it_goes_along(way: Callable[[Store, Path], Store], tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "store.db") as store:
        saved = store.thread("t").put({"n": 1}, ttl="1d")
        store.thread("t␟child").put({"n": 1})
        store.thread("without").put({"n": 1})
        expected = store.thread("t").expires()
        assert expected is not None
        assert expected - saved.time < timedelta(days=1, minutes=1)
        with way(store, tmp_path) as target:
            assert target.thread("t").expires() == expected
            assert target.thread("without").expires() is None
            assert target.maintenance.verify(level="decode").findings == []


def test_a_file_gives_no_existing_thread_a_ttl(tmp_path: Path) -> None:
    for newer in (False, True):
        folder = tmp_path / str(newer)
        folder.mkdir()
        with holdfast.open(folder / "a.db") as store, holdfast.open(folder / "b.db") as other:
            store.thread("t").put({"n": 1})
            store.maintenance.copy_to(other)
            if newer:
                other.thread("t").put({"n": 2})
            other.thread("t").expire("1s")
            other.maintenance.export(folder / "threads.jsonl")
            store.maintenance.import_(folder / "threads.jsonl")
            assert store.thread("t").get().state == {"n": 1 + newer}
            assert store.thread("t").expires() is None


# Races and kills ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["put", "branch", "namespace", "ttl", "hold", "pin", "new"])
def test_a_change_meanwhile_is_never_lost(how: str, clock: Clock) -> None:
    outcomes: set[bool] = set()

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        clock.now += DAY
        store, other = timed(clock, backend), timed(clock, backend)
        store.thread("t").put({"n": 1}, ttl="1d")
        store.thread("t␟child").put({"n": 1})
        other.thread("t").get()  # it has the end of the thread in its cache
        clock.now += 2 * DAY

        acted: list[bool] = []

        def act() -> None:
            thread = other.thread("t")
            try:
                if how == "put":
                    thread.put({"n": 2})
                elif how == "branch":
                    thread.put({"n": 2}, parent=thread.find(), on_conflict="branch")
                elif how == "namespace":
                    other.thread("t␟child").put({"n": 2})
                elif how == "new":
                    other.thread("t␟more").put({"n": 2})
                elif how == "ttl":
                    thread.expire("30d")
                else:
                    thread.hold() if how == "hold" else thread.pin()
                acted.append(True)
            except NotFoundError:
                assert how in ("branch", "ttl", "hold", "pin")  # it was deleted already

        with moment.interfere(backend, act):
            report = store.maintenance.delete_stale()
        deleted = "t" in names(report)
        outcomes.add(deleted)
        fresh = timed(clock, backend)
        if acted and how not in ("put", "namespace", "new"):  # these create a thread that is not there
            assert not deleted
        if how in ("put", "namespace", "new") and moment.came:
            changed = {"put": "t", "namespace": "t␟child", "new": "t␟more"}[how]
            assert fresh.thread(changed).get().state == {"n": 2}, "what was saved is there"
        if not deleted:
            assert {"t", "t␟child"} <= set(threads(fresh)), "all or nothing"
            assert len(fresh.thread("t").log()) == (2 if how in ("put", "branch") else 1)
        assert fresh.maintenance.verify(level="decode").findings == []

    at_every_moment(scenario, at_least=1)
    assert outcomes == {True, False} or how == "new"


def test_a_signal_or_a_save_of_an_agent_meanwhile_is_never_lost(clock: Clock) -> None:
    for how in ("save", "signal", "timer"):
        outcomes: set[bool] = set()

        def scenario(moment: Moment, how: str = how, outcomes: set[bool] = outcomes) -> None:
            backend = InterferingBackend()
            store, other = timed(clock, backend), timed(clock, backend)
            desk = desk_of(other)
            clock.now += 100 * DAY
            desk.metadata["used"] = True
            acted: list[bool] = []

            def act() -> None:
                try:
                    if how == "save":
                        desk.save()
                    elif how == "signal":
                        other.agents.signal(ID, "go", 1)
                    else:
                        desk.timers.set("later", "1h")
                    acted.append(True)
                except NotFoundError:
                    assert not other.agents.exists(ID)

            with moment.interfere(backend, act):
                report = store.maintenance.delete_stale("updated<90d", kinds="agent")
            deleted = names(report) == [ID]
            outcomes.add(deleted)
            assert timed(clock, backend).agents.exists(ID) is not deleted
            assert not (acted and deleted)
            if not deleted and how == "signal":
                assert [each.value for each in store.agents.steps(ID).signals()] == [1]

        at_every_moment(scenario, at_least=1)
        assert outcomes == {True, False}, how


def test_a_session_that_is_used_meanwhile_stays(clock: Clock) -> None:
    outcomes: set[bool] = set()

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        store, other = timed(clock, backend), timed(clock, backend)
        session = other.sessions.start("visit")
        session.state["n"] = 1
        clock.now += 100 * DAY
        acted: list[bool] = []

        def act() -> None:
            if not other.sessions.list():
                return  # it was deleted already
            session.state["n"] = 2
            acted.append(True)

        with moment.interfere(backend, act):
            report = store.maintenance.delete_stale("updated<90d", kinds="session")
        deleted = names(report) == ["visit"]
        outcomes.add(deleted)
        assert not (acted and deleted)
        if not deleted:
            assert timed(clock, backend).sessions.get("visit").state["n"] == 2

    at_every_moment(scenario, at_least=1)
    assert outcomes == {True, False}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_in_the_middle(moment: Any, tmp_path: Path) -> None:
    struck = 0
    for number in range(1, 6):
        path = tmp_path / f"{number}.db"
        with holdfast.open(path) as store:
            for name in "abc":
                store.thread(name).put({"n": 1}, ttl=0.000001)
                store.thread(f"{name}␟child").put({"n": 1})

        def work(report: Callable[[str], None], path: Path = path, number: int = number) -> None:
            with holdfast.open(path) as store:
                kill_at_write(number, moment)
                store.maintenance.delete_stale()
            report("done")

        _, killed = run_in_child(work)
        struck += killed
        with holdfast.open(path) as store:
            left = set(threads(store))
            assert all((name in left) == (f"{name}␟child" in left) for name in "abc")
            assert store.maintenance.verify(level="decode").findings == []
            store.maintenance.delete_stale()
            assert threads(store) == []
            assert len([each for each in store.audit.query() if each.action == "delete"]) == 3
            assert store.audit.verify().ok
    assert struck >= 2


# Agents and sessions ------------------------------------------------------------------------------------------------


def leave_record(store: Store, id: str, key: str, record: object) -> None:
    """Leave the record of a process that ended while it waited."""
    line = StepLine(AgentLine(store._handle, id))

    async def writes(_: ScopeView) -> list[KeyWrite]:
        return [line.put(key, record)]

    run(line.write(writes))


def test_agents_that_are_at_work_stay(store: Store, clock: Clock) -> None:
    for id in ("idle", "timed", "asleep", "waits", "runs", "retries"):
        desk_of(store, id)
    later = clock.now + 200 * DAY
    store.agents.timers("timed").set("wake", "200d")
    leave_record(store, "asleep", "sleep/nap", {"due": later, "ended": ""})
    leave_record(store, "waits", "wait/answer", {"name": "answer", "deadline": later, "ended": False, "signal": None})
    waiting = StoredStep("waiting", 1, "charge", b"", b"", clock.now, "", due=later)
    leave_record(store, "retries", "step/charge", [waiting.pack()])
    clock.now += 100 * DAY
    report = store.maintenance.delete_stale("updated<90d", kinds="agent", dry_run=True)
    at_work = {
        "asleep": "the agent is at work: sleep 'nap' is not over",
        "retries": "the agent is at work: step 'charge' is not over",
        "timed": "the agent is at work: timer 'wake' is not over",
        "waits": "the agent is at work: wait 'answer' is not over",
    }
    assert (names(report), skipped(report)) == (["idle", "runs"], at_work)
    seen: list[StaleReport] = []

    def look() -> None:
        clock.now += SECOND
        seen.append(store.maintenance.delete_stale("updated<0s", kinds="agent", prefix="runs"))

    desk_of(store, "runs").once("long", look)
    assert skipped(seen[0]) == {"runs": "the agent is at work: step 'long' is running"}
    report = store.maintenance.delete_stale("updated<90d", kinds="agent")
    assert (names(report), skipped(report)) == (["idle"], at_work)
    clock.now += 200 * DAY
    left = sorted(["runs", *at_work])
    assert names(store.maintenance.delete_stale("updated<90d", kinds="agent")) == left
    assert store.agents.list() == []
    assert store.agents.unsaved() == []
    assert store.audit.verify().ok


def test_a_step_is_a_change_of_the_agent(store: Store, clock: Clock) -> None:
    desk_of(store)
    clock.now += 100 * DAY
    store.agents.signal(ID, "go")
    assert store.maintenance.delete_stale("updated<90d", kinds="agent").deleted == []
    clock.now += 100 * DAY
    store.maintenance.hold(ID, kind="agent", reason="case")
    assert skipped(store.maintenance.delete_stale("updated<90d", kinds="agent")) == {ID: "the thread is held: case"}
    store.maintenance.release(ID, kind="agent")
    assert names(store.maintenance.delete_stale("updated<90d", kinds="agent")) == [ID]


@pytest.mark.parametrize("on_end", ["keep", "archive", "delete"])
def test_sessions_go_whether_they_ended_or_not(on_end: Any, store: Store, clock: Clock) -> None:
    for id in ("open", "ended", "held"):
        store.sessions.start(id, on_end=on_end, retention="300d").state["n"] = 1
    store.sessions.end("ended")
    store.maintenance.hold("session:held", kind="session")
    clock.now += 80 * DAY
    assert store.maintenance.delete_stale("updated<90d", kinds="session").deleted == []
    store.sessions.start("new")
    clock.now += 20 * DAY
    report = store.maintenance.delete_stale("updated<90d", kinds="session", dry_run=True)
    assert (sorted(names(report)), list(skipped(report))) == (["ended", "open"], ["held"])
    assert store.maintenance.delete_stale("updated<90d", kinds="session").deleted == report.deleted
    assert [each.id for each in store.sessions.list()] == ["held", "new"]
    assert store.audit.verify().ok
    assert store.maintenance.verify().findings == []


# LangGraph ----------------------------------------------------------------------------------------------------------


class Count(TypedDict):
    n: int


def graph_on(saver: HoldfastSaver) -> Any:
    def add(state: Count) -> Count:
        return {"n": state["n"] + 1}

    inner = StateGraph(Count).add_node("add", add).add_edge(START, "add").compile(checkpointer=True)
    outer = StateGraph(Count).add_node("inner", inner).add_node("add", add)
    return outer.add_edge(START, "inner").add_edge("inner", "add").add_edge("add", END).compile(checkpointer=saver)


def test_a_saver_gives_its_threads_a_ttl(clock: Clock) -> None:
    backend = InterferingBackend()
    store = timed(clock, backend)
    graph = graph_on(HoldfastSaver(store, ttl="30d"))
    config = {"configurable": {"thread_id": "chat"}}
    assert graph.invoke({"n": 1}, config) == {"n": 3}
    assert "chat␟inner" in threads(store)
    written = ttl_writes(backend)
    assert written > 0
    graph_on(HoldfastSaver(store)).invoke({"n": 1}, {"configurable": {"thread_id": "forever"}})
    clock.now += 29 * DAY
    assert graph.invoke({"n": 5}, config) == {"n": 7}
    assert ttl_writes(backend) == written
    clock.now += 29 * DAY
    assert store.maintenance.delete_stale().deleted == []
    assert graph.get_state(config).values == {"n": 7}
    clock.now += DAY
    assert names(store.maintenance.delete_stale()) == ["chat"]
    assert threads(store) == ["forever", "forever␟inner"]
    assert graph.get_state(config).values == {}
    assert graph.invoke({"n": 1}, config) == {"n": 3}
    assert store.thread("chat").expires() == to_datetime(clock.now + 30 * DAY)
    HoldfastSaver(store).copy_thread("chat", "copy")
    assert store.thread("copy").expires() == to_datetime(clock.now + 30 * DAY)


def test_the_ttl_of_a_saver_is_checked_when_it_is_made(store: Store) -> None:
    with pytest.raises(InvalidError, match="soon"):
        HoldfastSaver(store, ttl="soon")
