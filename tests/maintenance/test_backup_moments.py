"""Recovery to a moment between two backups, where something was removed meanwhile."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.agents import PersistentAgent
from holdfast.backends.interface import Delete
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import REFS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, NotFoundError
from holdfast.maintenance.backup.line_history import Change, HistoryEvent, LineHistory
from tests.interfaces.cli import kit
from tests.maintenance.kit import SECOND, Clock, timed


class Desk(PersistentAgent, name="moments-desk"):
    n: int = 0


def save(store: Store, kind: str, number: int) -> None:
    match kind:
        case "thread":
            store.thread("chat").put({"n": number})
        case "scope":
            store.state(agent="researcher")["n"] = number
        case "agent":
            desk = store.agents.restore("desk", Desk) if number else Desk().attach(store, "desk")
            desk.n = number
            desk.save()


def read(store: Store, kind: str) -> int:
    match kind:
        case "thread":
            return int(store.thread("chat").get().state["n"])
        case "scope":
            return int(store.state(agent="researcher")["n"])
    return store.agents.restore("desk", Desk).n


NAMES = {"thread": "chat", "scope": "researcher", "agent": "desk"}


def steps_of(store: Store, kind: str) -> int:
    (found,) = store.threads(kind=kind).all()  # type: ignore[arg-type]
    return found.steps


@pytest.mark.parametrize("kind", ["thread", "scope", "agent"])
def test_what_was_pruned_since_returns(kind: str, clock: Clock, repository: Path) -> None:
    """Steps 0 to 4, a backup, steps 5 to 7, a prune, and a backup."""
    store, times = timed(clock), list[int]()
    for number in range(8):
        clock.now += SECOND
        save(store, kind, number)
        times.append(clock.now)
        if number == 4:
            clock.now += SECOND
            store.backups(repository).create()
    clock.now += SECOND
    store.maintenance.prune(kinds=kind, keep_last=1)  # type: ignore[arg-type]
    pruned = clock.now
    clock.now += SECOND
    store.backups(repository).create()
    for time, value, steps, known_at in (
        (times[4] + SECOND, 4, 5, None),
        (times[5], 4, 5, times[5] - 1),
        (times[6], 4, 5, times[5] - 1),
        (times[7], 7, 6, None),
        (pruned, 7, 6, None),
    ):
        with holdfast.open("memory://") as new:
            report = new.backups(repository).restore(to_datetime(time))
            assert (read(new, kind), steps_of(new, kind)) == (value, steps)
            assert [each.known_at for each in report.lines if each.kind == kind] == [
                None if known_at is None else to_datetime(known_at)
            ]
            assert report.exact is (known_at is None)
            assert new.maintenance.verify(level="decode").ok
        with holdfast.open("memory://") as new:
            if known_at is None:
                new.backups(repository).restore(to_datetime(time), exact=True)
                continue
            with pytest.raises(NotFoundError) as error:
                new.backups(repository).restore(to_datetime(time), exact=True)
            assert error.value.code == "not-exact"
            assert not list(new.threads(kind="all").all()), "nothing is restored"


def test_a_long_history_that_was_pruned_is_not_gone_through_step_by_step(
    clock: Clock, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, look = list[int](), LineHistory._lost_ends

    def counted(self: LineHistory, time: int) -> list[int]:
        looked.append(time)
        return look(self, time)

    monkeypatch.setattr(LineHistory, "_lost_ends", counted)
    store = timed(clock)
    store.backups(repository).create()
    for number in range(100):
        clock.now += SECOND
        store.thread("chat").put({"n": number})
    moment = clock.now - SECOND
    store.maintenance.prune(keep_last=1)
    clock.now += SECOND
    store.backups(repository).create()
    with holdfast.open("memory://") as new:
        report = new.backups(repository).restore(to_datetime(moment), dry_run=True)
    assert not report.exact
    assert 0 < len(looked) < 20


def test_many_tags_and_prunes_between_two_backups_are_not_gone_through_for_each_step(
    clock: Clock, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, asked, look, ask = list[int](), list[int](), LineHistory._lost_ends, HistoryEvent.effect

    def counted(self: LineHistory, time: int) -> list[int]:
        looked.append(time)
        return look(self, time)

    def counted_effect(self: HistoryEvent, place: tuple[int, int], time: int) -> Change | None:
        asked.append(time)
        return ask(self, place, time)

    monkeypatch.setattr(LineHistory, "_lost_ends", counted)
    monkeypatch.setattr(HistoryEvent, "effect", counted_effect)
    store, steps, moment = timed(clock), 100, 0
    store.thread("chat").put({"n": -1})
    store.backups(repository).create()
    for number in range(steps):
        clock.now += SECOND
        store.thread("chat").put({"n": number})
        moment = clock.now if number == steps - 15 else moment
        clock.now += SECOND
        store.thread("chat").tag("current", move=bool(number))
        if number % 20 == 19:
            store.maintenance.prune(keep_last=2)
    store.backups(repository).create()
    with holdfast.open("memory://") as new:
        report = new.backups(repository).restore(to_datetime(moment))
        assert new.thread("chat").get().state == {"n": -1}
    assert not report.exact
    assert 0 < len(looked) < 20
    assert len(asked) < 5 * steps


def test_hashes_stay_as_they_were(clock: Clock, repository: Path) -> None:
    store = timed(clock)
    ids = [store.thread("chat").put({"n": number}).id for number in range(40)]
    hashes = [store.thread("chat").get(at=id).hash for id in ids]
    clock.now += SECOND
    store.backups(repository).create()
    clock.now += SECOND
    later = store.thread("chat").put({"n": 40})
    clock.now += SECOND
    store.maintenance.prune(["chat"], keep_last=1)
    store.backups(repository).create()
    with holdfast.open("memory://") as new:
        new.backups(repository).restore(to_datetime(clock.now - SECOND))
        assert [new.thread("chat").get(at=id).hash for id in (*ids, later.id)] == [*hashes, later.hash]
        assert [new.thread("chat").get(at=id).state["n"] for id in ids] == list(range(40))


def removed(store: Store, clock: Clock, repository: Path) -> int:
    """Names and a branch that are removed between two backups. Returns a moment before that."""
    thread = store.thread("chat")
    for number in range(3):
        clock.now += SECOND
        thread.put({"n": number})
    thread.tag("first", at="HEAD~2")
    thread.tag("moved", at="HEAD~2")
    thread.pin(reason="kept")
    thread.fork("side", at="HEAD~1")
    thread.put({"n": "side"}, branch="side")
    clock.now += SECOND
    store.backups(repository).create()
    clock.now += SECOND
    moment = clock.now
    clock.now += SECOND
    thread.untag("first")
    thread.tag("moved", move=True)
    thread.unpin()
    thread.delete_branch("side", force=True)
    clock.now += SECOND
    store.backups(repository).create()
    return moment


def names_of(store: Store) -> tuple[Any, ...]:
    thread = store.thread("chat")
    tags = {tag: store.thread("chat").get(at=id).state["n"] for tag, id in thread.tags().items()}
    return tags, [each.reason for each in thread.pins()], [each.name for each in thread.branches()]


@pytest.mark.parametrize("encryption", [None, Encryption(LocalKeys(b"1" * 32))], ids=["plain", "encrypted"])
def test_what_was_removed_since_is_there_and_what_was_removed_before_is_not(
    encryption: Encryption | None, clock: Clock, repository: Path, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "agents.db", encryption=encryption) as opened:
        store = Store(Engine(EngineContext(opened._engine.context.backend, clock=clock)), "")
        moment = removed(store, clock, repository)
        for time, names in (
            (moment, ({"first": 0, "moved": 0}, ["kept"], ["main", "side"])),
            (moment + SECOND, ({"moved": 2}, [], ["main"])),
        ):
            with holdfast.open(tmp_path / f"{time}.db", encryption=encryption) as new:
                assert new.backups(repository).restore(to_datetime(time), exact=True).exact
                assert names_of(new) == names
                assert new.maintenance.verify(level="decode").ok


def test_the_owner_s_removals_are_recorded_with_what_was_there(clock: Clock, repository: Path) -> None:
    store = timed(clock)
    removed(store, clock, repository)
    found = {each.action: each.detail["removed"]["chat"] for each in store.audit.query(thread="chat")}
    assert found.keys() == {"untag", "tag", "unpin", "delete-branch"}
    assert found["untag"]["refs"][0][:2] == ("tag", "first")
    assert found["delete-branch"]["branches"][0][-1] == "side"
    rows = len(store.audit.query())
    store.thread("chat").untag("first")
    store.thread("chat").tag("new")
    assert len(store.audit.query()) == rows, "they replace nothing"


def test_without_a_record_it_comes_back_and_is_not_exact(clock: Clock, repository: Path) -> None:
    store = timed(clock)
    store.thread("chat").put({"n": 1})
    store.thread("chat").tag("first")
    clock.now += SECOND
    store.backups(repository).create()
    run(store._engine.context.backend.apply([Delete(REFS, ("", "chat", "tag", "first"))]))
    clock.now += SECOND
    store.thread("chat").put({"n": 2})
    clock.now += SECOND
    store.backups(repository).create()
    with holdfast.open("memory://") as new:
        report = new.backups(repository).restore(to_datetime(clock.now - SECOND))
        assert not report.exact
        assert new.thread("chat").get(at="first").state == {"n": 1}
        assert new.thread("chat").get().state == {"n": 2}


def test_a_deleted_thread_is_gone_after_its_deletion(clock: Clock, repository: Path) -> None:
    store = timed(clock)
    store.thread("chat").put({"n": 1})
    store.thread("other").put({"n": 1})
    clock.now += SECOND
    store.backups(repository).create()
    clock.now += SECOND
    store.thread("chat").delete()
    clock.now += SECOND
    store.thread("short").put({"n": 1})
    clock.now += SECOND
    store.thread("short").delete()
    clock.now += SECOND
    store.backups(repository).create()
    for back, threads, unknown in ((4, ["chat", "other"], []), (3, ["other"], []), (2, ["other"], ["short"])):
        with holdfast.open("memory://") as new:
            report = new.backups(repository).restore(to_datetime(clock.now - back * SECOND + SECOND // 2))
            assert [each.thread for each in new.threads().all()] == threads
            assert [each.name for each in report.lines if each.action == "unknown"] == unknown
            assert report.exact is not bool(unknown)


KEYS = Encryption(LocalKeys(b"1" * 32))


@pytest.mark.parametrize("encryption", [None, KEYS], ids=["plain", "encrypted"])
def test_an_erasure_leaves_the_moments_of_others(
    encryption: Encryption | None, clock: Clock, repository: Path, tmp_path: Path
) -> None:
    """A thread of two persons: saves, a backup, a save, a backup, a save, the erasure of one of them, and a backup."""
    with holdfast.open(tmp_path / "agents.db", encryption=encryption) as opened:
        store = Store(Engine(EngineContext(opened._engine.context.backend, clock=clock)), "")
        moments = list[int]()
        states: list[tuple[dict[str, Any], str]] = [
            ({"address": "12 Harbour Street, Kiel"}, "bob"),
            ({"address": "12 Harbour Street, Kiel", "n": 1}, "al"),
            ({"address": "12 Harbour Street, Kiel", "n": 2}, "al"),
            ({"address": "12 Harbour Street, Kiel", "n": 3}, "al"),
        ]
        for number, (state, subject) in enumerate(states):
            clock.now += SECOND
            store.thread("chat").put(state, metadata={"subject": subject})
            if number == 1:
                store.thread("chat").tag("first")
            if number in (1, 2):
                clock.now += SECOND
                store.backups(repository).create()
                clock.now += SECOND
            moments.append(clock.now)
        clock.now += SECOND
        store.erasure.erase("bob")
        moments.append(clock.now)
        clock.now += SECOND
        store.backups(repository).create()
    # The step before the erasure is in no backup: it is restored as of the moment before it.
    for time, n, is_exact in zip(moments[1:], (1, 2, 2, 3), (True, True, False, True), strict=True):
        with holdfast.open("memory://", encryption=encryption) as new:
            report = new.backups(repository).restore(to_datetime(time))
            assert (new.thread("chat").get().state, report.exact) == ({"n": n}, is_exact)
            found = [new.thread("chat").get(at=each.id).state for each in new.thread("chat").log()]
            assert not any("address" in each for each in found)
            assert new.maintenance.verify(level="decode").ok


@pytest.mark.parametrize("encryption", [None, KEYS], ids=["plain", "encrypted"])
def test_a_name_that_is_used_again_after_the_next_backup(
    encryption: Encryption | None, clock: Clock, repository: Path, tmp_path: Path
) -> None:
    """In an encrypted store, it has a key there that neither of the backups around the moment has."""
    with holdfast.open(tmp_path / "agents.db", encryption=encryption) as opened:
        store = Store(Engine(EngineContext(opened._engine.context.backend, clock=clock)), "")
        store.thread("base").put({"n": 0})
        store.backups(repository).create()
        clock.now += SECOND
        store.thread("chat").put({"n": 1})
        moment = clock.now
        clock.now += SECOND
        store.thread("chat").delete()
        for number in (2, 3):
            clock.now += SECOND
            store.backups(repository).create()
            clock.now += SECOND
            store.thread("chat").put({"n": number})
        clock.now += SECOND
        store.backups(repository).create()
    with holdfast.open("memory://", encryption=encryption) as new:
        report = new.backups(repository).restore(to_datetime(moment))
        assert [each.name for each in report.lines if each.action == "unknown"] == ["chat"]
        assert [each.thread for each in new.threads()] == ["base"]


def test_a_thread_of_which_no_state_is_known_is_not_there(repository: Path) -> None:
    """Time passes between the creation of a line and its first step."""
    times = count(Clock().now, SECOND)
    store, moments = timed(lambda: next(times)), list[int]()
    store.thread("base").put({"n": 0})
    store.backups(repository).create()
    for number in range(4):
        store.thread("chat").append("numbers", number)
        moments.append(next(times))
    store.maintenance.prune(["chat"], keep_last=2)
    store.backups(repository).create()
    with holdfast.open("memory://") as new:
        report = new.backups(repository).restore(to_datetime(moments[1]))
        assert [each.name for each in report.lines if each.action == "unknown"] == ["chat"]
        assert [each.thread for each in new.threads()] == ["base"]


def test_a_moment_at_which_a_store_was_empty(clock: Clock, repository: Path) -> None:
    store = timed(clock)
    store.thread("chat").put({"n": 1})
    store.backups(repository).create()
    clock.now += SECOND
    store.thread("chat").delete()
    moment = clock.now
    clock.now += SECOND
    store.thread("other").put({"n": 1})
    clock.now += SECOND
    store.backups(repository).create()
    with holdfast.open("memory://") as new:
        assert new.backups(repository).restore(to_datetime(moment), exact=True).exact
        assert not new.threads()


@pytest.mark.parametrize("how", ["import", "restore"])
def test_what_came_from_elsewhere_is_there_since_then(how: str, clock: Clock, repository: Path, tmp_path: Path) -> None:
    store = timed(clock)
    store.thread("chat").put({"n": 1})
    store.thread("other").put({"n": 1})
    made = store.backups(repository).create()
    store.maintenance.export(tmp_path / "chat.jsonl", threads=["chat"])
    clock.now += SECOND
    store.thread("chat").delete()
    clock.now += SECOND
    store.backups(repository).create()
    clock.now += SECOND
    moment = clock.now
    clock.now += SECOND
    if how == "import":
        store.maintenance.import_(tmp_path / "chat.jsonl")
    else:
        store.backups(repository).restore(made.id, threads=["chat"])
    clock.now += SECOND
    store.backups(repository).create()
    for time, threads in ((moment, ["other"]), (moment + SECOND, ["chat", "other"])):
        with holdfast.open("memory://") as new:
            assert new.backups(repository).restore(to_datetime(time), exact=True).exact
            assert [each.thread for each in new.threads().all()] == threads


@pytest.mark.parametrize("encryption", [KEYS, Encryption(LocalKeys(b"1" * 32), hide_names=True)], ids=["", "hidden"])
def test_a_thread_that_came_back_has_two_keys_of_the_same_number(
    encryption: Encryption, clock: Clock, repository: Path, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "agents.db", encryption=encryption) as opened:
        store = Store(Engine(EngineContext(opened._engine.context.backend, clock=clock)), "")
        store.thread("chat").put({"n": 1})
        made = store.backups(repository).create()
        moments = [clock.now]
        clock.now += SECOND
        store.thread("chat").delete()
        clock.now += SECOND
        store.backups(repository).restore(made.id)
        moments.append(clock.now)
        clock.now += SECOND
        store.thread("chat").put({"n": 2})
        clock.now += SECOND
        store.backups(repository).create()
    for time, n in zip((*moments, moments[-1] + SECOND), (1, 1, 2), strict=True):
        with holdfast.open("memory://", encryption=encryption) as new:
            assert new.backups(repository).restore(to_datetime(time), exact=True).exact
            assert new.thread("chat").get().state == {"n": n}


@pytest.mark.parametrize("encryption", [None, KEYS], ids=["plain", "encrypted"])
def test_what_came_back_and_went_again_is_as_an_earlier_backup_has_it(
    encryption: Encryption | None, clock: Clock, repository: Path, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "agents.db", encryption=encryption) as opened:
        store = Store(Engine(EngineContext(opened._engine.context.backend, clock=clock)), "")
        store.thread("other").put({"n": 0})
        store.thread("chat").put({"n": 1}, tag="first")
        made = store.backups(repository).create()
        clock.now += SECOND
        store.thread("chat").put({"n": 2}, tag="last")
        clock.now += SECOND
        store.backups(repository).create()
        clock.now += SECOND
        store.thread("chat").delete()
        clock.now += SECOND
        store.backups(repository).create()
        clock.now += SECOND
        store.backups(repository).restore(made.id, threads=["chat"])
        moment = clock.now
        clock.now += SECOND
        store.thread("chat").tag("second")
        clock.now += SECOND
        store.thread("chat").delete()
        clock.now += SECOND
        store.backups(repository).create()
    for time, tags in ((moment, {"first"}), (moment + SECOND, {"first", "second"})):
        with holdfast.open("memory://", encryption=encryption) as new:
            assert new.backups(repository).restore(to_datetime(time), exact=True).exact
            assert new.thread("chat").get().state == {"n": 1}
            assert new.thread("chat").tags().keys() == tags
            assert [each.steps for each in new.threads()] == [1, 1]
            assert new.maintenance.verify(level="decode").ok


def test_what_came_back_is_as_any_earlier_backup_has_it(clock: Clock, repository: Path, tmp_path: Path) -> None:
    """The first backup has what came back; the one after it has only the stub of it."""
    store = timed(clock)
    store.thread("other").put({"n": 0})
    store.thread("chat").put({"n": 1})
    store.maintenance.export(tmp_path / "chat.jsonl", threads=["chat"])
    store.backups(repository).create()
    clock.now += SECOND
    store.thread("chat").put({"n": 2})
    store.maintenance.prune(["chat"], keep_last=1)
    clock.now += SECOND
    store.backups(repository).create()
    store.thread("chat").delete()
    clock.now += SECOND
    store.backups(repository).create()
    clock.now += SECOND
    store.maintenance.import_(tmp_path / "chat.jsonl")
    moment = clock.now
    clock.now += SECOND
    store.thread("chat").delete()
    clock.now += SECOND
    store.backups(repository).create()
    with holdfast.open("memory://") as new:
        assert new.backups(repository).restore(to_datetime(moment), exact=True).exact
        assert new.thread("chat").get().state == {"n": 1}


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("how", ["line", "branch"])
def test_a_branch_that_came_back_is_not_one_that_had_its_number(
    how: str, saved: bool, clock: Clock, repository: Path, tmp_path: Path
) -> None:
    """A branch was deleted, exported before, and came back; meanwhile there was another one of the same number."""
    store, moments = timed(clock), list[int]()

    def wait() -> None:
        moments.append(clock.now)
        clock.now += SECOND

    chat = store.thread("chat")
    store.thread("other").put({"n": 0})
    chat.put({"n": 1})
    chat.fork("draft")
    clock.now += SECOND
    chat.put({"n": 2}, branch="draft")
    store.maintenance.export(tmp_path / "chat.jsonl", threads=["chat"])
    store.backups(repository).create()
    clock.now += SECOND
    chat.delete_branch("draft", force=True)
    clock.now += SECOND
    store.backups(repository).create()
    wait()
    chat.fork("draft")
    wait()
    if saved:
        chat.put({"n": 3}, branch="draft")
    wait()
    if how == "branch":
        chat.delete_branch("draft", force=True)
        wait()
    chat.delete()
    wait()
    store.maintenance.import_(tmp_path / "chat.jsonl")
    wait()
    store.backups(repository).create()
    for time in moments:
        with holdfast.open("memory://") as new:
            report = new.backups(repository).restore(to_datetime(time))
            assert report.exact is not (saved and time == moments[2]), "no backup has seen the other one"
            if time == moments[-2]:
                assert [each.thread for each in new.threads().all()] == ["other"]
                continue
            thread = new.thread("chat")
            found = sorted(thread.get(at=each.id).state["n"] for each in thread.log(limit=10))
            assert found == ([1, 2] if time == moments[-1] else [1])


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("how", ["import", "copy"])
def test_steps_that_came_from_elsewhere_are_there_since_then(
    how: str, archived: bool, clock: Clock, repository: Path, tmp_path: Path
) -> None:
    source, store, started = timed(clock), timed(clock), clock.now
    source.thread("chat").put({"n": 1})
    source.thread("old").put({"n": 1})
    source.maintenance.copy_to(store, threads=["chat"])
    source.thread("chat").put({"n": 2})
    clock.now += SECOND
    store.thread("own").put({"n": 1})
    store.backups(repository).create()
    clock.now += SECOND
    moment = clock.now
    clock.now += SECOND
    if how == "import":
        source.maintenance.export(tmp_path / "threads.jsonl")
        store.maintenance.import_(tmp_path / "threads.jsonl")
    else:
        source.maintenance.copy_to(store, threads=["chat", "old"])
    clock.now += SECOND
    if archived:
        store.audit.archive(tmp_path / "audit.jsonl", older_than=0)
        assert store.audit.verify().ok
    store.backups(repository).create()
    clock.now += SECOND
    store.audit.archive(tmp_path / "rest.jsonl", older_than=0)
    for time, n, threads in ((moment, 1, ["chat", "own"]), (moment + SECOND, 2, ["chat", "old", "own"])):
        with holdfast.open("memory://") as new:
            assert new.backups(repository).restore(to_datetime(time), exact=True).exact
            assert [each.thread for each in new.threads().all()] == threads
            assert new.thread("chat").get().state == {"n": n}
    assert started < moment


def test_a_mirror_has_the_audit_of_its_source_though_it_is_backed_up(repository: Path) -> None:
    with holdfast.open("memory://") as source, holdfast.open("memory://") as mirror:
        source.thread("chat").put({"n": 1})
        source.thread("gone").put({"n": 1})
        source.thread("gone").delete()
        source.maintenance.copy_to(mirror)
        mirror.backups(repository).create()
        source.thread("chat").put({"n": 2})
        assert not source.maintenance.copy_to(mirror).audit_left_out
        assert [each.action for each in mirror.audit.query()] == ["delete"]


def test_a_drill_proves_a_moment_and_finds_one_that_is_not(
    clock: Clock, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = timed(clock)
    store.thread("chat").put({"n": 1})
    assert store.backups(repository).create().id
    first = store.backups(repository).drill()
    assert first.ok
    assert first.moment is None, "there is no backup before it"
    clock.now += SECOND
    store.thread("chat").put({"n": 2})
    clock.now += SECOND
    store.maintenance.prune(["chat"], keep_last=1)
    clock.now += 10**6 * SECOND
    store.backups(repository).create()
    report = store.backups(repository).drill()
    assert report.ok, report.findings
    assert report.moment is not None
    from holdfast.maintenance.backup.line_history import LineHistory

    at = LineHistory.at
    monkeypatch.setattr(LineHistory, "at", lambda self, time, codec: at(self, time - 10**7 * SECOND, codec))
    broken = store.backups(repository).drill()
    assert any("is missing" in each for each in broken.findings), broken.findings


def test_a_stale_agent_is_refused_as_a_thread_is(clock: Clock, repository: Path) -> None:
    for on_conflict in ("raise", "merge", "overwrite"):
        store = timed(clock)
        other = Store(Engine(EngineContext(store._engine.context.stored, clock=clock)), "")
        run(other._engine.lines.generations.load(""))
        desks = [Desk().attach(each, f"desk {on_conflict}", on_conflict=on_conflict) for each in (store, other)]
        desks[0].save()
        desks[1].reload()
        made = store.backups(repository).create()
        for number, desk in enumerate(desks):
            clock.now += SECOND
            desk.reload()
            desk.n = number + 1
            desk.save()
        clock.now += SECOND
        store.backups(repository).restore(made.id, in_place=True)
        for desk in desks:
            desk.n = 9
            with pytest.raises(ConflictError) as error:
                desk.save()
            assert error.value.code == "store-restored"
        desks[0].reload()
        desks[0].n = 10
        desks[0].save()


def test_the_command_says_what_is_not_exact_and_what_is_covered(
    clock: Clock, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = timed(clock)
    store.thread("chat").put({"n": 1})
    clock.now += SECOND
    store.backups(repository).create()
    for number in (2, 3):
        clock.now += SECOND
        store.thread("chat").put({"n": number})
    moment = to_datetime(clock.now - SECOND).isoformat()
    store.maintenance.prune(["chat"], keep_last=1)
    clock.now += SECOND
    store.backups(repository).create()
    monkeypatch.setenv("HOLDFAST_BACKUPS", str(repository))
    url = f"sqlite:///{tmp_path}/new.db"
    refused = kit.run("backup", "restore", moment, "--create", "--exact", store=url)
    assert refused.code == 3
    assert "do not know all that 'chat' had" in refused.err
    result = kit.run("backup", "restore", moment, "--create", store=url)
    assert result.code == 6
    assert "chat is not exact" in result.err
    assert "Every moment from" in kit.run("backup", "list", store=url).err
    late = kit.run("backup", "restore", "2027-01-01T00:00:00Z", "--create", store=url)
    assert late.code == 3
    assert "The last moment that can be restored is" in late.err
