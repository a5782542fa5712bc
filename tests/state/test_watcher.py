"""Watching scopes: each change is told once, in order, whoever made it, and also after a restart."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

import holdfast
from holdfast import MISSING, Store
from holdfast.backends.interface import Delete, Get, Put, Query, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.engine.guard import UNCONDITIONAL, Guard, Permit
from holdfast.engine.model.scopes import Scope
from holdfast.engine.rewrite.rewriter import RewritePlan
from holdfast.engine.row_format import StepRef
from holdfast.errors import DeniedError, InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.state.scope_state import State
from holdfast.state.scopes import delete_expired
from holdfast.state.watcher import WatchedChange
from tests.agents.autosaved import patiently, timely
from tests.servers.places import place
from tests.state.kit import SECOND, Clock, awaited, store_on
from tests.support.counting import CountingBackend
from tests.support.interference import InterferingBackend
from tests.support.nightly import examples, mostly_nightly


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory://") as opened:
        yield opened


def told(changes: list[WatchedChange]) -> list[tuple[Any, ...]]:
    return [(change.key, change.action, change.before, change.version, change.value) for change in changes]


def test_changes_from_now_on(store: Store) -> None:
    state = store.state(agent="a")
    state["before"] = 1
    watch = state.watch()
    assert watch.poll() == []
    with holdfast.correlation("flow", cause="cause"):
        state["k"] = {"a": 1}
    state.patch("k", {"b": 2})
    state.batch({"x": 1, "y": 2}, delete=["before"])
    state["k"] = "later"
    found = watch.poll()
    assert told(found) == [
        ("k", "set", 0, 2, {"a": 1}),
        ("k", "patch", 2, 3, {"a": 1, "b": 2}),
        ("before", "delete", 1, 0, MISSING),
        ("x", "set", 0, 4, 1),
        ("y", "set", 0, 4, 2),
        ("k", "set", 3, 5, "later"),
    ]
    assert (found[0].correlation, found[0].cause) == ("flow", "cause")
    assert found[0].scope == state.scope
    assert [change.id for change in found] == [past.id for past in reversed(state.history(limit=6))]
    assert watch.poll() == []


def test_it_goes_on_after_any_change(store: Store) -> None:
    state = store.state(agent="a")
    state["a"] = 1
    state.batch({"p": 1, "q": 2, "r": 3})
    state["b"] = 2
    every = state.watch(cursor="").poll()
    assert [change.key for change in every] == ["a", "p", "q", "r", "b"]
    for number, change in enumerate(every, 1):
        assert told(state.watch(cursor=change.cursor).poll()) == told(every[number:])
    one_by_one = state.watch(cursor="")
    for number, change in enumerate(every, 1):
        assert next(one_by_one) == change
        assert told(state.watch(cursor=one_by_one.cursor).poll()) == told(every[number:])


def test_what_is_left_of_an_iteration_is_polled(store: Store) -> None:
    state = store.state(agent="a")
    state.batch({"p": 1, "q": 2, "r": 3})
    watch = state.watch(cursor="")
    assert next(watch).key == "p"
    assert [change.key for change in watch.poll()] == ["q", "r"]
    assert watch.poll() == []


def test_only_keys_that_match(store: Store) -> None:
    state = store.state(agent="a")
    watch, one = state.watch("plan/*"), state.watch("plan/a")
    state.batch({"plan/a": 1, "plan/a/b": 2, "plan": 3, "plan/c": 4})
    first, second = watch.poll()
    assert (first.key, second.key) == ("plan/a", "plan/c")
    assert [change.key for change in state.watch("plan/*", cursor=first.cursor).poll()] == ["plan/c"]
    assert [change.key for change in one.poll()] == ["plan/a"]
    state["other"] = 1
    assert watch.poll() == []
    assert state.watch("plan/*", cursor=watch.cursor).poll() == []


def test_a_delete_of_nothing_and_an_expiry_of_a_key_are_no_values(store: Store) -> None:
    state = store.state(agent="a")
    watch = state.watch()
    state.delete("nothing")
    state.set("k", "v", ttl=100)
    state.expire("k", 50)
    assert told(watch.poll()) == [("k", "set", 0, 2, "v"), ("k", "expire", 2, 3, "v")]


def test_a_large_step_says_the_versions_before(store: Store) -> None:
    state = store.state(agent="a")
    state.batch({f"k{n}": n for n in range(300)})
    watch = state.watch()
    state.batch({f"k{n}": -n for n in range(1, 300)})
    state.clear()
    changes = watch.poll()
    assert [change.before for change in changes[:299]] == [1] * 299
    assert {change.before for change in changes[299:]} == {1, 2}
    assert {past.before for past in state.history(limit=300)} == {1, 2}


def test_large_values_and_folded_states(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.state.writer.FOLD_EVERY", 3)
    state = store.state(agent="a")
    long = "words " * 50_000
    watch = state.watch()
    for n in range(8):
        state["doc"] = {"text": long, "n": n}
        state["log"] = [f"an entry of some length {m}" for m in range(30 + n)]
    store._engine.context.cache.clear()
    values = [change.value for change in watch.poll()]
    assert values[::2] == [{"text": long, "n": n} for n in range(8)]
    assert [len(value) for value in values[1::2]] == list(range(30, 38))


def test_many_steps_come_in_several_parts(store: Store) -> None:
    state = store.state(agent="a")
    for n in range(150):
        state["n"] = n
    watch, seen = state.watch(cursor=""), []
    while found := watch.poll():
        seen += found
    assert [change.value for change in seen] == list(range(150))


# Deleted, pruned ----------------------------------------------------------------------------------------------------


def test_a_scope_that_is_deleted_is_told_as_such(store: Store) -> None:
    state = store.state(agent="a")
    state["k"] = 1
    watch = state.watch()
    cursor = watch.cursor
    run(store._engine.lines.delete(store._handle.line(state.scope)))
    assert told(watch.poll()) == [("", "deleted", 0, 0, MISSING)]
    assert watch.poll() == []
    state["k"] = 2
    assert told(watch.poll()) == [("k", "set", 0, 1, 2)]
    (gone, again) = state.watch(cursor=cursor).poll()
    assert (gone.action, again.value) == ("deleted", 2)
    assert [change.value for change in state.watch(cursor=gone.cursor).poll()] == [2]


def test_what_was_pruned_is_told_as_such(store: Store) -> None:
    state = store.state(agent="a")
    state["k"] = 0
    watch = state.watch()
    for n in range(1, 6):
        state["k"] = n
    store.maintenance.prune(str(state.scope), kinds="scope", keep_last=2)
    assert told(watch.poll()) == [("", "pruned", 2, 4, MISSING), ("k", "set", 4, 5, 4), ("k", "set", 5, 6, 5)]
    gone, *rest = state.watch(cursor="").poll()
    assert (gone.action, gone.before, gone.version) == ("pruned", 1, 4)
    assert told(state.watch(cursor=gone.cursor).poll()) == told(rest)


def test_a_cursor_stays_good_when_what_was_told_is_pruned(store: Store) -> None:
    state = store.state(agent="a")
    for n in range(5):
        state["k"] = n
    watch = state.watch()
    state["k"] = "next"
    state["k"] = "last"
    store.maintenance.prune(str(state.scope), kinds="scope", keep_last=2)
    assert [change.value for change in watch.poll()] == ["next", "last"]


def test_what_is_pruned_while_it_is_told_is_told_as_such() -> None:
    backend, clock = InterferingBackend(), Clock()
    store, other = store_on(backend, clock), store_on(backend, clock)
    watch = store.state(agent="a").watch()
    state = other.state(agent="a")
    state["map"] = {f"key {n}": "a value of some length" for n in range(50)}
    state.patch("map", {"key 1": "changed"})
    state["k"] = "last"

    def of_steps(queries: Sequence[Query]) -> bool:
        return any(isinstance(query, Scan) and query.bodies and query.space is STEPS for query in queries)

    def prune() -> None:
        other.maintenance.prune(str(state.scope), kinds="scope", keep_last=1)

    with backend.interfere(prune, "read", after=True, where=of_steps):
        first = watch.poll()
    assert [(change.key, change.action) for change in first] == [("map", "set")]
    assert told(watch.poll()) == [("", "pruned", 2, 2, MISSING), ("k", "set", 0, 3, "last")]


def test_what_is_not_all_there_yet_is_told_when_it_is() -> None:
    """A store that shows a step before the one that it follows."""
    backend, clock = MemoryBackend(), Clock()
    state = store_on(backend, clock).state(agent="a")
    watch = state.watch()
    state["a"], state["b"] = 1, 2
    key = ("", state.scope.line, 0, 0)
    ((first,),) = run(backend.read([Get(STEPS, [key])]))
    run(backend.apply([Delete(STEPS, key)]))
    assert watch.poll() == []
    run(backend.apply([Put(STEPS, first)]))
    assert [change.key for change in watch.poll()] == ["a", "b"]


# Nested -------------------------------------------------------------------------------------------------------------


def test_nested_scopes_also_those_to_come(store: Store) -> None:
    outer, inner = store.state(workflow="w"), store.state(workflow="w", step="s")
    inner["old"] = 1
    store.state(workflow="w2")["other"] = 1
    watch, alone = outer.watch(nested=True), outer.watch()
    inner["k"] = 1
    outer["k"] = 2
    new = store.state(workflow="w", agent="x")
    new["k"] = 3
    store.state(workflow="w2")["other"] = 2
    found = watch.poll()
    assert {(str(change.scope), change.value) for change in found} == {
        ("workflow:w", 2),
        ("workflow:w/step:s", 1),
        ("workflow:w/agent:x", 3),
    }
    assert [change.value for change in alone.poll()] == [2]
    for number, change in enumerate(found, 1):
        rest = outer.watch(nested=True, cursor=change.cursor).poll()
        assert sorted(map(repr, rest)) == sorted(map(repr, found[number:]))
    run(store._engine.lines.delete(store._handle.line(inner.scope)))
    assert [(change.action, str(change.scope)) for change in watch.poll()] == [("deleted", "workflow:w/step:s")]
    assert watch.poll() == []


def test_everything_is_in_the_global_scope(store: Store) -> None:
    watch = store.state().watch(nested=True)
    store.thread("thread").put({"k": 1})
    store.state()["g"] = 1
    store.state(agent="a")["k"] = 2
    assert {(str(change.scope), change.key) for change in watch.poll()} == {("global", "g"), ("agent:a", "k")}


def test_only_nested_scopes_that_changed_are_read() -> None:
    counting = CountingBackend(MemoryBackend())
    with store_on(counting, Clock()) as store:
        for n in range(50):
            store.state(workflow="w", step=str(n))["k"] = n
        watch = store.state(workflow="w").watch(nested=True)
        assert watch.poll() == []  # everything is read once
        counting.reset()
        assert watch.poll() == []
        assert counting.queries == 0
        store.state(workflow="w", step="7")["k"] = "new"
        counting.reset()
        assert [change.value for change in watch.poll()] == ["new"]
        assert 0 < counting.rows_read["steps"] < 10
        assert counting.rows_read["lines"] < 10


def test_nested_scopes_are_all_read_if_the_feed_is_incomplete(store: Store) -> None:
    watch = store.state(workflow="w").watch(nested=True)
    assert watch.poll() == []
    for n in range(3):
        store.state(workflow="w", step=str(n))["k"] = n
    run(store._engine.context.backend.apply([Delete(STEPS, ("another tenant",))]))  # any line may have changed
    assert sorted(change.value for change in watch.poll()) == [0, 1, 2]


def test_keys_of_nested_scopes_that_expire_without_a_change() -> None:
    clock, counting = Clock(), CountingBackend(MemoryBackend())
    with store_on(counting, clock) as store:
        inner = store.state(workflow="w", step="s")
        watch = store.state(workflow="w").watch(nested=True)
        assert watch.poll() == []
        inner.set("k", 1, ttl=10)
        assert [change.action for change in watch.poll()] == ["set"]
        clock.sleep(9)
        counting.reset()
        assert watch.poll() == []
        assert counting.queries == 0
        clock.sleep(2)
        assert [change.action for change in watch.poll()] == ["expired"]
        assert watch.poll() == []


@pytest.mark.parametrize("on_end", ["delete", "archive"])
def test_a_nested_session_is_read_again_at_its_end_only_if_that_deletes_it(on_end: Any) -> None:
    clock, counting = Clock(), CountingBackend(MemoryBackend())
    with store_on(counting, clock) as store:
        session = store.sessions.start("s1", user="u", ttl=10, on_end=on_end)
        session.state["k"] = 1
        watch = store.state(user="u").watch(nested=True)
        assert watch.poll() == []
        clock.sleep(11)
        counting.reset()
        assert [change.action for change in watch.poll()] == (["deleted"] if on_end == "delete" else [])
        assert watch.poll() == []
        assert (counting.queries > 0) == (on_end == "delete")


def test_nested_scopes_with_more_than_a_page_of_changes(store: Store) -> None:
    inner = store.state(workflow="w", step="s")
    watch = store.state(workflow="w").watch(nested=True)
    assert watch.poll() == []
    for n in range(200):
        inner["k"] = n
    found: list[Any] = []
    while changes := watch.poll():
        found += (change.value for change in changes)
    assert found == list(range(200))


# Waiting ------------------------------------------------------------------------------------------------------------


def test_iterating_waits_until_it_is_closed(store: Store) -> None:
    state = store.state(agent="a")
    seen: list[Any] = []
    with state.watch() as watch:
        reader = threading.Thread(target=lambda: seen.extend(change.value for change in watch))
        reader.start()
        for n in range(3):
            state["k"] = n
        while len(seen) < 3:
            time.sleep(0.001)
    reader.join(60)
    assert not reader.is_alive()
    assert seen == [0, 1, 2]
    assert list(watch) == []
    assert watch.poll(1) == []


def test_a_poll_waits_as_long_as_it_is_told(store: Store) -> None:
    watch = store.state(agent="a").watch()
    began = time.monotonic()
    assert watch.poll(0.1) == []
    assert 0.1 <= time.monotonic() - began < 60


def test_asyncio(store: Store) -> None:
    async def go() -> list[Any]:
        state, seen = awaited(store).state(agent="a"), []

        async def write() -> None:
            for n in range(3):
                await state.set("k", n)

        async with state.watch() as watch:
            task = asyncio.ensure_future(write())
            async for change in watch:
                seen.append(change.value)
                if change.value == 2:
                    break
            await task
            assert await watch.poll() == []
            waiting = asyncio.ensure_future(watch.poll(60))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await state.set("k", "after")
            assert [change.value for change in await watch.poll()] == ["after"]
        assert [change async for change in watch] == []
        return seen

    assert asyncio.run(go()) == [0, 1, 2]


def test_what_answers_a_change_says_so(store: Store) -> None:
    state = store.state(agent="a")
    watch = state.watch()
    state["question"] = 1
    (change,) = watch.poll()
    with change.causing():
        store.state(agent="b")["answer"] = 2
    (past,) = store.state(agent="b").history()
    assert (past.cause, past.correlation) == (change.id, change.correlation)
    run(store._engine.lines.delete(store._handle.line(state.scope)))
    (gone,) = watch.poll()
    with gone.causing() as correlation:
        assert correlation


@pytest.mark.parametrize(
    "kind", mostly_nightly(["sqlite", "file", "postgres", "mongodb", "redis", "s3"], daily=["sqlite", "postgres"])
)
def test_changes_of_another_process_are_seen_within_a_second(kind: str, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    command = [sys.executable, "-m", "tests.state.state_worker", url, "time", "", "5"]

    def watched() -> None:
        delays: list[float] = []
        keys: list[str] = []
        with (
            holdfast.open(url) as store,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer,
        ):
            assert writer.stdout is not None
            writer.stdout.readline()
            watch = store.state(agent="a").watch()
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
            while len(keys) < 5:
                for change in watch.poll(60):
                    delays.append(time.time() - change.value)
                    keys.append(change.key)
        assert keys == [f"k{n}" for n in range(5)]
        timely(median(delays) < 1, f"they were seen after {delays} seconds")

    patiently(watched)


# Who may ------------------------------------------------------------------------------------------------------------


class Closed(Guard):
    """Lets nobody read some scopes, once told so."""

    def __init__(self) -> None:
        self.shut: set[str] = set()
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.seen: list[str] = []

    async def allow(self, action: Any, scope: Scope, keys: Any) -> Permit:
        self.asked.append((str(scope), tuple(keys)))
        if str(scope) in self.shut:
            raise DeniedError(f"{action} is not allowed", where=str(scope))
        return UNCONDITIONAL

    async def visible(self, scopes: Sequence[Scope]) -> list[Scope]:
        return [scope for scope in scopes if str(scope) not in self.shut]

    async def saw(self, scope: Scope, keys: Any) -> None:
        self.seen += [f"{scope} {key}" for key in keys]


def guarded(store: Store, guard: Guard, scope: str) -> State:
    return State(StoreHandle(store._engine, store.tenant, guard), Scope.parse(scope))


def test_a_right_that_is_revoked_ends_the_watch(store: Store) -> None:
    guard = Closed()
    state = guarded(store, guard, "agent:a")
    watch = state.watch()
    store.state(agent="a")["k"] = 1
    assert [change.value for change in watch.poll()] == [1]
    assert guard.seen == ["agent:a k"]
    store.state(agent="a")["k"] = 2
    guard.shut.add("agent:a")
    with pytest.raises(DeniedError):
        watch.poll()
    with pytest.raises(DeniedError):
        next(watch)
    guard.shut.clear()
    assert [change.value for change in watch.poll()] == [2]
    guard.asked.clear()
    state.watch("one key").poll()
    assert set(guard.asked) == {("agent:a", ("one key",))}


def test_nested_scopes_that_may_not_be_read_are_left_out(store: Store) -> None:
    guard = Closed()
    guard.shut.add("agent:a/tool:x")
    watch = guarded(store, guard, "agent:a").watch(nested=True)
    for tool in "xy":
        store.state(agent="a", tool=tool)["k"] = tool
    assert [change.value for change in watch.poll()] == ["y"]
    assert watch.poll() == []
    assert ("agent:a/tool:x", ()) not in guard.asked
    guard.shut.clear()
    assert [change.value for change in watch.poll()] == ["x"], "from the moment on that it may be read"
    guard.shut.add("agent:a/tool:y")
    with pytest.raises(DeniedError):
        watch.poll()


# Wrong use ----------------------------------------------------------------------------------------------------------


def test_wrong_cursors(store: Store) -> None:
    state = store.state(agent="a")
    state["k"] = 1
    cursor, nested = state.watch().cursor, state.watch(nested=True).cursor
    for wrong in ("nonsense", "bm9uc2Vuc2U=", "%", cursor[:-4]):
        with pytest.raises(InvalidError, match="not a cursor"):
            state.watch(cursor=wrong)
    with pytest.raises(InvalidError, match="another watch"):
        state.watch(cursor=nested)
    with pytest.raises(InvalidError, match="another watch"):
        state.watch(cursor=cursor, nested=True)
    with pytest.raises(InvalidError, match="another watch"):
        store.state(agent="b").watch(cursor=cursor)
    for timeout in (-1, "1", None, True, float("nan")):
        with pytest.raises(InvalidError, match="timeout"):
            state.watch().poll(timeout)  # type: ignore[arg-type]
    assert repr(state.watch()) == "<Watch of agent:a>"


# A law --------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.sampled_from(["set", "batch", "go", "leave"]))))
def test_no_gap_and_no_duplicate(plan: list[tuple[str, int, str]]) -> None:
    """Whoever reads part of it and begins anew at a cursor, in whatever store that was opened since, sees all of it."""
    backend, clock = MemoryBackend(), Clock()
    state = store_on(backend, clock).state(agent="a")
    watch = state.watch(cursor="")
    seen: list[Any] = []
    for key, count, action in [*plan, ("a", 0, "go")]:
        if action == "set":
            state[key] = count
        elif action == "batch":
            state.batch({f"{key}{n}": n for n in range(count)})
        elif action == "go":
            seen += watch.poll()
        else:
            for _ in range(min(count, len(state.history(limit=1000)) - len(seen))):
                seen.append(next(watch))
            cursor = watch.cursor
            watch = store_on(backend, clock).state(agent="a").watch(cursor=cursor)
    assert [(each.key, each.version) for each in seen] == [
        (past.key, past.version)
        for step in sorted({past.version for past in state.history(limit=1000)})
        for past in sorted((past for past in state.history(limit=1000) if past.version == step), key=astuple)
    ]
    run(backend.close())


def timed(changes: list[WatchedChange]) -> list[tuple[Any, ...]]:
    return [(change.key, change.action, change.before, change.version) for change in changes]


def test_keys_that_expire_are_told_when_they_do() -> None:
    clock = Clock()
    backend = MemoryBackend()
    store, other = store_on(backend, clock), store_on(backend, clock)
    state = store.state(agent="a")
    state.set("old", 1, ttl=1)
    clock.sleep(1)
    watch, some = state.watch(), other.state(agent="a").watch("k*")
    state.batch({"k1": 1, "k2": 2, "x": 3}, ttl=10)
    state["k3"] = 1
    for each in (watch, some):
        each.poll()
    clock.sleep(9)
    assert watch.poll() == some.poll() == []
    clock.sleep(1)
    found = watch.poll()
    assert timed(found) == [("k1", "expired", 2, 0), ("k2", "expired", 2, 0), ("x", "expired", 2, 0)]
    assert {change.time.timestamp() * SECOND for change in found} == {clock.now}
    assert all(change.value is MISSING for change in found)
    assert timed(some.poll()) == timed(found)[:2]
    assert watch.poll() == some.poll() == []
    # Each once: also after a restart in between, and when somebody removes them.
    again = other.state(agent="a").watch(cursor=found[0].cursor)
    assert timed(again.poll()) == timed(found)[1:]
    assert run(delete_expired(store._handle)).keys == 4
    assert watch.poll() == some.poll() == again.poll() == []
    assert timed(other.state(agent="a").watch(cursor=found[1].cursor).poll()) == timed(found)[2:]
    # Who looks only later is told as well.
    assert timed(state.watch(cursor="").poll()) == [
        ("old", "set", 0, 1),
        ("old", "expired", 1, 0),
        ("k1", "set", 0, 2),
        ("k2", "set", 0, 2),
        ("x", "set", 0, 2),
        ("k3", "set", 0, 3),
        *timed(found),
    ]


@pytest.mark.parametrize("what", ["set", "set with ttl", "delete", "increment"])
def test_an_expiry_is_told_before_what_follows_it(what: str) -> None:
    clock = Clock()
    state = store_on(MemoryBackend(), clock).state(agent="a")
    watch = state.watch()
    state.set("first", 1, ttl=5)
    state.set("k", 1, ttl=10)
    clock.sleep(20)
    if what == "delete":
        state.delete("k")
    elif what == "increment":
        state.increment("k")
    else:
        state.set("k", 2, ttl=5 if what == "set with ttl" else None)
    found = watch.poll()
    assert timed(found)[:4] == [
        ("first", "set", 0, 1),
        ("k", "set", 0, 2),
        ("first", "expired", 1, 0),
        ("k", "expired", 2, 0),
    ]
    assert [change.key for change in found[4:]] == ["k"]
    for number, change in enumerate(found):
        assert told(state.watch(cursor=change.cursor).poll()) == told(found[number + 1 :])
    clock.sleep(5)
    assert timed(watch.poll()) == ([("k", "expired", 3, 0)] if what == "set with ttl" else [])


def test_expiries_whose_past_was_pruned() -> None:
    clock = Clock()
    store = store_on(MemoryBackend(), clock)
    state = store.state(agent="a")
    watch = state.watch(cursor="")
    state.set("k", 1, ttl=5)
    state["x"] = 1
    clock.sleep(5)
    run(delete_expired(store._handle))
    run(store._engine.rewriter.rewrite(store._handle.line(state.scope), drop_all_but_the_last))
    assert timed(watch.poll()) == [("", "pruned", 1, 2), ("k", "expired", 0, 0)]


async def drop_all_but_the_last(points: Sequence[StepRef], _: object) -> RewritePlan:
    return RewritePlan(frozenset(point[:2] for point in points[:-1]))
