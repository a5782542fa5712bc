"""A graph that asks before it refunds. `CHANGE` in the environment changes its code."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, TypedDict

from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from holdfast import replay

CHANGE = os.environ.get("CHANGE", "")
SHOP = "support@shop.example"

if CHANGE == "import":
    raise RuntimeError("no configuration")


@dataclass
class Price:
    amount: int


@replay.recorded
def look_up(order: str) -> Price:
    """Return an object of the application's own."""
    return Price(len(order))


@tool
def refund(order: str, sender: str) -> str:
    """Refund an order."""
    return f"refunded {order} by {sender}"


class State(TypedDict, total=False):
    order: str
    answer: str
    done: str


def approve(state: State) -> State:
    amount = look_up(state["order"]).amount
    if CHANGE == "removed":
        return {"answer": "yes"}
    question = "Refund now?" if CHANGE == "question" else "Refund?"
    answer = interrupt({"question": question, "amount": amount})
    if CHANGE == "added":
        interrupt("Really?")
    return {"answer": answer}


def pay(state: State) -> State:
    if CHANGE == "fails":
        raise KeyError("no account")
    if CHANGE == "exits":
        sys.exit("no account")
    return {"done": refund.invoke({"order": state["order"], "sender": SHOP})}


def thank(state: State) -> State:
    return {"answer": state["answer"]}


def build(saver: Any = None) -> Any:
    """Return the graph."""
    graph = StateGraph(State)
    graph.add_node(pay)
    if CHANGE == "node":
        graph.add_edge(START, "pay")
        return graph.compile(checkpointer=saver)
    graph.add_node(approve)
    graph.add_edge(START, "approve")
    graph.add_edge("approve", "pay")
    if CHANGE == "more":
        graph.add_node(thank)
        graph.add_edge("pay", "thank")
    return graph.compile(checkpointer=saver)


def build_nested(saver: Any = None) -> Any:
    """Return a graph with the other one as its only node."""
    graph = StateGraph(State)
    graph.add_node("inner", build())
    graph.add_edge(START, "inner")
    return graph.compile(checkpointer=saver)
