"""Paths as text in `update` and `fork`, beside the same changes made to a plain Python state."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.engine.paths import parse_path, path_text

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


@given(
    st.dictionaries(KEYS, VALUES, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 999), VALUES, st.sampled_from(["set", "remove", "add"])), min_size=1, max_size=6),
)
def test_updates_change_what_they_would_change_in_python(
    state: dict[str, Any], changes: list[tuple[int, Any, str]]
) -> None:
    with holdfast.open("memory://") as store:
        store.put("t", state)
        expected = copy.deepcopy(state)
        for pick, value, how in changes:
            paths = [path for path in paths_of(expected) if len(path) < 8]  # a path has at most ten keys
            if not paths:
                break
            path = paths[pick % len(paths)]
            parent = parent_of(expected, path)
            if how == "remove":
                store.update("t", {}, remove=[path_text(path)])
                del parent[path[-1]]
            elif how == "add" and isinstance(parent, dict) and isinstance(parent.get("new", {}), dict):
                store.update("t", {path_text((*path[:-1], "new", "key")): value})
                parent.setdefault("new", {})["key"] = value
            else:
                store.update("t", {path_text(path): value})
                parent[path[-1]] = value
            assert store.get("t").state == expected
        assert store.maintenance.verify().ok


def test_several_items_of_a_long_list_are_one_change_that_stores_little() -> None:
    with holdfast.open("memory://") as store:
        state = {"messages": [{"id": n, "content": f"message {n} " * 20} for n in range(500)]}
        store.put("t", state)
        store.maintenance.compact("t")
        before = store.stats().bytes
        store.update(
            "t", {"messages[7].content": "seven", "messages[-1]": "last", "done": True}, remove=["messages[3]"]
        )
        state["messages"][7]["content"] = "seven"
        state["messages"][-1] = "last"  # type: ignore[call-overload]
        del state["messages"][3]
        assert store.get("t").state == {**state, "done": True}
        assert store.stats().bytes - before < 2000


def test_a_fork_takes_the_same_paths() -> None:
    with holdfast.open("memory://") as store:
        store.put("t", {"plan": {"goal": "work", "steps": [1, 2]}, "files": {"a.txt": 1}})
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
        assert (lazy.has("m", 1, "k"), lazy.value("m", -1, "k"), lazy.length("m", 1, "inner")) == (True, 1, 2)
        assert lazy.slice("m", 1, "inner", start=1) == [{"z": 1}]
        thread.update({"m[1].k": 2, "m[-1].inner[1].z": 3}, remove=["m[1].inner[0]"])
        assert thread.get().state == {"m": [0, {**big, "k": 2, "inner": [{"z": 3}]}]}
        thread.update({"m[1].content": "short"})
        assert thread.get().state["m"][1]["content"] == "short"
        assert store.maintenance.verify(level="decode").ok
