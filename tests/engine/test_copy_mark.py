"""A copy to another store that does not end, and what others do with the name of the line meanwhile."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.backends.interface import Backend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import REFS, STEPS
from holdfast.engine.context import EngineContext
from holdfast.engine.copy import between_stores, row_writer, short_lines
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import LEASE, Line
from holdfast.errors import ConflictError
from holdfast.store.store import Store
from tests.engine.pruned import rows_of
from tests.servers.places import KINDS, place
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import mostly_nightly

CHAT, OTHER = Line("", "chat"), Line("", "other")


class Killed(BaseException):
    """The process that copies ends here."""


def kill() -> None:
    raise Killed


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_writer, "BATCH_ROWS", 12)
    monkeypatch.setattr(row_writer, "_JOINT_BYTES", 400)
    monkeypatch.setattr(short_lines, "_ROWS", 8)  # so that the thread is a long one, copied in many batches


def store_on(backend: Backend) -> Store:
    return Store(Engine(EngineContext(backend)), "")


def source() -> Store:
    """A thread with more rows than a batch has, a branch, a tag, a pin and large values."""
    store = store_on(MemoryBackend())
    for number in range(10):
        store.thread("chat").put({"n": number, "text": f"{number} " * 30, "large": f"{number}" * 9000})
    thread = store.thread("chat")
    thread.tag("good", at="HEAD~3")
    thread.fork("side", at="HEAD~5")
    thread.put({"n": "side"}, branch="side")
    thread.pin(at="HEAD~2", reason="evidence")
    return store


def copy(store: Store, target: Backend, *, together: bool) -> None:
    copier = StoreCopier(store._engine, Engine(EngineContext(target)))

    async def check(line: Line) -> None:
        assert line == CHAT

    run(copier.copy_together([CHAT], check=check) if together else copier.copy("", [CHAT]))


def copy_from(url: str, store: Store, target: Backend) -> None:
    """Copy from a store that has a name of its own."""

    class Named(InterferingBackend):
        @property
        def url(self) -> str:
            return url

    copy(store_on(Named(store._engine.context.stored)), target, together=True)


def check_copied(store: Store, target: Backend) -> None:
    """The thread is there as it is in the source."""
    copied = store_on(target)
    for at in ("HEAD", "good", "side"):
        assert copied.thread("chat").get(at=at).state == store.thread("chat").get(at=at).state
    assert copied.thread("chat").pins()
    assert not [row for row in rows_of(target, CHAT)[REFS.name] if row.key[2] == LEASE]
    report = copied.maintenance.verify(level="decode")
    assert report.ok, report.findings


def check_created(target: Backend) -> None:
    """A thread that somebody has just created has its own rows, and nothing else."""
    store = store_on(target)
    assert len(store.thread("chat").log(limit=100)) == 1
    assert store.thread("chat").get().state == {"n": "mine"}
    assert [each.name for each in store.thread("chat").branches()] == ["main"]
    assert not store.thread("chat").tags()
    report = store.maintenance.verify(level="decode")
    assert report.ok, report.findings
    rows = rows_of(target, CHAT)
    assert len(rows[STEPS.name]) == 1
    assert not rows[REFS.name]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("then", mostly_nightly(["put", "copy", "rename", "sweep"], daily=["put"]))
def test_a_copy_is_killed_anywhere(together: bool, then: str) -> None:
    store = source()

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        with suppress(Killed), moment.interfere(backend, kill):
            copy(store, backend, together=together)
        target = store_on(backend)
        if target.threads():
            return  # it was killed after the end
        assert target.maintenance.verify(level="decode").ok
        if then == "put":
            target.thread("chat").put({"n": "mine"})
            check_created(backend)
        elif then == "copy":
            copy(store, backend, together=together)
            check_copied(store, backend)
        elif then == "rename":
            target.thread("other").put({"n": "mine"})
            run(LineCopier(target._engine).copy({OTHER: CHAT}))
            check_created(backend)
        else:
            target.maintenance.sweep_orphans(grace=0)
            assert not any(rows_of(backend, CHAT).values())

    at_every_moment(scenario, ["apply"], at_least=4)


def test_a_copy_of_short_threads_is_killed_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied together: each of them is there as a whole or not at all, and the next copy goes on."""
    monkeypatch.setattr(between_stores, "GROUP", 3)
    store = source()
    for name in ("a", "b", "c", "d", "x", "y", "z"):
        store.thread(name).put({"n": name})
    left = set()

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        with suppress(Killed), moment.interfere(backend, kill):
            run(StoreCopier(store._engine, Engine(EngineContext(backend))).copy(""))
        target = store_on(backend)
        found = [each.thread for each in target.threads()]
        left.add(len(found))
        assert target.maintenance.verify(level="decode").ok
        assert all(target.thread(name).get().state == store.thread(name).get().state for name in found)
        run(StoreCopier(store._engine, Engine(EngineContext(backend))).copy(""))
        check_copied(store, backend)
        assert len(target.threads()) == 8

    at_every_moment(scenario, ["apply"], at_least=4)
    assert left >= {0, 3, 8}


@pytest.mark.parametrize("together", mostly_nightly([False, True], daily=[True]))
def test_somebody_creates_the_thread_during_a_copy(together: bool) -> None:
    store, created = source(), 0

    def scenario(moment: Moment) -> None:
        nonlocal created
        backend = InterferingBackend()
        target = store_on(backend)

        def act() -> None:
            if not target.threads():
                target.thread("chat").put({"n": "mine"})

        with suppress(ConflictError), moment.interfere(backend, act):
            copy(store, backend, together=together)
        if target.thread("chat").get().state == {"n": "mine"}:
            created += 1
            check_created(backend)
        else:
            check_copied(store, backend)

    at_every_moment(scenario, at_least=4)
    assert created >= 4


def test_a_copy_begins_or_ends_or_is_deleted_while_somebody_creates_the_thread() -> None:
    """The reads of a first save are of before, and its batch of after."""
    store = source()

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()

        def act() -> None:
            killer = InterferingBackend(backend)
            with suppress(Killed), killer.interfere(kill, at=2):
                copy(store, killer, together=True)

        with moment.interfere(backend, act):
            store_on(backend).thread("chat").put({"n": "mine"})
        check_created(backend)

    at_every_moment(scenario)


def test_a_thread_is_deleted_during_its_copy() -> None:
    """Deleting removes rows that a copy has just written: it must not end without them."""
    store = source()

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        with suppress(ConflictError), moment.interfere(backend, lambda: store_on(backend).thread("chat").delete()):
            copy(store, backend, together=True)
        if store_on(backend).threads():
            check_copied(store, backend)

    at_every_moment(scenario, at_least=4)


def test_two_copies_of_different_stores() -> None:
    """One of them ends, with its own rows, and the other has a conflict."""
    one, other = source(), store_on(MemoryBackend())
    other.thread("chat").put({"n": "other"})
    ends = set()

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()

        def act() -> None:
            with suppress(ConflictError):
                copy_from("other://", other, backend)

        with suppress(ConflictError), moment.interfere(backend, act):
            copy_from("one://", one, backend)
        state = store_on(backend).thread("chat").get().state
        ends.add(state["n"])
        if state["n"] == "other":
            assert store_on(backend).maintenance.verify(level="decode").ok
            assert len(rows_of(backend, CHAT)[STEPS.name]) == 1
        else:
            check_copied(one, backend)

    at_every_moment(scenario, at_least=4)
    assert ends == {"other", 9}


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=["sqlite"]))
def test_on_every_store(kind: str, tmp_path: Path) -> None:
    store, url = source(), place(kind, tmp_path)
    backend = run(backend_for(url).open(url))
    try:
        killer = InterferingBackend(backend)
        with suppress(Killed), killer.interfere(kill, at=2):
            copy(store, killer, together=True)
        assert rows_of(backend, CHAT)[STEPS.name] or rows_of(backend, CHAT)[REFS.name]
        store_on(backend).thread("chat").put({"n": "mine"})
        check_created(backend)
    finally:
        run(backend.close())
