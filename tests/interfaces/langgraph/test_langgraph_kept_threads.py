"""Graphs go on as before after their threads were pruned, copied, or had runs deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START

from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph.savers import HOLDFAST, holdfast_saver
from tests.interfaces.langgraph.scenarios.basics import Log, says
from tests.interfaces.langgraph.scenarios.deltas import Delta, writes
from tests.interfaces.langgraph.sessions import Session, on
from tests.support.nightly import mostly_nightly


@pytest.fixture(params=mostly_nightly(HOLDFAST, daily=["sqlite"]))
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HoldfastSaver]:
    with holdfast_saver(request.param, tmp_path) as opened:
        yield opened


def deltas_on(saver: HoldfastSaver) -> Any:
    """A graph of delta channels, with a subgraph that has a memory of its own."""
    session = Session(saver, asynchronous=False)
    inner = session.graph(Delta, {"x": writes("x"), "y": writes("y")}, ((START, "x"), ("x", "y")), checkpointer=True)
    nodes = {"child": inner, "after": writes("after")}
    return session.graph(Delta, nodes, ((START, "child"), ("child", "after")))


def turn(graph: Any, thread: str, number: int, run: str | None = None) -> Any:
    config: dict[str, Any] = {**on(thread), "metadata": {} if run is None else {"run_id": run}}
    return graph.invoke({"often": [number], "seldom": [number]}, config)


def state_of(graph: Any, thread: str) -> tuple[Any, Any]:
    """The latest state of a thread, and of its subgraph."""
    inside = graph.get_state(on(thread, checkpoint_ns="child"))
    return graph.get_state(on(thread)).values, inside.values


@pytest.mark.parametrize("turns", mostly_nightly([1, 2, 3, 4], daily=(2,)))
def test_pruned(saver: HoldfastSaver, turns: int) -> None:
    graph = deltas_on(saver)
    for thread in ("pruned", "whole"):
        for number in range(turns):
            turn(graph, thread, number)
    saver.prune(["pruned"])
    assert state_of(graph, "pruned") == state_of(graph, "whole")
    kept, all_of_them = (len(list(saver.list(on(thread)))) for thread in ("pruned", "whole"))
    assert kept < all_of_them
    for number in range(turns, turns + 3):
        assert turn(graph, "pruned", number) == turn(graph, "whole", number)
        assert state_of(graph, "pruned") == state_of(graph, "whole")
        saver.prune(["pruned"])
        assert state_of(graph, "pruned") == state_of(graph, "whole")


def test_pruned_to_one_checkpoint(saver: HoldfastSaver) -> None:
    edges = ((START, "a"), ("a", "b"))
    graph = Session(saver, asynchronous=False).graph(
        Log, {"a": says("a"), "b": says("b")}, edges, interrupt_before=["b"]
    )
    graph.invoke({"log": ["in"]}, on("t"))
    saver.prune(["t"])
    (only,) = graph.get_state_history(on("t"))
    assert only.next == ("b",)
    assert graph.invoke(None, on("t")) == {"log": ["in", "a", "b"], "n": 2}
    saver.prune(["t"], strategy="delete")
    assert list(saver.list(on("t"))) == []
    assert graph.get_state(on("t")).values == {}


def told(graph: Any, thread: str) -> list[Any]:
    """The history of a thread, without its name."""
    return [
        (state.values, state.next, state.metadata, state.created_at, state.config["configurable"]["checkpoint_id"])
        for namespace in ("", "child")
        for state in graph.get_state_history(on(thread, checkpoint_ns=namespace))
    ]


def test_copied(saver: HoldfastSaver) -> None:
    graph = deltas_on(saver)
    for number in range(3):
        turn(graph, "source", number)
    before = told(graph, "source")
    saver.copy_thread("source", "copy")
    assert told(graph, "copy") == before
    after = turn(graph, "copy", 3)
    assert told(graph, "source") == before, "the copy is not one of its own"
    assert turn(graph, "source", 3) == after
    copied = state_of(graph, "copy")
    assert state_of(graph, "source") == copied
    saver.delete_thread("source")
    assert list(saver.list(on("source"))) == []
    assert state_of(graph, "copy") == copied
    assert turn(graph, "source", 0) == turn(graph, "other", 0)


def test_the_last_run_deleted(saver: HoldfastSaver) -> None:
    """A thread whose last run is deleted is as it was before that run."""
    graph = deltas_on(saver)
    for number in range(2):
        turn(graph, "t", number, run=f"run {number}")
    before = told(graph, "t")
    turn(graph, "t", 2, run="unwanted")
    saver.delete_for_runs(["unwanted"])
    assert [state[:2] for state in told(graph, "t")] == [state[:2] for state in before]
    for number in range(2):
        turn(graph, "other", number)
    assert turn(graph, "t", 2) == turn(graph, "other", 2)
