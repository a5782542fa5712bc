"""Graphs and workflows that the tests of runs use. What they do outside is in a ledger, a file that nothing else
writes."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

import holdfast


class Log(TypedDict):
    """What the nodes did."""

    log: Annotated[list[str], operator.add]


def write_ledger(path: Path, what: str) -> None:
    """Append a line, at once and on disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{what}\n".encode())
    os.close(descriptor)


def chain(*nodes: Callable[[Any], Any], name: str = "chain") -> Any:
    """A compiled graph of nodes that run one after another."""
    builder: Any = StateGraph(Log)
    names = [node.__name__ for node in nodes]
    for each, node in zip(names, nodes, strict=True):
        builder.add_node(each, node)
    for before, after in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(before, after)
    return builder.compile(name=name)


def logging_nodes(count: int, around: Callable[[str], None] = lambda name: None) -> list[Callable[[Any], Any]]:
    """Nodes that say in the state that they ran."""

    def make(name: str) -> Callable[[Any], Any]:
        def node(state: Log) -> dict[str, Any]:
            around(name)
            return {"log": [name]}

        node.__name__ = name
        return node

    return [make(f"n{number}") for number in range(count)]


def asking(name: str = "asking") -> Any:
    """A graph that asks a question between two nodes."""

    def ask(state: Log) -> dict[str, Any]:
        return {"log": [f"answered {interrupt('which?')}"]}

    first, last = logging_nodes(2)
    return chain(first, ask, last, name=name)


def buying(ledger: Path, around: Callable[[str], None] = lambda name: None) -> Any:
    """A workflow of five steps, each with an effect in the ledger."""

    @holdfast.step(on_unknown="retry")
    def pay(order: str, part: int) -> str:
        around(f"{order} {part}")
        write_ledger(ledger, f"{order} {part}")
        return f"paid {part}"

    @holdfast.workflow
    def buy(order: str) -> list[str]:
        return [pay(order, part) for part in range(5)]

    return buy
