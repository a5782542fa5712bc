"""Paths as text in `update` and `fork`, beside the same changes made to a plain Python state."""

from __future__ import annotations

import copy
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.engine.model.packed_state import as_map
from holdfast.engine.paths import parse_path, path_text
from holdfast.errors import InvalidError
from tests.support.nightly import fewer_examples


class Color(Enum):
    RED = 1


KEYS = st.sampled_from(["a", "b", "plan", "a.b", "last name", '"quoted"', "[0]", "", "$x"])
VALUES = st.recursive(
    st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, min_size=1, max_size=40) | st.dictionaries(KEYS, inner, min_size=1, max_size=4),
    max_leaves=60,
)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path to a value, with negative indexes beside positive ones."""
    if isinstance(value, dict):
        steps = [(key, value[key]) for key in value]
    elif isinstance(value, list):
        steps = [(index, item) for index, item in enumerate(value)]
        steps += [(index - len(value), item) for index, item in enumerate(value)]
    else:
        return [path]
    return ([path] if path else []) + [each for key, inner in steps for each in paths_of(inner, (*path, key))]


def parent_of(state: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        state = state[key]
    return state


@given(st.lists(KEYS | st.integers(-9, 9), max_size=4), KEYS)
def test_a_path_is_read_back_as_it_was_formatted(rest: list[Any], channel: str) -> None:
    assert parse_path(path_text((channel, *rest))) == (channel, *rest)


@fewer_examples()
@given(
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 999), VALUES, st.sampled_from(["set", "remove", "add"])), min_size=1, max_size=6),
)
def test_updates_change_what_they_would_change_in_python(
    state: dict[str, Any], changes: list[tuple[int, Any, str]]
) -> None:
    with holdfast.open("memory://") as store:
        store.thread("t").put(state)
        expected = copy.deepcopy(state)
        for pick, value, how in changes:
            paths = [path for path in paths_of(expected) if len(path) < 8]  # a path has at most ten keys
            if not paths:
                break
            path = paths[pick % len(paths)]
            parent = parent_of(expected, path)
            if how == "remove":
                store.thread("t").update({}, remove=[path_text(path)])
                del parent[path[-1]]
            elif how == "add" and isinstance(parent, dict) and isinstance(parent.get("new", {}), dict):
                store.thread("t").update({path_text((*path[:-1], "new", "key")): value})
                parent.setdefault("new", {})["key"] = value
            else:
                store.thread("t").update({path_text(path): value})
                parent[path[-1]] = value
            assert store.thread("t").get().state == expected
        assert store.maintenance.verify().ok


def test_several_items_of_a_long_list_are_one_change_that_stores_little() -> None:
    with holdfast.open("memory://") as store:
        state = {"messages": [{"id": n, "content": f"message {n} " * 20} for n in range(500)]}
        store.thread("t").put(state)
        store.maintenance.compact("t")
        before = store.status().bytes
        store.thread("t").update(
            {"messages[7].content": "seven", "messages[-1]": "last", "done": True}, remove=["messages[3]"]
        )
        state["messages"][7]["content"] = "seven"
        state["messages"][-1] = "last"  # type: ignore[call-overload]
        del state["messages"][3]
        assert store.thread("t").get().state == {**state, "done": True}
        assert store.status().bytes - before < 2000


def test_a_fork_takes_the_same_paths() -> None:
    with holdfast.open("memory://") as store:
        store.thread("t").put({"plan": {"goal": "work", "steps": [1, 2]}, "files": {"a.txt": 1}})
        thread = store.thread("t")
        thread.fork("rest", changes={"plan.goal": "rest", 'files["a.txt"]': 2}, remove=["plan.steps[0]"])
        assert thread.get(at="rest").state == {"plan": {"goal": "rest", "steps": [2]}, "files": {"a.txt": 2}}


def test_large_items_of_a_list_are_changed_in_part() -> None:
    big = {"content": "x" * 100_000, "k": 1, "inner": ["y" * 70_000, {"z": 1}]}
    with holdfast.open("memory://") as store:
        thread = store.thread("t")
        thread.put({"m": [0]})
        thread.put({"m": [0, big]})
        lazy = thread.get(lazy=True).state
        assert (lazy.has("m[1].k"), lazy.value("m[-1].k"), lazy.length("m[1].inner")) == (True, 1, 2)
        assert lazy.slice("m[1].inner", start=1) == [{"z": 1}]
        thread.update({"m[1].k": 2, "m[-1].inner[1].z": 3}, remove=["m[1].inner[0]"])
        assert thread.get().state == {"m": [0, {**big, "k": 2, "inner": [{"z": 3}]}]}
        thread.update({"m[1].content": "short"})
        assert thread.get().state["m"][1]["content"] == "short"
        assert store.maintenance.verify(level="decode").ok


NUMBERS: list[float] = [False, True, 0, 1, 0.0, -0.0, 1.0, 2, 2.5, 2**53, float(2**53), 2**63, float(2**63), -1, -1.0]


@given(
    st.dictionaries(st.sampled_from(NUMBERS), st.integers(0, 9)),
    st.lists(st.tuples(st.sampled_from(NUMBERS), st.integers(0, 9), st.booleans()), min_size=1, max_size=8),
)
def test_numbers_that_are_equal_are_one_key(state: dict[float, int], changes: list[tuple[float, int, bool]]) -> None:
    expected: dict[float, Any] = dict(state)
    with holdfast.open("memory://") as store:
        store.thread("t").put({"d": state})
        for key, value, nested in changes:
            if nested and isinstance(expected.get(key, {}), dict):
                store.thread("t").update({("d", key, "k"): value})
                expected.setdefault(key, {})["k"] = value
            else:
                store.thread("t").update({("d", key): value})
                expected[key] = value
            stored = store.thread("t").get().state["d"]
            assert (stored, list(map(repr, stored))) == (expected, list(map(repr, expected)))
            assert store.thread("t").get(lazy=True).state.value(("d", key)) == expected[key]
        for key in list(expected)[::2]:
            store.thread("t").update({}, remove=[("d", next(other for other in NUMBERS if other == key))])
            del expected[key]
        assert store.thread("t").get().state["d"] == expected


@pytest.mark.parametrize("key", [Decimal(1), (1, 2), 1 << 64, 1j, Color.RED, "\udc80"], ids=repr)
def test_a_key_of_another_kind_is_set_with_the_whole_dict(key: Any) -> None:
    with holdfast.open("memory://") as store:
        store.thread("t").put({"plain": {1: "a"}, "other": {key: "a"}})
        for path in [("plain", key), ("new", key), ("plain", key, "below")]:
            with pytest.raises(InvalidError, match=r"strings, bytes, None or numbers .* Set the whole dict"):
                store.thread("t").update({path: 1})
        with pytest.raises(InvalidError, match=r"dict with plain keys nor a list.*\(at other\)"):
            store.thread("t").update({("other", "x"): 1})
        store.thread("t").update({"other": {key: "b"}})
        assert store.thread("t").get().state == {"plain": {1: "a"}, "other": {key: "b"}}


def test_one_key_cannot_be_changed_twice() -> None:
    with holdfast.open("memory://") as store, pytest.raises(InvalidError, match="the same value is changed twice"):
        store.thread("t").update({("d", 1, "a"): 1, ("d", True, "b"): 2})


def test_many_keys_of_one_dict_are_changed_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open("memory://") as store:
        store.thread("t").put({"large": {str(n): "v" * 100 for n in range(300)}})
        parsed = 0

        def counting(value: Any) -> Any:
            nonlocal parsed
            parsed += 1
            return as_map(value)

        monkeypatch.setattr("holdfast.engine.model.drafts.as_map", counting)
        store.thread("t").update({("large", "0"): "new"}, remove=[("large", str(n)) for n in range(1, 299)])
        assert 0 < parsed < 10
        assert store.thread("t").get().state == {"large": {"0": "new", "299": "v" * 100}}
