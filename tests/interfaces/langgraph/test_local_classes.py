"""Graphs whose state has instances of classes that are defined in a function go on, in the process that has them."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import BaseModel, create_model

import holdfast
from holdfast.codec import OpaqueValue, opaque
from holdfast.encryption import Encryption, LocalKeys
from holdfast.langgraph import HoldfastSaver
from tests.interfaces.langgraph import local_class_graph
from tests.interfaces.langgraph.local_class_graph import build
from tests.interfaces.langgraph.savers import holdfast_saver

CONFIG: Any = {"configurable": {"thread_id": "t"}}
SAID = "all: rest eat cook walk"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*cannot be found by its name")
        yield


@pytest.mark.parametrize("way", ["plain", "encrypted", "identity", "async", "subgraph", "copied"])
def test_a_graph_goes_on_with_them(way: str, tmp_path: Path) -> None:
    keys = Encryption(LocalKeys(b"1" * 32)) if way == "encrypted" else None
    with holdfast.open(tmp_path / "a.db", encryption=keys) as store:
        saver = HoldfastSaver(store.as_identity(agent="clerk") if way == "identity" else store)
        graph = build(saver, nested=way == "subgraph")
        config = CONFIG
        if way == "async":
            asyncio.run(graph.ainvoke({}, config))
            result = asyncio.run(graph.ainvoke(Command(resume="all"), config))
        else:
            graph.invoke({}, config)
            if way == "copied":
                saver.copy_thread("t", "other")
                config = {"configurable": {"thread_id": "other"}}
            result = graph.invoke(Command(resume="all"), config)
        assert result["said"] == SAID
        # The store itself, whose codec refuses such classes, reads what it can save again.
        if way != "subgraph":
            state = store.thread(config["configurable"]["thread_id"]).get().state
            assert {type(plan) for plan in state["plans"]} == {OpaqueValue}
            store.thread("again").put(state)


def test_a_fork_from_the_past_goes_on_with_them(tmp_path: Path) -> None:
    with HoldfastSaver.from_conn_string(tmp_path / "a.db") as saver:
        graph = build(saver)
        graph.invoke({}, CONFIG)
        graph.invoke(Command(resume="all"), CONFIG)
        past = next(each for each in graph.get_state_history(CONFIG) if each.next == ("read",))
        branch = graph.update_state(past.config, {"said": "again"})
        graph.invoke(None, branch)
        assert graph.invoke(Command(resume="some"), CONFIG)["said"] == SAID.replace("all", "some")


def test_another_process_reads_them_opaque_and_keeps_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with holdfast.open(url) as store:
        build(HoldfastSaver(store)).invoke({}, CONFIG)
        before = store.thread("t").get().state["plans"]
    command = [sys.executable, "-m", local_class_graph.__name__, url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    lines = done.stdout.splitlines()
    names = {name: f"{local_class_graph.__name__}:build.<locals>.{name}" for name in ("Plan", "Model", "Pair")}
    for name in names.values():
        (warned,) = (line for line in lines if line.startswith("warned:") and name in line)
        assert "define it at the top of a module" in warned
    assert lines[-3:] == [
        f"OpaqueValue {names[name]} {goal}" for name, goal in (("Plan", "rest"), ("Model", "eat"), ("Pair", "walk"))
    ]
    with holdfast.open(url) as store:
        assert store.thread("t").get().state["plans"] == before
        assert len(list(store.thread("t").log().all())) > 3  # it was saved again there
        graph = build(HoldfastSaver(store))
        (plan, *_) = graph.get_state(CONFIG).values["plans"]
        assert plan.goal == "rest"  # this process has the class


def test_their_classes_are_not_kept_alive(tmp_path: Path) -> None:
    with HoldfastSaver.from_conn_string(tmp_path / "a.db") as saver:
        graph = build(saver)
        graph.invoke({}, CONFIG)
        (plan, model, pair) = graph.get_state(CONFIG).values["plans"]
        classes = [weakref.ref(type(each)) for each in (plan, model, pair)]
        name = f"{local_class_graph.__name__}:build.<locals>.Plan"
        del graph, plan, model, pair
        for _ in range(3):
            gc.collect()
        assert [each() for each in classes] == [None] * 3
        opaque._warned.discard(name)
        with pytest.warns(UserWarning, match="defined in a function"):
            state = saver.get_tuple(CONFIG)
    assert state is not None
    assert state.checkpoint["channel_values"]["plans"][0].type_name == name


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_graph_whose_state_is_such_a_class_goes_on(kind: str, tmp_path: Path) -> None:
    class Inner(BaseModel):
        text: str

    State: Any = create_model("State", query=(str, ...), inner=(Inner, ...), answer=(str | None, None))

    def ask(state: Any) -> dict[str, Any]:
        return {"answer": f"{interrupt(state.inner.text)} {type(state.inner) is Inner}"}

    graph = StateGraph(State)
    graph.add_node("rewrite", lambda state: {"inner": Inner(text=state.query)})
    graph.add_node(ask)
    graph.add_edge(START, "rewrite")
    graph.add_edge("rewrite", "ask")
    with holdfast_saver(kind, tmp_path) as saver:
        compiled = graph.compile(checkpointer=saver)
        compiled.invoke(State(query="why", inner=Inner(text="?")), CONFIG)
        assert compiled.invoke(Command(resume="so"), CONFIG)["answer"] == "so True"
