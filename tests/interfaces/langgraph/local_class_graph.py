"""A graph whose state has instances of classes that are defined in a function; run by tests, here and in a process of
its own, which reads what this one saved."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel

from holdfast.langgraph import HoldfastSaver


class State(TypedDict, total=False):
    plans: list[Any]
    said: str


def build(saver: Any, *, nested: bool = False) -> Any:
    """Return a graph that makes plans, waits for an answer, and reads them."""

    @dataclass
    class Plan:
        goal: str

    class Model(BaseModel):
        goal: str
        inner: Any = None

    class Pair(NamedTuple):
        goal: str
        number: int

    def make(state: State) -> State:
        return {"plans": [Plan("rest"), Model(goal="eat", inner=Plan("cook")), Pair("walk", 2)]}

    def read(state: State) -> State:
        answer = interrupt("Which?")
        plan, model, pair = state["plans"]
        assert (type(plan), type(model), type(pair), type(model.inner)) == (Plan, Model, Pair, Plan)
        return {"said": f"{answer}: {plan.goal} {model.goal} {model.inner.goal} {pair.goal}"}

    graph = StateGraph(State)
    graph.add_node(make)
    graph.add_node(read)
    graph.add_edge(START, "make")
    graph.add_edge("make", "read")
    if not nested:
        return graph.compile(checkpointer=saver)
    outer = StateGraph(State)
    outer.add_node("inner", graph.compile())
    outer.add_edge(START, "inner")
    return outer.compile(checkpointer=saver)


def show(url: str) -> None:
    """Read the thread in another process: print what it warned of, and the plans; save them again."""
    with HoldfastSaver.from_conn_string(url) as saver, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = build(saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        plans = graph.get_state(config).values["plans"]
        graph.update_state(config, {"plans": plans})
        assert graph.get_state(config).values["plans"] == plans
    for each in caught:
        print("warned:", each.message)
    for plan in plans:
        print(type(plan).__name__, plan.type_name, plan.fields["goal"])


if __name__ == "__main__":
    show(sys.argv[1])
