"""Graphs in graphs: with the parent's saver, with a memory of their own, two levels deep, called from a node."""

from __future__ import annotations

import itertools
from typing import Any

from langgraph.graph import START
from langgraph.types import Command, interrupt

from tests.interfaces.langgraph.scenarios.basics import Log, says
from tests.interfaces.langgraph.sessions import Session, latest, on, scenario


def child(s: Session, *names: str, **options: Any) -> Any:
    """A line of nodes that say their names."""
    edges = [(START, names[0]), *itertools.pairwise(names)]
    return s.graph(Log, {name: says(name) for name in names}, edges, **{"checkpointer": None, **options})


@scenario
async def a_subgraph(s: Session) -> None:
    nodes = {"before": says("before"), "child": child(s, "x", "y"), "after": says("after")}
    graph = s.graph(Log, nodes, ((START, "before"), ("before", "child"), ("child", "after")))
    await s.run("first", graph, {"log": ["in"]}, on("t"))
    await s.stream("second", graph, {"log": ["in"]}, on("t"), subgraphs=True, stream_mode=["updates", "checkpoints"])
    await s.audit(graph, "t")


@scenario
async def a_subgraph_that_stops(s: Session) -> None:
    inner = child(s, "x", "y", "z", interrupt_before=["y"], interrupt_after=["y"])
    graph = s.graph(Log, {"child": inner, "after": says("after")}, ((START, "child"), ("child", "after")))
    await s.run("stops before y", graph, {"log": ["in"]}, on("t"))
    state = await s.state("inside", graph, on("t"))
    inside = state.tasks[0].state.config
    await s.update(graph, inside, {"log": ["by hand"]})
    await s.run("stops after y", graph, None, on("t"))
    await s.state("the child alone", graph, (await s.state("again", graph, on("t"), subgraphs=False)).tasks[0].state)
    await s.history("the child's history", graph, inside)
    await s.run("ends", graph, None, on("t"))
    await s.audit(graph, "t")


@scenario
async def a_subgraph_with_a_memory(s: Session) -> None:
    inner = child(s, "x", "y", checkpointer=True)
    graph = s.graph(Log, {"child": inner, "after": says("after")}, ((START, "child"), ("child", "after")))
    for turn in ("one", "two", "three"):
        await s.run(turn, graph, {"log": [turn]}, on("t"))
    await s.history("the child's history", graph, on("t", checkpoint_ns="child"))
    await s.audit(graph, "t")


@scenario
async def subgraphs_two_levels_deep(s: Session) -> None:
    inner = child(s, "x", "y", interrupt_after=["x"])
    middle = s.graph(Log, {"inner": inner, "m": says("m")}, ((START, "inner"), ("inner", "m")), checkpointer=None)
    graph = s.graph(Log, {"middle": middle, "end": says("end")}, ((START, "middle"), ("middle", "end")))
    await s.run("stops", graph, {"log": ["in"]}, on("t"))
    deep = (await s.state("deep", graph, on("t"))).tasks[0].state.tasks[0].state
    await s.state("deepest", graph, deep.config)
    await s.update(graph, deep.config, {"log": ["deep by hand"]}, as_node="x")
    await s.run("ends", graph, None, on("t"))
    await s.run("next turn", graph, {"log": ["again"]}, on("t"))
    await s.audit(graph, "t")


@scenario
async def a_memory_two_levels_deep(s: Session) -> None:
    inner = child(s, "x", checkpointer=True)
    middle = s.graph(Log, {"inner": inner, "m": says("m")}, ((START, "inner"), ("inner", "m")), checkpointer=True)
    graph = s.graph(Log, {"middle": middle}, ((START, "middle"),))
    await s.run("one", graph, {"log": ["one"]}, on("t"))
    await s.run("two", graph, {"log": ["two"]}, on("t"))
    await s.audit(graph, "t")


@scenario
async def a_subgraph_without_a_saver(s: Session) -> None:
    graph = s.graph(Log, {"child": child(s, "x", "y", checkpointer=False)}, ((START, "child"),))
    await s.run("one", graph, {"log": ["one"]}, on("t"))
    await s.audit(graph, "t")


def two_steps(s: Session, name: str) -> Any:
    """A subgraph that stops in the middle."""
    nodes = {step: (lambda _, step=step: {"log": [f"{name} {step}"]}) for step in ("1", "2")}
    return s.graph(Log, nodes, ((START, "1"), ("1", "2")), checkpointer=None, interrupt_before=["2"])


@scenario
async def parallel_subgraphs(s: Session) -> None:
    graph = s.graph(Log, {name: two_steps(s, name) for name in "lr"}, ((START, "l"), (START, "r")))
    await s.run("both stop", graph, {"log": ["in"]}, on("t"))
    await s.run("both end", graph, None, on("t"))
    await s.audit(graph, "t")


@scenario
async def a_graph_called_in_a_node(s: Session) -> None:
    inner = s.graph(Log, {"ask": lambda _: {"log": [interrupt("well?")]}}, ((START, "ask"),), checkpointer=None)

    def call(state: Log) -> Any:
        return {"log": inner.invoke({"log": state["log"]})["log"][-1:]}

    async def acall(state: Log) -> Any:
        return {"log": (await inner.ainvoke({"log": state["log"]}))["log"][-1:]}

    graph = s.graph(Log, {"call": acall if s.asynchronous else call}, ((START, "call"),))
    await s.run("asks", graph, {"log": ["in"]}, on("t"))
    await s.run("answered", graph, Command(resume="fine"), on("t"))
    await s.audit(graph, "t")


@scenario
async def travel_in_a_subgraph(s: Session) -> None:
    inner = child(s, "x", "y", interrupt_before=["y"])
    graph = s.graph(Log, {"child": inner, "after": says("after")}, ((START, "child"), ("child", "after")))
    await s.run("stops", graph, {"log": ["in"]}, on("t"))
    inside = (await s.state("inside", graph, on("t"))).tasks[0].state.config
    await s.run("ends", graph, None, on("t"))
    history = await s.history("before", graph, inside)
    await s.run("again from inside", graph, None, history[-1].config)
    await s.run("and on", graph, None, latest(on("t")))
    await s.audit(graph, "t")
