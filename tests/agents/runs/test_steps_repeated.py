"""Steps of nodes that are run more than once find their own results: in loops, sent several times, retried."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy, Send

import holdfast
from holdfast import Store
from holdfast.langgraph import HoldfastSaver
from tests.agents.runs.graphs import Log

_RETRIES = RetryPolicy(initial_interval=0.001, max_attempts=5, jitter=False, retry_on=ValueError)


class Struck:
    """A step with an effect that is counted, and nodes that fail after it as often as they are told."""

    def __init__(self, *failures: str) -> None:
        self.effects = Counter[str]()
        self._failures = Counter(failures)

    def effect(self, what: str, key: str | None = None) -> str:
        @holdfast.step(key=key)
        def charge(what: str) -> str:
            self.effects[what] += 1
            return f"receipt {what} {self.effects.total()}"

        return charge(what)

    def fail(self, where: str) -> None:
        if self._failures[where]:
            self._failures[where] -= 1
            raise ValueError(f"struck in {where}")


def _paid(store: Store, graph: Any, struck: Struck, **options: Any) -> list[str]:
    run = store.runs.submit("t", {"log": []}, graph="g", **options)
    with store.worker(g=graph):
        ended = store.runs.wait(run.id, timeout=60)
    assert (ended.state, ended.error) == ("done", "")
    assert set(struck.effects.values()) == {1}
    return sorted(store.thread("t").get().state["log"])


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


def test_a_node_that_langgraph_runs_again_finds_the_results_of_its_steps(store: Store) -> None:
    struck = Struck("after one", "after one", "after two")

    def pay(state: Log) -> dict[str, Any]:
        one = struck.effect("one")
        struck.fail("after one")
        two = struck.effect("two")
        struck.fail("after two")
        return {"log": [one, two]}

    builder: Any = StateGraph(Log)
    builder.add_node("pay", pay, retry_policy=_RETRIES)
    graph = builder.add_edge(START, "pay").add_edge("pay", END).compile()
    assert _paid(store, graph, struck) == ["receipt one 1", "receipt two 2"]


def test_a_graph_in_a_node_that_is_run_again_finds_those_with_keys(store: Store) -> None:
    struck = Struck("inside", "outside")

    def inner(state: Log) -> dict[str, Any]:
        receipt = struck.effect("inner", key="inner")
        struck.fail("inside")
        return {"log": [receipt]}

    below: Any = StateGraph(Log)
    below.add_node("inner", inner)
    compiled = below.add_edge(START, "inner").add_edge("inner", END).compile()

    def outer(state: Log) -> dict[str, Any]:
        before = struck.effect("outer")
        found = compiled.invoke({"log": []})
        struck.fail("outside")
        return {"log": [before, *found["log"]]}

    builder: Any = StateGraph(Log)
    builder.add_node("outer", outer, retry_policy=_RETRIES)
    graph = builder.add_edge(START, "outer").add_edge("outer", END).compile()
    assert _paid(store, graph, struck) == ["receipt inner 2", "receipt outer 1"]


@pytest.mark.parametrize("retries", [None, _RETRIES])
def test_loops_and_several_sends_to_a_node_find_each_their_own(store: Store, retries: RetryPolicy | None) -> None:
    struck = Struck(*(f"item {number}" for number in range(3)), "round 1")

    def item(state: Any) -> dict[str, Any]:
        number = state["number"]
        receipt = struck.effect(f"item {number}")
        struck.fail(f"item {number}")
        return {"log": [receipt.rpartition(" ")[0]]}

    def loop(state: Log) -> dict[str, Any]:
        rounds = sum(each.startswith("receipt round") for each in state["log"])
        receipt = struck.effect(f"round {rounds}")
        struck.fail(f"round {rounds}")
        return {"log": [receipt.rpartition(" ")[0]]}

    def route(state: Log) -> Any:
        rounds = sum(each.startswith("receipt round") for each in state["log"])
        return "loop" if rounds < 3 else [Send("item", {"number": number}) for number in range(3)]

    builder: Any = StateGraph(Log)
    builder.add_node("loop", loop, retry_policy=retries)
    builder.add_node("item", item, retry_policy=retries)
    builder.add_edge(START, "loop").add_conditional_edges("loop", route, ["loop", "item"]).add_edge("item", END)
    found = _paid(store, builder.compile(), struck, attempts=9)
    assert found == [f"receipt {what} {number}" for what in ("item", "round") for number in range(3)]


def test_a_program_that_invokes_its_graph_again_finds_them(store: Store) -> None:
    struck = Struck("after one")

    def pay(state: Log) -> dict[str, Any]:
        one = struck.effect("one")
        struck.fail("after one")
        return {"log": [one]}

    builder: Any = StateGraph(Log)
    builder.add_node("pay", pay)
    saver = HoldfastSaver(store, recover="g")
    graph = builder.add_edge(START, "pay").add_edge("pay", END).compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    with saver.run(config):
        with pytest.raises(ValueError, match="struck"):
            graph.invoke({"log": []}, config, durability="sync")
        assert graph.invoke(None, config, durability="sync") == {"log": ["receipt one 1"]}
    assert struck.effects == {"one": 1}
