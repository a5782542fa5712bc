"""Graphs that return to their checkpoints, in any order, beside LangGraph's saver in memory.

Meanwhile somebody forks the thread through the store, saves to the forks, and runs graphs on them. The graph does not
notice: its states and its history stay those that LangGraph's own saver has.
"""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START
from langgraph.types import StateSnapshot

import holdfast
from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph.scenarios.basics import Log, says
from tests.interfaces.langgraph.sessions import Session, on
from tests.support.nightly import mostly_nightly

ACTIONS = ("continue", "continue", "return", "return", "replay", "update", "update an old one")
FORKS = ("fork", "edit", "save", "run", "nothing")


def graph_on(saver: BaseCheckpointSaver[Any], stops: bool) -> Any:
    nodes = {"a": says("a"), "b": says("b")}
    session = Session(saver, asynchronous=False)
    return session.graph(Log, nodes, ((START, "a"), ("a", "b")), interrupt_before=["b"] if stops else None)


def history(graph: Any) -> list[StateSnapshot]:
    return list(graph.get_state_history(on("t")))


def described(states: list[StateSnapshot]) -> list[Any]:
    """Return what can be compared: ids are random, so a parent is the number of a state."""
    numbers = {id_of(state.config): number for number, state in enumerate(reversed(states))}
    parents = [None if each.parent_config is None else numbers.get(id_of(each.parent_config)) for each in states]
    return [
        (state.values, state.next, state.metadata and state.metadata.get("source"), parent)
        for state, parent in zip(states, parents, strict=True)
    ]


def id_of(config: RunnableConfig) -> str:
    return str(config["configurable"]["checkpoint_id"])


def act(graph: Any, what: str, number: int, chance: int) -> Any:
    """Do the same in every graph: with the checkpoint that is at some place of its history."""
    states = history(graph)
    old = states[chance % len(states)].config if states else on("t")
    if what == "return":
        return graph.invoke({"log": [f"return {number}"]}, old)
    if what == "replay":
        return graph.invoke(None, old)
    if what == "update":
        return graph.update_state(on("t"), {"log": [f"update {number}"]}, as_node="a") and None
    if what == "update an old one":
        return graph.update_state(old, {"log": [f"update {number}"]}, as_node="b") and None
    return graph.invoke({"log": [f"continue {number}"]}, on("t"))


class Forker:
    """Forks the thread of a graph, and works on the forks."""

    def __init__(self, store: holdfast.Store, graph: Any) -> None:
        self.thread = store.thread("t")
        self.graph = graph
        self.names: list[str] = []
        self.edited: list[str] = []

    def act(self, what: str, number: int, chance: int) -> None:
        name = f"fork {number}"
        ids = [each.id for each in self.thread.log()]
        if what == "fork":
            self.thread.fork(name, at=ids[chance % len(ids)])
            self.names.append(name)
        elif what == "edit":
            self.thread.fork(name, at=ids[chance % len(ids)], changes={"log": [name]})
            self.names.append(name)
            self.edited.append(name)
        elif what == "save" and self.names:
            name = self.names[chance % len(self.names)]
            self.thread.update({"log": [name]}, branch=name)
            self.edited.append(name)
        elif what == "run" and self.edited:
            fork = self.thread.find(self.edited[chance % len(self.edited)])
            self.graph.invoke({"log": [name]}, on("t", checkpoint_id=fork.id))


@pytest.mark.parametrize(("seed", "forks"), mostly_nightly([*product(range(60), [False, True])], daily=[(0, True)]))
def test_a_graph_that_returns_to_its_checkpoints(tmp_path: Path, seed: int, forks: bool) -> None:
    chance = random.Random(seed)
    url = "memory://" if seed % 2 else f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as store:
        saver = HoldfastSaver(store)
        stops = chance.random() < 0.5
        ours, theirs = graph_on(saver, stops), graph_on(InMemorySaver(), stops)
        forker = Forker(store, ours)
        worked = 0
        for number in range(15):
            what, place = chance.choice(ACTIONS) if number else "continue", chance.randrange(1 << 16)
            assert act(ours, what, number, place) == act(theirs, what, number, place)
            if forks:
                beside = chance.choice(FORKS)
                head = store.thread("t").find()
                forker.act(beside, number, chance.randrange(1 << 16))
                assert store.thread("t").find() == head
                worked += beside in ("edit", "save", "run")
            assert described(history(ours)) == described(history(theirs))
            assert ours.get_state(on("t")).values == theirs.get_state(on("t")).values
        assert worked or not forks
        assert store.maintenance.verify("t").findings == []
