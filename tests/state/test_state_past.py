"""The past of a scope: its history, what it was at a time, having it so again, and settling conflicts by it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import MISSING, Store
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.hooks import HookContext
from tests.state.kit import Clock, store_on
from tests.support.interference import InterferingBackend


@pytest.fixture
def store(clock: Clock) -> Store:
    return store_on(InterferingBackend(), clock)


def test_the_history_of_keys(store: Store, clock: Clock) -> None:
    state = store.state(agent="a")
    with holdfast.correlation("first"):
        state["k"] = 1
    began = to_datetime(clock.now)
    clock.sleep(1)
    state.batch({"k": 2, "x": 1})
    state.patch("m", {"a": 1})
    state.expire("k", 5)
    del state["k"]
    told = [(past.key, past.action, past.before, past.version) for past in state.history()]
    assert told == [
        ("k", "delete", 4, 0),
        ("k", "expire", 2, 4),
        ("m", "patch", 0, 3),
        ("k", "set", 1, 2),
        ("x", "set", 0, 2),
        ("k", "set", 0, 1),
    ]
    assert [past.version for past in state.history("k")] == [0, 4, 2, 1]
    assert [past.version for past in state.history("k", limit=1)] == [0]
    assert [past.version for past in state.history("k", cursor="4")] == [2, 1]
    first = state.history("k")[-1]
    assert (first.time, first.correlation, first.actor, first.cause) == (began, "first", "", "")
    assert state.history("nothing") == []
    assert store.state(agent="none").history() == []


@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_a_change_that_is_made_alone_is_correlated_with_its_step(where: str, tmp_path: Path) -> None:
    with holdfast.open("memory://" if where == "memory" else tmp_path / "a.db") as store:
        state, other = store.state(session="s", agent="a"), store.state(agent="b")
        store.sessions.start("s")
        other["k"] = 1
        (first,) = other.history()
        assert first.correlation == first.id
        other["k"] = 2
        del other["k"]
        with holdfast.correlation(first.correlation):
            other["x"] = 1
            store.thread("t").put({"n": 1})
        belong = [("k", "set"), ("x", "set")]
        found = store.audit.query(correlation=first.id, kind="change")
        assert sorted((each.key, each.action) for each in found) == belong
        events = store.timeline.query(f"correlation:{first.id}")
        assert [(event.kind, event.key) for event in events if event.kind == "change"] == [
            ("change", "x"),
            ("change", "k"),
        ]
        assert [event.scope for event in events if event.kind == "checkpoint"] == ["thread:t"]
        assert [past.before for past in other.history("k")] == [2, 1, 0]
        # Changes that are made together share one; so do those of a session.
        with store.transaction() as both:
            both.state(agent="b")["y"] = 1
            both.state(agent="c")["y"] = 1
        (here,), (there,) = other.history("y"), store.state(agent="c").history("y")
        assert here.correlation == there.correlation not in ("", here.id, there.id)
        state["k"] = 1
        assert state.history()[0].correlation == "s"
        assert store.audit.verify().ok


def test_a_change_whose_scope_is_deleted_keeps_its_correlation(store: Store) -> None:
    state = store.state(user="u")
    state["k"] = 1
    (made,) = state.history()
    store.erasure.erase("u")
    found = store.audit.query(correlation=made.id, action="set")
    assert [(each.scope, each.correlation) for each in found] == [("user:u", made.id)]
    assert store.audit.verify().ok


def test_what_hooks_change_belongs_to_the_change(store: Store) -> None:
    @store.hooks.before("state.set", scope="agent:a")
    def mirror(call: HookContext) -> None:
        store.state(agent="mirror")["k"] = call.value

    store.state(agent="a")["k"] = 1
    (made,), (mirrored,) = store.state(agent="a").history(), store.state(agent="mirror").history()
    assert made.correlation == mirrored.correlation not in ("", made.id)


def test_a_long_history_in_parts(store: Store) -> None:
    state = store.state(agent="a")
    for n in range(150):
        state["n" if n % 2 else "m"] = n
    assert [past.version for past in state.history("n", limit=1000)] == list(range(150, 0, -2))
    assert len(state.history(limit=100)) == 100


def test_the_state_at_a_time(store: Store, clock: Clock) -> None:
    state = store.state(agent="a")
    before = to_datetime(clock.now) - timedelta(seconds=1)
    state["k"] = 1
    first = to_datetime(clock.now)
    clock.sleep(3600)
    state["k"] = 2
    state.set("short", 1, ttl=10)
    second = to_datetime(clock.now)
    clock.sleep(3600)
    assert state.at(before) == {}
    assert state.at(first) == {"k": 1}
    assert state.at(second) == {"k": 2, "short": 1}
    assert state.at(second + timedelta(seconds=11)) == {"k": 2}
    assert state.at("90m") == {"k": 1}
    assert state.at(0) == {}
    assert state.at(3) == {"k": 2, "short": 1}
    assert state.get_at("short", 3) == 1
    assert state.get_at("short", 2, "none") == "none"
    with pytest.raises(NotFoundError):
        state.at(4)
    for wrong in (True, 1.5, None, "soon", -1):
        with pytest.raises(InvalidError):
            state.at(wrong)  # type: ignore[arg-type]
    assert store.state(agent="none").at(first) == {}


def test_rolling_back(store: Store) -> None:
    state = store.state(agent="a")
    state.batch({"a": 1, "b": {"deep": [1]}})
    state["a"] = 2
    state.patch("b", {"more": 1})
    state["c"] = 3
    assert state.rollback(1, "a") == 1
    assert dict(state) == {"a": 1, "b": {"deep": [1], "more": 1}, "c": 3}
    assert state.rollback(1) == 2
    assert dict(state) == {"a": 1, "b": {"deep": [1]}}
    assert state.rollback(1) == 0
    assert [past.action for past in state.history(limit=2)] == ["rollback", "delete"]
    assert state.at(4) == {"a": 2, "b": {"deep": [1], "more": 1}, "c": 3}, "nothing is undone"
    assert state.rollback(0) == 2
    assert dict(state) == {}
    with pytest.raises(NotFoundError):
        state.rollback(100)


def test_what_others_change_meanwhile_is_not_rolled_back_by_mistake() -> None:
    """A rollback is worked out against the state that it is committed on."""
    backend, clock = InterferingBackend(), Clock()
    one, other = [store_on(backend, clock).state(agent="a") for _ in range(2)]
    one["k"] = 1
    one["k"] = 2
    with backend.interfere(lambda: other.set("new", 1)):
        one.rollback(1)
    assert dict(one) == {"k": 1}, "the scope is as it was then"


# Conflicts ----------------------------------------------------------------------------------------------------------


def test_refuse_and_overwrite(store: Store) -> None:
    state = store.state(agent="a")
    state["k"] = 1
    state["k"] = 2
    with pytest.raises(ConflictError) as caught:
        state.set("k", 3, expected=1)
    assert caught.value.code == "version-mismatch"
    assert state.set("k", 3, expected=1, on_conflict="overwrite") == 3
    with pytest.raises(InvalidError, match="on_conflict"):
        state.set("k", 3, expected=1, on_conflict="nonsense")  # type: ignore[arg-type]


def test_a_function_settles(store: Store) -> None:
    state = store.state(agent="a")
    version = state.set("n", 5)
    state["n"] = 7
    seen: list[Any] = []

    def settle(current: Any, mine: Any) -> Any:
        seen.append((current, mine))
        return max(current, mine)

    state.set("n", 6, expected=version, on_conflict=settle)
    assert state["n"] == 7
    assert seen == [(7, 6)]
    state.set("n", 8, expected=state.item("n").version, on_conflict=settle)
    assert state["n"] == 8
    assert len(seen) == 1, "there was no conflict"
    del state["n"]
    state.set("n", 1, expected=version, on_conflict=lambda current, mine: (current is MISSING, mine))
    assert state["n"] == (True, 1)
    state.set("n", 1, expected=version, on_conflict=lambda *_: MISSING)
    assert "n" not in state


def test_three_ways(store: Store) -> None:
    state = store.state(agent="a")
    base = state.set("plan", {"a": 1, "b": {"x": 1, "y": 2}, "list": [1, 2]})
    state.patch("plan", {"a": 2, ("b", "x"): 9})
    state.set("plan", {"a": 1, "b": {"x": 1, "y": 5}, "list": [1, 2], "c": 3}, expected=base, on_conflict="merge")
    assert state["plan"] == {"a": 2, "b": {"x": 9, "y": 5}, "list": [1, 2], "c": 3}
    with pytest.raises(ConflictError, match=r"\['a'\]"):
        state.set("plan", {"a": 7, "b": {"x": 1, "y": 2}, "list": [1, 2]}, expected=base, on_conflict="merge")
    state.set("new", {"a": 1}, expected=0, on_conflict="merge")
    with pytest.raises(ConflictError):
        state.set("new", {"a": 2}, expected=0, on_conflict="merge")


# Copying, moving ----------------------------------------------------------------------------------------------------


def test_copying_and_moving(store: Store, clock: Clock) -> None:
    one, other = store.state(agent="one"), store.state(agent="other")
    one.batch({"a": 1, "b": {"x": 1}})
    one.set("t", 1, ttl=10)
    other["b"] = "mine"
    with pytest.raises(ConflictError):
        one.copy_to(other)
    assert dict(other) == {"b": "mine"}
    assert one.copy_to(other, on_conflict="overwrite") == 3
    assert dict(other) == dict(one)
    assert len(other.history()) == 4
    assert len({past.id for past in other.history()}) == 2, "as one step"
    clock.sleep(11)
    assert dict(other) == {"a": 1, "b": {"x": 1}}
    third = store.state(agent="third")
    assert other.move_to(third) == 2
    assert (dict(other), dict(third)) == ({}, {"a": 1, "b": {"x": 1}})
    assert other.move_to(third) == 0
    for wrong in (one, "agent:x", None):
        with pytest.raises(InvalidError):
            one.copy_to(wrong)  # type: ignore[arg-type]


def test_copying_and_moving_into_keys_that_exist(store: Store) -> None:
    one, other = store.state(agent="one"), store.state(agent="other")
    one.batch({"a": {"x": 1}, "new": 1})
    other.batch({"a": {"y": 2}, "own": 3})
    assert one.copy_to(other, on_conflict="merge") == 2
    assert dict(other) == {"a": {"x": 1, "y": 2}, "new": 1, "own": 3}
    other["a"] = {"x": 5}
    with pytest.raises(ConflictError, match=r"\['x'\]"):
        one.move_to(other, on_conflict="merge")
    assert (dict(one), other["a"]) == ({"a": {"x": 1}, "new": 1}, {"x": 5})
    assert one.move_to(other, on_conflict=lambda current, copied: [current, copied]) == 2
    assert dict(one) == {}
    assert dict(other) == {"a": [{"x": 5}, {"x": 1}], "new": [1, 1], "own": 3}
    with pytest.raises(InvalidError, match="on_conflict must be"):
        other.copy_to(one, on_conflict="replace")  # type: ignore[arg-type]


def test_nothing_is_lost_that_others_write_while_a_scope_is_moved() -> None:
    backend, clock = InterferingBackend(), Clock()
    stores = [store_on(backend, clock) for _ in range(2)]
    one = stores[0].state(agent="one")
    one["a"] = 1
    with backend.interfere(lambda: stores[1].state(agent="one").set("late", 2)):
        assert one.move_to(stores[0].state(agent="two")) == 2
    assert dict(stores[1].state(agent="two")) == {"a": 1, "late": 2}
    assert dict(one) == {}


def test_a_scope_is_copied_with_what_is_nested_in_it(store: Store) -> None:
    alice, bob = store.state(user="alice"), store.state(user="bob")
    for inside in ({}, {"agent": "a"}, {"session": "s", "tool": "t"}):
        store.state(user="alice", **inside).batch({"k": str(inside), "l": 1})
    store.state(user="alice2")["k"] = "another user"
    store.sharing.document("plan", user="alice").save({"n": 1}, 0)
    assert alice.copy_to(bob, nested=True) == 6
    assert store.state(user="bob", session="s", tool="t")["k"] == store.state(user="alice", session="s", tool="t")["k"]
    assert sorted(str(info.scope) for info in store.scopes("user:bob")) == [
        "user:bob",
        "user:bob/agent:a",
        "user:bob/session:s/tool:t",
    ]
    # All or none: one key below is there already.
    carol = store.state(user="carol")
    store.state(user="carol", agent="a")["l"] = 2
    for act in (alice.copy_to, alice.move_to):
        with pytest.raises(ConflictError, match="user:carol/agent:a"):
            act(carol, nested=True)
    assert dict(carol) == {}
    assert alice.move_to(carol, nested=True, on_conflict="overwrite") == 6
    assert dict(store.state(user="carol", agent="a")) == {"k": str({"agent": "a"}), "l": 1}
    assert [info.keys for info in store.scopes("user:alice/")] == [0, 0]
    assert store.state(user="alice2")["k"] == "another user"
    assert store.sharing.document("plan", user="alice").read().value == {"n": 1}
    assert alice.move_to(carol, nested=True) == 0
    assert carol.copy_to(store.state(user="dave")) == 2  # without nested, only its own keys
    assert [str(info.scope) for info in store.scopes("user:dave")] == ["user:dave"]


def test_scopes_that_cannot_be_nested_there(store: Store) -> None:
    store.state(user="alice", session="s")["k"] = 1
    alice = store.state(user="alice")
    wrong = [store.state(agent="a"), store.state(user="bob", session="t"), store.state(user="alice", agent="a"), alice]
    for other in wrong:
        with pytest.raises(InvalidError):
            alice.copy_to(other, nested=True)
    with pytest.raises(InvalidError):
        store.state(user="alice", session="s").copy_to(alice, nested=True)


@pytest.mark.parametrize("scope", ["user:a", "user:a/agent:x", "user:a/agent:y"])
def test_nothing_is_lost_that_others_write_while_scopes_are_moved(scope: str) -> None:
    backend, clock = InterferingBackend(), Clock()
    one, two = (store_on(backend, clock) for _ in range(2))
    one.state(user="a")["k"] = 1
    one.state(user="a", agent="x")["k"] = 1
    with backend.interfere(lambda: two.state(scope).set("late", 2)) as interference:
        assert one.state(user="a").move_to(one.state(user="b"), nested=True) == (2 if scope.endswith("y") else 3)
    assert interference.struck == 1
    # A scope that is new was not there when it began.
    moved = scope if scope.endswith("y") else scope.replace("user:a", "user:b")
    assert two.state(moved)["late"] == 2
    assert two.state(user="b")["k"] == two.state(user="b", agent="x")["k"] == 1
    assert list(one.state(user="a")) == list(one.state(user="a", agent="x")) == []
