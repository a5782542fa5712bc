"""A session whose time to live is over has ended for every reader and writer, whether it was collected or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import ConflictError, DeniedError, NotFoundError
from holdfast.state.scope_state import State
from holdfast.store.store import Store
from tests.servers.places import KINDS, place
from tests.state.kit import Clock, Place, store_on
from tests.support.nightly import mostly_nightly


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def store(backend: MemoryBackend, clock: Clock) -> Store:
    return store_on(backend, clock)


def begin(store: Store, on_end: Any = "delete", ttl: int = 60) -> tuple[State, State]:
    """A session with state of its own and state inside it."""
    session = store.sessions.start("s", user="u", ttl=ttl, on_end=on_end)
    inside = store.state(user="u", session="s", agent="x")
    session.state.batch({"k": 1, "n": 2})
    inside["k"] = 1
    return session.state, inside


READS: dict[str, Callable[[Store, State], Any]] = {
    "get": lambda _, state: state.get("k"),
    "in": lambda _, state: "k" in state,
    "item": lambda _, state: state.item("k"),
    "keys": lambda _, state: list(state),
    "items": lambda _, state: list(state.list_items()),
    "len": lambda _, state: len(state),
    "copy": lambda store, state: state.copy_to(store.state(agent="copy"), on_conflict="overwrite"),
    "diff": lambda _, state: state.diff(0).patch(),
    "transaction": lambda store, state: store.transaction(lambda tx: tx.state(state.scope).get("k")),
    "read in a transaction that writes": lambda store, state: store.transaction(
        lambda tx: [tx.state(agent="other").set("k", 1), list(tx.state(state.scope))][1]
    ),
}

PAST: dict[str, Callable[[Store, State], Any]] = {
    "history": lambda _, state: list(state.history()),
    "at": lambda _, state: state.at(1),
    "get_at": lambda _, state: state.get_at("k", 1),
    "scopes": lambda store, _: list(store.scopes("user:u")),
    "past diff": lambda _, state: state.diff(0, 1).patch(),
}

WRITES: dict[str, Callable[[Store, State], Any]] = {
    "set": lambda _, state: state.set("k", 2),
    "patch": lambda _, state: state.patch("p", {"a": 1}),
    "increment": lambda _, state: state.increment("n"),
    "delete": lambda _, state: state.delete("k"),
    "clear": lambda _, state: state.clear(),
    "copy to": lambda store, state: store.state(agent="a").copy_to(state, on_conflict="overwrite"),
    "change": lambda _, state: state.change("n", lambda value: pytest.fail(f"was told {value}") if value == 99 else 99),
    "transaction": lambda store, state: store.transaction(lambda tx: tx.state(state.scope).set("k", 2)),
    "touch": lambda store, _: store.sessions.touch("s"),
}


def result(read: Callable[[Store, State], Any], store: Store, state: State) -> Any:
    try:
        return read(store, state) or None
    except NotFoundError:
        return None


@pytest.mark.parametrize("other", [True, False], ids=["another process", "the same"])
@pytest.mark.parametrize("on_end", ["delete", "archive", "keep"])
def test_readers_find_what_they_find_after_the_collection(
    store: Store, backend: MemoryBackend, clock: Clock, on_end: str, other: bool
) -> None:
    for state in begin(store, on_end):
        assert [name for name, read in READS.items() if result(read, store, state) is None] == []
    reader = store_on(backend, clock) if other else store
    states = [reader.state(state.scope) for state in (store.state(user="u", session="s"), begin_inside(store))]
    clock.sleep(59)
    assert all(result(read, reader, state) is not None for state in states for read in (READS["get"], READS["items"]))
    clock.sleep(1)
    before = [{name: result(read, reader, state) for name, read in {**READS, **PAST}.items()} for state in states]
    assert store.sessions.get("s").status == "expired"
    assert store.sessions.collect().ended == 1
    after = [{name: result(read, reader, state) for name, read in {**READS, **PAST}.items()} for state in states]
    if on_end == "archive":  # which is a step of the history
        for each in (*before, *after):
            for name in ("history", "scopes"):
                del each[name]
    assert before == after
    if on_end != "keep":
        assert all(value is None for each in before for name, value in each.items() if name in READS)


def begin_inside(store: Store) -> State:
    return store.state(user="u", session="s", agent="x")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("on_end", ["delete", "archive", "keep"])
def test_writers_are_refused(store: Store, backend: MemoryBackend, clock: Clock, write: str, on_end: str) -> None:
    store.state(agent="a")["k"] = 1
    other = store_on(backend, clock)
    own, inside = begin(store, on_end)
    for state in (own, inside):
        if write != "touch":
            WRITES[write](other, other.state(state.scope))  # also what was cached then is no way in
        own.set("k", 1)
    clock.sleep(60)
    versions = [info.version for info in store.scopes()]
    for each in (store, other):
        for state in (own, inside):
            with pytest.raises(DeniedError) as refused:
                WRITES[write](each, each.state(state.scope))
            assert refused.value.code == "session-ended"
    assert [info.version for info in store.scopes()] == versions


def test_a_session_that_cannot_be_collected_is_over_all_the_same(store: Store, clock: Clock) -> None:
    own, _ = begin(store)

    @store.hooks.before("session.expire")
    def never(_: Any) -> None:
        raise holdfast.errors.VetoError("not yet")

    clock.sleep(60)
    assert store.sessions.collect().held == 1
    assert dict(own) == {}
    with pytest.raises(DeniedError):
        own["k"] = 1


def test_resuming_begins_a_new_time(store: Store, backend: MemoryBackend, clock: Clock) -> None:
    own, inside = begin(store, "archive")
    other = store_on(backend, clock)
    assert other.state(own.scope)["k"] == 1
    clock.sleep(60)
    store.sessions.resume("s")
    for each in (own, inside, other.state(own.scope), other.state(inside.scope)):
        assert each["k"] == 1
        each["k"] = 1
    clock.sleep(59)
    assert own["k"] == 1
    clock.sleep(1)
    assert "k" not in own
    store.sessions.delete("s")
    own["k"] = 2  # the scope is an ordinary one again
    assert other.state(own.scope)["k"] == 2
    store.sessions.start("s", user="u", ttl=10)
    clock.sleep(10)
    assert "k" not in other.state(own.scope)


def test_idle_sessions_come_back_and_others_have_no_limit(store: Store, clock: Clock) -> None:
    idle = store.sessions.start("idle", idle=60).state
    free = store.sessions.start("free").state
    loose = store.state(session="never started")
    for state in (idle, free, loose):
        state["k"] = 1
    clock.sleep(10**6)
    for state in (idle, free, loose):
        assert state["k"] == 1
        state["k"] = 2


def test_a_transaction_conflicts_with_the_end(store: Store, clock: Clock) -> None:
    own, _ = begin(store)

    def too_long() -> None:
        with store.transaction() as transaction:
            assert transaction.state(own.scope)["k"] == 1
            transaction.state(agent="a")["k"] = 1
            clock.sleep(60)

    with pytest.raises(ConflictError) as stale:
        too_long()
    assert stale.value.code == "version-mismatch"
    assert dict(store.state(agent="a")) == {}


def test_a_watch_reports_the_end(store: Store, clock: Clock) -> None:
    own, _ = begin(store)
    with own.watch(cursor="") as watch, store.state(user="u").watch(nested=True) as outside:
        assert [change.key for change in watch.poll()] == ["k", "n"]
        own["k"] = 2
        assert [change.key for change in outside.poll()] == ["k"]
        own["k"] = 3
        clock.sleep(60)
        assert [change.action for change in watch.poll()] == ["deleted"]
        assert [(str(change.scope), change.action) for change in outside.poll()] == [
            ("user:u/session:s", "deleted"),
            ("user:u/session:s/agent:x", "deleted"),
        ]
        store.sessions.collect()
        assert watch.poll() == outside.poll() == []
    with own.watch() as watch:
        assert watch.poll() == []


def test_documents_in_a_session(store: Store, clock: Clock) -> None:
    begin(store)
    plan = store.sharing.document("plan", user="u", session="s")
    plan.save({"n": 1}, 0)
    clock.sleep(60)
    assert plan.read().version == 0
    with pytest.raises(DeniedError):
        plan.save({"n": 2}, 0)


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=("sqlite", "file", "postgres")))
def test_limits_on_every_store(kind: str, tmp_path: Path) -> None:
    where = Place(place(kind, tmp_path))
    try:
        one, two = where.open(), where.open()
        own, inside = begin(one, "archive")
        assert two.state(own.scope)["k"] == 1
        two.state(inside.scope)["k"] = 1
        assert not one.maintenance.verify().findings
        where.clock.sleep(60)
        for state in (own, inside, two.state(own.scope), two.state(inside.scope)):
            assert dict(state.items()) == {}
            with pytest.raises(DeniedError):
                state["k"] = 2
        two.sessions.resume("s")
        for state in (own, inside, two.state(own.scope), two.state(inside.scope)):
            assert state["k"] == 1
            state["k"] = 1
        assert not one.maintenance.verify().findings
        assert one.maintenance.sweep_orphans(dry_run=True).rows == 0
    finally:
        where.close()
