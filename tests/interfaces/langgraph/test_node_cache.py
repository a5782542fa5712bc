"""The cache of the results of LangGraph's nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy
from typing_extensions import TypedDict

import holdfast
from holdfast.langgraph import HoldfastCache


class Node(TypedDict):
    n: int


def test_a_node_runs_once_for_the_same_input_in_any_process(tmp_path: Path) -> None:
    calls: list[int] = []

    def slow(state: Node) -> Any:
        calls.append(state["n"])
        return {"n": state["n"] * 2}

    builder = StateGraph(Node).add_node("slow", slow, cache_policy=CachePolicy(ttl=60)).add_edge(START, "slow")
    for _ in range(2):
        with holdfast.open(tmp_path / "a.db") as store:
            graph = builder.compile(cache=HoldfastCache(store))
            assert graph.invoke({"n": 2}) == {"n": 4}
            assert asyncio.run(graph.ainvoke({"n": 3})) == {"n": 6}
    assert calls == [2, 3]
    with holdfast.open(tmp_path / "a.db") as store:
        graph = builder.compile(cache=HoldfastCache(store))
        graph.clear_cache()
        assert graph.invoke({"n": 2}) == {"n": 4}
    assert calls == [2, 3, 2]


def test_values_are_found_by_namespace_and_key_until_they_are_cleared() -> None:
    with holdfast.open("memory://") as store:
        cache = HoldfastCache(store)
        pairs: Any = {
            (("a", "b"), "k/1"): ({"v": None}, None),
            (("a/b",), "k/1"): ([1, 2], 60),
            (("c",), ""): (b"x", 5),
        }
        cache.set(pairs)
        assert cache.get(list(pairs)) == {key: value for key, (value, _) in pairs.items()}
        assert cache.get([(("a",), "k/1")]) == {}
        cache.clear([("a", "b")])
        assert set(cache.get(list(pairs))) == {(("a/b",), "k/1"), (("c",), "")}
        asyncio.run(cache.aclear())
        assert asyncio.run(cache.aget(list(pairs))) == {}
