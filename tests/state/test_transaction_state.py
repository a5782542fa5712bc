"""The state of a scope in a transaction has what a state has, is closed with its block, and sees no phantoms."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from tests.state.kit import Clock, store_on

KEYS = st.sampled_from(["a", "b", "plan/1", "plan/2", "é"])
NUMBERS = st.integers(-3, 3)
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, NUMBERS),
    st.tuples(st.just("increment"), KEYS, NUMBERS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("change"), KEYS, NUMBERS),
    st.tuples(st.just("list"), st.sampled_from(["", "plan/", "a"])),
)


@given(st.dictionaries(KEYS, NUMBERS), st.lists(STEPS, max_size=12), st.booleans())
def test_a_transaction_is_what_a_dict_would_be(start: dict[str, int], steps: list[Any], fails: bool) -> None:
    with holdfast.open("memory://") as store:
        state, expected = store.state(agent="a"), dict(start)
        if start:
            state.batch(start)
        try:
            with store.transaction() as together:
                inside = together.state(agent="a")
                for action, key, *value in steps:
                    if action == "set":
                        inside[key] = expected[key] = value[0]
                    elif action == "increment":
                        expected[key] = expected.get(key, 0) + value[0]
                        assert inside.increment(key, value[0]) == expected[key]
                    elif action == "change":
                        expected[key] = -expected.get(key, value[0])
                        assert inside.change(key, lambda number: -number, value[0]) == expected[key]
                    elif action == "delete":
                        expected.pop(key, None)
                        inside.delete(key)
                    else:
                        assert inside.list_keys(key) == sorted(each for each in expected if each.startswith(key))
                assert dict(inside) == expected
                assert (len(inside), inside.list_keys(limit=2).all().__iter__().__next__() if expected else None) == (
                    len(expected),
                    min(expected, default=None),
                )
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            expected = start
        assert dict(state) == expected


def test_a_transaction_that_ended_takes_no_changes() -> None:
    with holdfast.open("memory://") as store:
        with store.transaction() as together:
            inside = together.state(agent="a")
            inside["n"] = 1
        for late in (
            lambda: inside.set("n", 2),
            lambda: inside.delete("n"),
            lambda: inside.get("n"),
            lambda: inside.increment("n"),
            lambda: inside.list_keys(),
            lambda: together.state(agent="a"),
            lambda: together.put("t", {}),
        ):
            with pytest.raises(InvalidError, match="transaction is not open"):
                late()
        with pytest.raises(ZeroDivisionError), store.transaction() as together:  # noqa: PT012 - the block is what fails
            inside = together.state(agent="a")
            raise ZeroDivisionError
        with pytest.raises(InvalidError, match="transaction is not open"):
            inside["n"] = 3
        assert dict(store.state(agent="a")) == {"n": 1}


def test_parts_of_a_value() -> None:
    with holdfast.open("memory://") as store:
        state = store.state(agent="a")
        state.set("plan", {"goal": "x", "steps": {"1": "a"}}, ttl=60)
        with store.transaction() as together:
            inside = together.state(agent="a")
            inside.patch("plan", {"goal": "y", ("steps", "2"): "b"}, remove=[("steps", "1")])
            inside.patch("new", {("deep", "er"): 1})
            inside.set("short", 1, ttl=60)
            inside.increment("short")
            with pytest.raises(NotFoundError, match="nothing to remove"):
                inside.patch("plan", {}, remove=["nothing"])
            with pytest.raises(InvalidError, match="not a dict"):
                inside.patch("short", {"a": 1})
            with pytest.raises(NotFoundError, match="no such key"):
                inside.expire("nothing", 1)
        assert dict(state) == {"plan": {"goal": "y", "steps": {"2": "b"}}, "new": {"deep": {"er": 1}}, "short": 2}
        assert [state.item(key).expires is not None for key in ("new", "plan", "short")] == [False, True, True]
        with store.transaction() as together:
            together.state(agent="a").expire("plan", None)
        assert state.item("plan").expires is None


@pytest.mark.parametrize("writes", [False, True], ids=["only read", "written too"])
@pytest.mark.parametrize("other", ["added", "deleted", "elsewhere"])
def test_a_key_that_others_add_or_delete_is_a_conflict(writes: bool, other: str) -> None:
    with holdfast.open("memory://") as store:
        state = store.state(agent="a")
        state.batch({"job/1": 1, "job/2": 2, "note": 0})

        def count() -> None:
            with store.transaction() as together:
                inside = together.state(agent="a")
                jobs = len(inside.list_keys("job/"))
                if other == "added":
                    state["job/3"] = 3
                elif other == "deleted":
                    del state["job/1"]
                else:
                    state["note"] = 1  # the control: nothing that was listed
                (inside if writes else together.state(agent="b"))["jobs"] = jobs

        if other == "elsewhere":
            count()
            assert (state if writes else store.state(agent="b"))["jobs"] == 2
        else:
            with pytest.raises(ConflictError, match="has changed since"):
                count()
            assert "jobs" not in state


def test_keys_that_expire_after_they_were_listed_are_a_conflict() -> None:
    clock = Clock()
    with store_on(MemoryBackend(), clock) as store:
        store.state(agent="a").set("job", 1, ttl=1)
        with pytest.raises(ConflictError), store.transaction() as together:  # noqa: PT012 - it fails when the block ends
            assert list(together.state(agent="a")) == ["job"]
            together.state(agent="b")["jobs"] = 1
            clock.sleep(2)


def test_with_asyncio() -> None:
    async def main() -> None:
        async with holdfast.aopen("memory://") as store:
            async with store.transaction() as together:
                inside = together.state(agent="a")
                inside.set("b", 1)
                assert await inside.increment("b") == 2
                await inside.patch("a", {"x": 1})
                assert [key async for key in inside.keys()] == ["a", "b"]  # noqa: SIM118 - it is no mapping
                assert [item async for item in inside.items()] == [("a", {"x": 1}), ("b", 2)]
            assert await store.state(agent="a").get("b") == 2

    asyncio.run(main())
