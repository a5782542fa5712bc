"""Which scopes there are, and what was written in one between two moments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Store
from holdfast.access import Policy
from holdfast.engine.types import to_datetime
from holdfast.errors import DeniedError, InvalidError, NotFoundError
from holdfast.state.scopes import ScopeInfo
from tests.state.kit import Clock, awaited, store_on
from tests.support.interference import InterferingBackend


@pytest.fixture
def store(clock: Clock) -> Store:
    return store_on(InterferingBackend(), clock)


def texts(found: list[ScopeInfo]) -> list[str]:
    return [str(each.scope) for each in found]


def filled(store: Store) -> None:
    for number in range(3):
        store.state(agent=f"a{number}")["k"] = number
    store.state(agent="a", step="s")["k"] = 1
    store.state(agent="a-b")["k"] = 1
    store.state(user="alice", session="x/y")["k"] = 1
    store.state()["k"] = 1


ALL = ["agent:a-b", "agent:a/step:s", "agent:a0", "agent:a1", "agent:a2", "global", "user:alice/session:x%2Fy"]


def test_scopes_are_listed_in_order(store: Store, clock: Clock) -> None:
    assert store.scopes() == []
    filled(store)
    store.thread("thread").put({"n": 1})
    store.sharing.topic("news").publish("x")
    store.sessions.start("s1")
    store.access.grant("agent:a0", "read", agent="a1")
    assert texts(store.scopes()) == ALL
    clock.sleep(5)
    state = store.state(agent="a0")
    state["other"] = 2
    del state["k"]
    (found,) = store.scopes("agent:a0")
    assert (found.keys, found.version, found.updated) == (1, 3, to_datetime(clock.now))


def test_by_prefix_pattern_and_page(store: Store) -> None:
    filled(store)
    assert texts(store.scopes("agent:a/")) == ["agent:a/step:s"]
    assert texts(store.scopes("user:alice")) == ["user:alice/session:x%2Fy"]
    assert texts(store.scopes(pattern="agent:*")) == ["agent:a-b", "agent:a0", "agent:a1", "agent:a2"]
    assert texts(store.scopes(pattern="**/step:?")) == ["agent:a/step:s"]
    assert texts(store.scopes("agent:a1", pattern="agent:**")) == ["agent:a1"]
    assert store.scopes("nope") == []
    assert store.scopes(limit=0) == []
    page = store.scopes(limit=2)
    assert texts(page) == ALL[:2]
    assert [str(each.scope) for each in page.all()] == ALL
    with pytest.raises(InvalidError, match="limit"):
        store.scopes(limit=-1)


def test_more_scopes_than_are_read_at_a_time(store: Store) -> None:
    for number in range(150):
        store.state(agent=f"{number:04}")["k"] = number
    store.state(agent="last", step="s")["k"] = 1
    assert len(store.scopes(limit=1000)) == 151
    assert texts(store.scopes(pattern="agent:*/**")) == ["agent:last/step:s"]
    assert texts(store.scopes(cursor="agent:0148", limit=2)) == ["agent:0149", "agent:last/step:s"]


def test_a_scope_that_ended_with_its_session_is_listed_no_longer(store: Store) -> None:
    with store.sessions.start("s1") as session:
        session.state["k"] = 1
        assert texts(store.scopes()) == ["session:s1"]
    assert store.scopes() == []


def test_an_identity_is_shown_what_it_may_read_and_nothing_is_noted(store: Store) -> None:
    filled(store)
    acting = store.as_identity(agent="a0")
    assert texts(acting.scopes()) == ["agent:a0"]
    store.access.grant("agent:a0", "read", agent="a1")
    store.access.grant("agent:a0", "read", agent="a2", keys="k")  # not the scope as a whole
    store.access.grant("agent:a0", "write", agent="a-b")
    assert texts(acting.scopes()) == ["agent:a0", "agent:a1"]
    policy = Policy().deny(["read", "write"], "agent:a1").allow("read", "agent:*")
    seen = store.as_identity(agent="a0", mode="custom", policy=policy).scopes()
    assert texts(seen) == ["agent:a-b", "agent:a0", "agent:a2"]
    assert store.audit.query(kind="denied") == []


def test_scopes_and_differences_awaited(store: Store) -> None:
    filled(store)

    async def ask() -> tuple[list[str], int]:
        other = awaited(store)
        return texts(await other.scopes(limit=1)), len(await other.state(agent="a0").diff(0))

    assert asyncio.run(ask()) == (ALL[:1], 1)


# Differences ------------------------------------------------------------------------------------------------------


def test_what_was_written_between_two_moments(store: Store, clock: Clock) -> None:
    state = store.state(agent="a")
    first = state.set("plan", {"goal": "tides", "done": 0})
    began = to_datetime(clock.now)
    clock.sleep(60)
    state.patch("plan", {"done": 1})
    second = state.set("mood", "curious", ttl=3600)
    del state["plan"]
    assert [(each.kind, each.where, each.old, each.new) for each in state.diff(first, second)] == [
        ("change", "plan.done", 0, 1),
        ("add", "mood", None, "curious"),
    ]
    assert {each.where for each in state.diff(began)} == {"plan", "mood"}
    assert {each.where for each in state.diff("30s")} == {"plan", "mood"}
    assert [(each.kind, each.where) for each in state.diff(second)] == [("remove", "plan")]
    assert [(each.kind, each.where) for each in state.diff(second, first)] == [
        ("change", "plan.done"),
        ("remove", "mood"),
    ]
    assert not state.diff(second, second)
    assert len(state.diff(0, first)) == 1
    assert not store.state(agent="nobody").diff("1h")


def test_what_expires_in_between_is_gone(store: Store, clock: Clock) -> None:
    state = store.state(agent="a")
    state.set("a/~b", {"n": (1, 2)}, ttl=10)
    state.set("back", 1, ttl=10)
    first = state.set("stays", 1)
    began = to_datetime(clock.now)
    clock.sleep(20)
    (gone, other) = state.diff(began)
    assert [(each.kind, each.path, each.old, each.new) for each in (gone, other)] == [
        ("remove", ("a/~b",), {"n": (1, 2)}, None),
        ("remove", ("back",), 1, None),
    ]
    assert not state.diff(first, first)
    since = to_datetime(clock.now)
    assert not state.diff(since)
    clock.sleep(1)
    state["back"] = 2
    assert [(each.kind, each.where, each.new) for each in state.diff(since)] == [("add", "back", 2)]
    found = state.diff(began)
    assert found.apply(state.at(began)) == dict(state)
    assert found.old.thread == "agent:a"


def test_keys_have_no_order_of_their_own(store: Store) -> None:
    state = store.state(agent="a")
    state.batch({"x": 1, "y": 2})
    del state["x"]
    state["x"] = 1
    assert not state.diff(1)


def test_large_values_are_compared_too(store: Store) -> None:
    state = store.state(agent="a")
    state["text"] = "a" * 200_000
    state["text"] = "b" * 200_000
    (change,) = state.diff(1, 2)
    assert (change.old, change.new) == ("a" * 200_000, "b" * 200_000)
    alone = store.state(agent="b")
    alone["$only"] = "c" * 200_000
    assert alone.diff(0).apply({}) == {"$only": "c" * 200_000}


def test_versions_that_are_not_there_and_whoever_may_not(store: Store) -> None:
    state = store.state(agent="a")
    state["k"] = 1
    with pytest.raises(NotFoundError):
        state.diff(7)
    with pytest.raises(InvalidError):
        state.diff("someday")
    with pytest.raises(DeniedError):
        store.as_identity(agent="b").state(agent="a").diff(0)


KEYS = st.sampled_from(["a", "b/c", "d~e", "$f"])
VALUES = st.one_of(st.integers(0, 3), st.dictionaries(st.sampled_from("xy"), st.integers(0, 2)), st.just((1, "t")))
DOINGS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, VALUES, st.sampled_from([None, 1, 3])),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("sleep"), st.integers(1, 2)),
    ),
    min_size=1,
    max_size=12,
)


@given(DOINGS, st.data())
def test_a_difference_makes_one_state_of_the_other(doings: list[Any], data: st.DataObject) -> None:
    clock = Clock()
    store = store_on(InterferingBackend(), clock)
    state = store.state(agent="a")
    moments: list[Any] = [0, to_datetime(clock.now)]
    for what, *about in doings:
        if what == "set":
            key, value, ttl = about
            moments.append(state.set(key, value, ttl=ttl))
        elif what == "delete":
            state.delete(about[0])
        else:
            clock.sleep(about[0])
        moments.append(to_datetime(clock.now))
    a, b = data.draw(st.sampled_from(moments)), data.draw(st.sampled_from(moments))
    assert state.diff(a, b).apply(state.at(a)) == state.at(b)
    assert state.diff(a).apply(state.at(a)) == dict(state)
    assert not state.diff(b, b)
