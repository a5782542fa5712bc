"""Graphs go on from what was switched to, merged, forked with an edit, and restored through the store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from langgraph.graph import START

import holdfast
from holdfast.errors import ConflictError, UnsupportedError
from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph.calls import Caller
from tests.interfaces.langgraph.scenarios.basics import Log, says
from tests.interfaces.langgraph.scenarios.deltas import Delta, writes
from tests.interfaces.langgraph.sessions import Session, on


@pytest.fixture
def store() -> Iterator[holdfast.Store]:
    with holdfast.open("memory://") as opened:
        yield opened


def talking(store: holdfast.Store) -> tuple[Any, HoldfastSaver]:
    saver = HoldfastSaver(store)
    nodes = {"a": says("a"), "b": says("b")}
    return Session(saver, asynchronous=False).graph(Log, nodes, ((START, "a"), ("a", "b"))), saver


def log_of(graph: Any) -> list[str]:
    return list(graph.get_state(on("t")).values["log"])


def test_a_graph_goes_on_with_the_branch_that_was_switched_to(store: holdfast.Store) -> None:
    graph, saver = talking(store)
    graph.invoke({"log": ["one"]}, on("t"))
    store.thread("t").fork("draft")
    graph.invoke({"log": ["two"]}, on("t"))
    assert log_of(graph) == ["one", "a", "b", "two", "a", "b"]
    switched = store.thread("t").switch("draft")
    found = saver.get_tuple(on("t"))
    assert found is not None
    assert found.checkpoint["id"] == found.config["configurable"]["checkpoint_id"] == switched.id
    assert datetime.fromisoformat(found.checkpoint["ts"]) == switched.time
    assert found.parent_config is not None
    assert found.parent_config["configurable"]["checkpoint_id"] == switched.parent
    assert graph.get_state(on("t")).next == ()
    assert log_of(graph) == ["one", "a", "b"]
    assert graph.invoke({"log": ["three"]}, on("t"))["log"] == ["one", "a", "b", "three", "a", "b"]
    assert store.thread("t").get().branch == switched.branch
    store.thread("t").switch("main")
    assert log_of(graph) == ["one", "a", "b", "two", "a", "b"]


def test_a_graph_goes_on_from_a_merge(store: holdfast.Store) -> None:
    graph, saver = talking(store)
    graph.invoke({"log": ["one"]}, on("t"))
    store.thread("t").fork("draft")
    graph.invoke({"log": ["two"]}, on("t"))
    store.thread("t").switch("draft")
    graph.invoke({"log": ["three"]}, on("t"))
    with pytest.raises(ConflictError) as refused:
        store.thread("t").merge("main", "draft")
    assert [clash.where for clash in refused.value.conflicts] == ["log[3:6]"]  # and no version of a channel
    merged = store.thread("t").merge("main", "draft", strategy="union")
    assert log_of(graph) == ["one", "a", "b", "three", "a", "b", "two"]
    found = saver.get_tuple(on("t"))
    assert found is not None
    assert found.checkpoint["id"] == merged.id
    versions = [store.thread("t").get(at=at).state["__checkpoint__"] for at in ("HEAD", "HEAD^1", "HEAD^2")]
    for channel, version in found.checkpoint["channel_versions"].items():
        assert version == max(each[f"version of {channel}"] for each in versions[1:])
    assert graph.get_state(on("t")).next == ()  # nothing is run again because of the merge
    after = graph.invoke({"log": ["four"]}, on("t"))["log"]
    assert after == ["one", "a", "b", "three", "a", "b", "two", "four", "a", "b"]
    assert next(state.values.get("log") for state in graph.get_state_history(on("t"))) == after


@pytest.mark.parametrize("turns", [(2, 0), (0, 3), (1, 2)], ids=str)
def test_no_node_runs_because_of_a_merge(store: holdfast.Store, turns: tuple[int, int]) -> None:
    """However many steps either side took: versions of channels are the greater ones."""
    graph, saver = talking(store)
    graph.invoke({"log": ["one"]}, on("t"))
    store.thread("t").fork("draft")
    for branch, count in zip(("main", "draft"), turns, strict=True):
        store.thread("t").switch(branch)
        for turn in range(count):
            graph.invoke({"log": [f"{branch} {turn}"]}, on("t"))
    kept = [store.thread("t").get(at=at).state["__checkpoint__"] for at in ("main", "draft")]
    store.thread("t").merge("main", "draft", strategy="ours", resolve={"log": "union"})
    assert graph.get_state(on("t")).next == ()
    found = saver.get_tuple(on("t"))
    assert found is not None
    for channel, version in found.checkpoint["channel_versions"].items():
        assert version == max(each[f"version of {channel}"] for each in kept)
    merged = log_of(graph)
    assert {
        f"{branch} {turn}" for branch, count in zip(("main", "draft"), turns, strict=True) for turn in range(count)
    } < {*merged}
    assert graph.invoke({"log": ["on"]}, on("t"))["log"] == [*merged, "on", "a", "b"]


def test_a_parent_that_is_only_said_to_be_one_is_not_taken_over(store: holdfast.Store) -> None:
    saver = Caller(HoldfastSaver(store), asynchronous=False)
    saver.put("1", {"x": 1})
    saver.put("2", {"x": 2}, parent="gone")
    said = saver.get().parent_config
    assert said is not None
    assert said["configurable"]["checkpoint_id"] == "gone"
    restored = store.thread("t").restore(at="2")
    parent = saver.get().parent_config
    assert parent is not None
    assert parent["configurable"]["checkpoint_id"] == restored.parent == "2"


def test_a_fork_with_an_edit_and_a_restore(store: holdfast.Store) -> None:
    graph, _ = talking(store)
    graph.invoke({"log": ["one"]}, on("t"))
    end = store.thread("t").get().id
    graph.invoke({"log": ["two"]}, on("t"))
    store.thread("t").fork("edited", at=end, changes={"log": ["changed"]})
    store.thread("t").switch("edited")
    assert graph.invoke({"log": ["three"]}, on("t"))["log"] == ["changed", "three", "a", "b"]
    store.thread("t").restore(at=end)
    assert graph.invoke({"log": ["four"]}, on("t"))["log"] == ["one", "a", "b", "four", "a", "b"]


def test_a_fork_does_not_move_the_thread_of_a_graph(store: holdfast.Store) -> None:
    """The graph resumes the thread by its name from where it was; a fork is run by the id of its checkpoint."""
    graph, saver = talking(store)
    thread = store.thread("t")
    graph.invoke({"log": ["one"]}, on("t"))
    end = store.thread("t").get().id
    graph.invoke({"log": ["two"]}, on("t"))
    two = ["one", "a", "b", "two", "a", "b"]
    fork = thread.fork("edited", at=end, changes={"log": ["changed"]}).head
    thread.fork("draft", at=end)
    thread.update({"log": ["drafted"]}, branch="draft")
    for _ in range(2):
        assert log_of(graph) == next(each.values["log"] for each in graph.get_state_history(on("t"))) == two
        assert graph.invoke({"log": ["on"]}, on("t"))["log"] == [*two, "on", "a", "b"]
        two = log_of(graph)
        # The fork, on its own.
        tried = graph.invoke({"log": ["try"]}, on("t", checkpoint_id=fork))
        assert tried["log"] == ["changed", "try", "a", "b"]
    assert thread.get(at="edited").state["log"] == ["changed", "try", "a", "b"]  # the second try is on a branch of it
    graph.update_state(on("t", checkpoint_id=thread.find("draft").id), {"log": ["more"]})
    assert thread.get(at="draft").state["log"] == ["drafted", "more"]
    assert log_of(graph) == two
    assert [each.checkpoint["id"] for each in saver.list(on("t"), limit=1)] == [thread.find("main").id]
    # The graph returns to one of its own checkpoints, and goes on from there.
    assert graph.invoke({"log": ["three"]}, on("t", checkpoint_id=end))["log"] == ["one", "a", "b", "three", "a", "b"]
    assert log_of(graph) == ["one", "a", "b", "three", "a", "b"]
    thread.switch("edited")
    assert graph.invoke({"log": ["on"]}, on("t"))["log"] == ["changed", "try", "a", "b", "on", "a", "b"]
    thread.switch("main")
    assert log_of(graph) == two
    listed = [each.checkpoint["id"] for each in saver.list(on("t"))]
    assert thread.find("draft").id not in listed
    assert fork not in listed
    assert [each.checkpoint["id"] for each in saver.list(on("t", checkpoint_id=fork))] == [fork]


# Delta channels: only the graph knows their values --------------------------------------------------------------


def delta_graph(store: holdfast.Store) -> Any:
    saver = HoldfastSaver(store)
    return Session(saver, asynchronous=False).graph(Delta, {"a": writes("a")}, ((START, "a"),))


def values_of(graph: Any) -> dict[str, Any]:
    return dict(graph.get_state(on("t")).values)


def test_delta_channels_stay_what_they_were(store: holdfast.Store) -> None:
    graph = delta_graph(store)
    for turn in range(3):
        graph.invoke({"often": [turn], "seldom": [turn]}, on("t"))
    early, end = values_of(graph), store.thread("t").get().id
    store.thread("t").fork("draft")
    for turn in range(3, 6):
        graph.invoke({"often": [turn], "seldom": [turn], "n": turn}, on("t"))
    late = values_of(graph)
    assert late["seldom"][: len(early["seldom"])] == early["seldom"] != late["seldom"]
    store.thread("t").switch("draft")
    assert values_of(graph) == early
    store.thread("t").switch("main")
    assert values_of(graph) == late
    store.thread("t").restore(at=end)
    assert values_of(graph) == early
    store.thread("t").fork("edited", at=end, changes={"n": 9})
    assert values_of(graph) == early
    store.thread("t").switch("edited")
    assert values_of(graph) == {**early, "n": 9}
    graph.invoke({"seldom": ["more"]}, on("t"))
    assert values_of(graph)["seldom"] == [*early["seldom"], "more", ("a", len(early["seldom"]) + 1)]


def test_delta_channels_are_taken_whole_by_a_merge(store: holdfast.Store) -> None:
    graph = delta_graph(store)
    graph.invoke({"seldom": [0]}, on("t"))
    store.thread("t").fork("draft", changes={"n": 1})
    store.thread("t").switch("draft")
    theirs = values_of(graph)
    store.thread("t").switch("main")
    graph.invoke({"seldom": [1]}, on("t"))
    ours = values_of(graph)
    store.thread("t").merge("draft")
    assert values_of(graph) == {**ours, "n": 1}  # the draft wrote to none of them
    store.thread("t").switch("draft")
    store.thread("t").merge("main", "draft")
    assert values_of(graph) == {**ours, "n": 1}  # main alone did
    graph.invoke({"seldom": [2]}, on("t"))
    drafted = values_of(graph)
    store.thread("t").switch("main")
    graph.invoke({"seldom": [3]}, on("t"))
    with pytest.raises(UnsupportedError, match="both sides wrote to channel"):
        store.thread("t").merge("draft")
    assert theirs["seldom"] != drafted["seldom"]
    store.thread("t").merge("draft", strategy="theirs")
    assert values_of(graph)["seldom"] == drafted["seldom"]
