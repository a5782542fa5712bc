"""State as a mapping: reading, writing, and that only what changed is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import MISSING, Store
from holdfast.backends.interface import Create
from holdfast.backends.tables import STEPS
from holdfast.engine.patterns import matcher
from holdfast.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from holdfast.store.store import Store as StoreClass
from tests.codec.values import identical, values
from tests.state.kit import Clock, awaited, store_on
from tests.support.interference import InterferingBackend
from tests.support.nightly import examples


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory://") as opened:
        yield opened


def test_it_is_a_mapping(store: Store) -> None:
    state = store.state(agent="a")
    assert isinstance(state, MutableMapping)
    state["b"] = {"x": [1, 2]}
    state["a"] = None
    assert list(state) == ["a", "b"]
    assert len(state) == 2
    assert "a" in state
    assert "c" not in state
    assert 5 not in state  # type: ignore[comparison-overlap]
    assert dict(state) == {"a": None, "b": {"x": [1, 2]}}
    assert list(state.items()) == [("a", None), ("b", {"x": [1, 2]})]
    assert state.get("c", "default") == "default"
    assert state.pop("a") is None
    assert state.setdefault("d", 5) == 5
    state.update(e=6)
    del state["d"]
    with pytest.raises(KeyError):
        del state["d"]
    with pytest.raises(KeyError):
        state["d"]
    with pytest.raises(NotFoundError):
        state.item("d")
    state["b"]["x"].append(3)
    assert state["b"] == {"x": [1, 2]}, "values are the caller's own"
    state.clear()
    assert dict(state) == {}
    assert repr(state) == "<State agent:a>"


def test_scopes_keep_to_themselves(store: Store) -> None:
    scopes = [store.state(), store.state(agent="a"), store.state(user="a"), store.state(agent="a", tool="a")]
    for n, state in enumerate(scopes):
        state["k"] = n
    assert [state["k"] for state in scopes] == [0, 1, 2, 3]
    assert store.state(tool="a", agent="a")["k"] == 3
    with pytest.raises(InvalidError):
        store.state("agent:a", agent="a")


@settings(max_examples=examples(60))
@given(values)
def test_values_of_every_type(value: Any) -> None:
    with holdfast.open("memory://") as store:
        state = store.state(agent="a")
        state["k"] = value
        assert identical(state["k"], value)
        state["k"] = [value, "x" * 300]
        state["k"] = [value, "x" * 300, value]
        store._engine.context.cache.clear()
        assert identical(state["k"], [value, "x" * 300, value])


def test_what_cannot_be_stored_is_named(store: Store) -> None:
    with pytest.raises(UnsupportedError, match=r"plan\.deep\[1\]"):
        store.state(agent="a")["plan"] = {"deep": [1, object()]}


def test_versions(store: Store) -> None:
    state = store.state(agent="a")
    assert state.set("a", 1) == 1
    assert state.set("b", 1) == 2
    assert state.item("a").version == 1
    assert state.batch({"a": 2, "c": 3}) == {"a": 3, "c": 3}
    assert state.delete("a", expected=3) is True
    assert state.delete("a") is False
    assert state.set("a", 1, expected=0) == 6
    with pytest.raises(ConflictError) as caught:
        state.delete("a", expected=3)
    assert caught.value.code == "version-mismatch"
    with pytest.raises(ConflictError):
        state.patch("a", {"x": 1}, expected=1)
    with pytest.raises(InvalidError, match="set and deleted"):
        state.batch({"a": 1}, delete=["a"])
    assert state.batch({}) == {}


def test_patches(store: Store) -> None:
    state = store.state(agent="a")
    assert state.patch("new", {"a": 1, ("b", "c"): 2}) == 1
    assert state["new"] == {"a": 1, "b": {"c": 2}}
    state.patch("new", {("b", "d"): 3}, remove=["a", ("b", "c")])
    assert state["new"] == {"b": {"d": 3}}
    with pytest.raises(InvalidError, match="must change something"):
        state.patch("new", {})
    state["text"] = "no dict"
    with pytest.raises(InvalidError):
        state.patch("text", {"a": 1})
    with pytest.raises(NotFoundError):
        state.patch("new", {}, remove=["nothing"])


@pytest.mark.parametrize("folded", [False, True])
def test_only_the_change_is_stored(folded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.state.writer.FOLD_EVERY", 3 if folded else 1000)
    backend = InterferingBackend()
    state = store_on(backend, Clock()).state(agent="a")
    state["map"] = {f"key {n}": f"a value of some length, {n}" for n in range(2000)}
    state["list"] = [f"an entry of some length, {n}" for n in range(2000)]
    state["x"] = state["y"] = 1

    def size() -> int:
        """How large the step is that was stored last."""
        (step,) = [change.row for change in backend.batches[-1] if isinstance(change, Create) and change.space is STEPS]
        return len(step.body)

    state.patch("map", {"key 7": "new"}, remove=["key 9"])
    assert size() < 500
    state.set("list", [*state["list"], "one more"])
    assert size() < 500
    changed = state["map"]
    changed["key 1999"] = "changed"
    state["map"] = changed
    assert size() < 500
    state.change("list", lambda value: value[1:])
    assert size() < 500
    assert len(state["list"]) == 2000
    assert state["map"]["key 7"] == "new"


def test_changing_by_a_function(store: Store) -> None:
    state = store.state(agent="a")
    assert state.change("n", lambda value: value + 1, 0) == 1
    assert state.change("n", lambda value: value + 1, 0) == 2
    assert state.change("n", lambda _: MISSING) is MISSING
    assert "n" not in state
    with pytest.raises(ZeroDivisionError):
        state.change("n", lambda value: 1 / value, 0)


def test_nothing_of_others_is_lost_by_a_function() -> None:
    backend = InterferingBackend()
    one, other = [store_on(backend, Clock()).state(agent="a") for _ in range(2)]
    one["n"] = 1
    with backend.interfere(lambda: other.change("n", lambda value: value + 10)):
        assert one.change("n", lambda value: value + 1) == 12


def test_writers_of_other_keys_are_no_conflict() -> None:
    backend = InterferingBackend()
    one, other = [store_on(backend, Clock()).state(agent="a") for _ in range(2)]
    version = one.set("mine", 1)
    with backend.interfere(lambda: other.set("theirs", 1)):
        assert one.set("mine", 2, expected=version) == 3
    with pytest.raises(ConflictError), backend.interfere(lambda: other.set("mine", "theirs")):
        one.set("mine", 3, expected=3)


# Listing ------------------------------------------------------------------------------------------------------------

KEYS = st.lists(st.sampled_from(["a", "b", "ab", "é", "漢", "z", "%", "~"]), min_size=1, max_size=4).map("/".join)


@settings(max_examples=examples(60))
@given(
    st.lists(st.tuples(KEYS, st.sampled_from(["set", "delete", "ttl", "fold"])), max_size=30),
    KEYS | st.just(""),
    st.sampled_from(["", "*", "**", "a/*", "a/**", "*/b", "?", "a?", "**b", "é/*"]),
    st.integers(1, 4),
)
def test_pages_are_those_of_a_sorted_list(
    changes: list[tuple[str, str]], prefix: str, pattern: str, limit: int
) -> None:
    clock = Clock()
    state, model = store_on(InterferingBackend(), clock).state(agent="a"), set[str]()
    for key, action in changes:
        if action == "set":
            state[key] = key
            model.add(key)
        elif action == "ttl":
            state.set(key, key, ttl=1)
            model.discard(key)
        elif action == "delete":
            state.delete(key)
            model.discard(key)
        else:
            state.batch({f"{key}/{n}": n for n in range(3)})
            model |= {f"{key}/{n}" for n in range(3)}
    clock.sleep(2)
    matches = matcher(pattern) if pattern else lambda _: True
    wanted = sorted(key for key in model if key.startswith(prefix) and matches(key))
    page = state.list_keys(prefix, pattern=pattern, limit=limit)
    assert len(page) <= limit
    assert list(page.all()) == wanted
    assert [item.key for item in state.list_items(prefix, pattern=pattern, limit=limit).all()] == wanted
    assert [item.key for item in state.list_items(prefix, pattern=pattern, limit=1000)] == wanted
    assert list(state) == sorted(model)
    assert len(state) == len(model)


# Expiry -------------------------------------------------------------------------------------------------------------


def test_keys_expire() -> None:
    clock = Clock()
    state = store_on(InterferingBackend(), clock).state(agent="a")
    state.set("k", 1, ttl=10)
    state.set("delta", 1, ttl=timedelta(seconds=20))
    item = state.item("k")
    assert item.expires is not None
    assert item.expires.timestamp() * 10**9 == clock.now + 10 * 10**9
    clock.sleep(9.9)
    assert state["k"] == 1
    clock.sleep(0.1)
    assert "k" not in state
    assert dict(state) == {"delta": 1}
    assert len(state) == 1
    assert state.delete("k") is False
    state.set("k", 2, expected=0)
    assert state.item("k").expires is None
    clock.sleep(100)
    assert dict(state) == {"k": 2}


def test_what_keeps_the_expiry_and_what_does_not() -> None:
    clock = Clock()
    state = store_on(InterferingBackend(), clock).state(agent="a")
    for key in ("set", "patch", "change", "never"):
        state.set(key, {"n": 1}, ttl=10)
    state["set"] = 2
    state.patch("patch", {"n": 2})
    state.change("change", lambda value: value | {"n": 3})
    state.expire("never", None)
    assert [item.key for item in state.list_items() if item.expires is None] == ["never", "set"]
    state.expire("patch", "100s")
    clock.sleep(50)
    assert dict(state) == {"never": {"n": 1}, "patch": {"n": 2}, "set": 2}
    with pytest.raises(NotFoundError):
        state.expire("change", 5)
    for wrong in (0, -1, True, "5", float("nan"), timedelta(0), 10**11):
        with pytest.raises(InvalidError):
            state.set("k", 1, ttl=wrong)


# asyncio ------------------------------------------------------------------------------------------------------------


def test_every_operation_has_an_async_form(store: StoreClass) -> None:
    async def go() -> None:
        state = awaited(store).state(agent="a")
        assert await state.set("k", 1) == 1
        assert await state.get("k") == 1
        assert await state.get("none", "default") == "default"
        assert await state.has("k")
        assert not await state.has("none")
        await state.batch({"x": 1, "y": 2}, delete=["k"])
        assert await state.count() == 2
        assert [key async for key in state.keys()] == ["x", "y"]  # noqa: SIM118 - it is no dict
        assert [pair async for pair in state.items()] == [("x", 1), ("y", 2)]
        await state.patch("m", {"a": 1})
        assert await state.change("x", lambda value: value + 1) == 2
        assert await state.expire("x", 5) == 5
        assert await state.list_keys("m") == ["m"]
        assert [item.value for item in await state.list_items("m")] == [{"a": 1}]
        assert (await state.item("m")).version == 3
        assert await state.at(1) == {"k": 1}
        assert await state.get_at("k", 1) == 1
        assert len(await state.history("k")) == 2
        other = awaited(store).state(agent="b")
        assert await state.copy_to(other) == 3
        await state.clear()
        assert await other.move_to(state) == 3
        assert await other.count() == 0
        assert await state.delete("m")
        assert await state.rollback(1, "k") == 1
        assert await state.get("k") == 1

    asyncio.run(go())


def test_state_is_not_copied_to_a_scope_of_another_store(store: Store) -> None:
    store.state(user="ada")["x"] = 1
    with holdfast.open("memory://") as other:
        for call in (store.state(user="ada").copy_to, store.state(user="ada").move_to):
            with pytest.raises(InvalidError, match="same store"):
                call(other.state(user="bob"))
        assert not other.scopes()
    assert dict(store.state(user="bob")) == {}
    assert dict(store.state(user="ada")) == {"x": 1}
