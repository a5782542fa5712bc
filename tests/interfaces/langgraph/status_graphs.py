"""Graphs that end, or stop, in every way that there is; and a process that is killed in the middle of one."""

from __future__ import annotations

import operator
import os
import signal
import sys
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt

import holdfast
from holdfast.langgraph import HoldfastSaver


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


class PaymentError(Exception):
    """An error with a text of its own."""

    def __str__(self) -> str:
        return "the card of ada@example.com was refused"


def step(state: Log) -> dict[str, Any]:
    return {"log": [len(state["log"])]}


def fail(_: Log) -> dict[str, Any]:
    raise PaymentError


def refuse(_: Log) -> dict[str, Any]:
    raise ValueError("it's 'late'")


def recovers() -> Any:
    """Return a node that fails when it is called first."""
    calls: list[Log] = []

    def recover(state: Log) -> dict[str, Any]:
        calls.append(state)
        return refuse(state) if len(calls) == 1 else {}

    return recover


def ask(_: Log) -> dict[str, Any]:
    return {"log": [interrupt({"ask": "May ada@example.com be paid?"}), interrupt("Really?")]}


def die(_: Log) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def build(kind: str) -> Any:
    graph: Any = StateGraph(Log)
    node = {"fails": fail, "refuses": refuse, "asks": ask, "dies": die, "sends": step, "send-fails": step}.get(
        kind, step
    )
    graph.add_node("first", node)
    graph.add_edge(START, "first")
    if kind in ("chain", "breaks"):
        graph.add_node("second", step)
        graph.add_edge("first", "second")
    elif kind == "loops":
        graph.add_edge("first", "first")
    elif kind == "joins":
        graph.add_node("beside", step)
        graph.add_node("second", step)
        graph.add_edge(START, "beside")
        graph.add_edge(["first", "beside"], "second")
    elif kind == "defers":
        graph.add_node("beside", step)
        graph.add_node("second", step, defer=True)
        graph.add_edge(START, "beside")
        graph.add_edge("first", "second")
        graph.add_edge("beside", "second")
    elif kind in ("sends", "send-fails"):
        graph.add_node("sent", refuse if kind == "send-fails" else step)
        graph.add_conditional_edges(
            "first", lambda _: [Send("sent", {"log": [1]}), Send("sent", {"log": [2]})], ["sent"]
        )
    elif kind in ("subgraph", "subgraph-asks"):
        child: Any = StateGraph(Log)
        child.add_node("inner", ask if kind == "subgraph-asks" else step)
        child.add_edge(START, "inner")
        graph.add_node("child", child.compile())
        graph.add_edge("first", "child")
    elif kind in ("one-asks-one-fails", "one-asks-one-recovers"):
        graph.add_node("asking", ask)
        graph.add_node("failing", recovers() if kind == "one-asks-one-recovers" else refuse)
        graph.add_edge("first", "asking")
        graph.add_edge("first", "failing")
    return graph


if __name__ == "__main__":
    with holdfast.open(sys.argv[1]) as store, store.thread("killed").running():
        compiled = build("dies").compile(checkpointer=HoldfastSaver(store))
        compiled.invoke({"log": []}, {"configurable": {"thread_id": "killed"}}, durability="sync")
