"""Values that LangGraph's serializer takes, and that cannot be read back as they were, in real graphs."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel

from holdfast.errors import UnsupportedError
from holdfast.langgraph import HoldfastSaver


class Answer(TypedDict, total=False):
    answer: str
    tags: list[str]
    plan: Any


class Tags(list[str]): ...


CONFIG: Any = {"configurable": {"thread_id": "t"}}


def compiled(saver: HoldfastSaver, value: dict[str, Any]) -> Any:
    builder = StateGraph(Answer)
    builder.add_node("answer", lambda _: value)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def local_plan() -> Any:
    class Plan(BaseModel):
        goal: str

    return Plan(goal="rest")


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_graph_saves_them_with_a_warning(tmp_path: Path, asynchronous: bool) -> None:
    value = {"answer": AIMessage("hello").text, "tags": Tags(["a"]), "plan": local_plan()}
    with HoldfastSaver.from_conn_string(tmp_path / "a.db") as saver:
        saver.setup()
        asyncio.run(saver.asetup())
        graph = compiled(saver, value)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            asyncio.run(graph.ainvoke({}, CONFIG)) if asynchronous else graph.invoke({}, CONFIG)
        assert [str(each.message) for each in caught if "Plan" in str(each.message)], "no warning"
        state = graph.get_state(CONFIG).values
        assert (type(state["answer"]), state["answer"]) == (str, "hello")
        assert (type(state["tags"]), state["tags"]) == (list, ["a"])
        assert state["plan"] == value["plan"]


@pytest.mark.parametrize("value", [{"plan": local_plan()}, {"tags": Tags(["a"])}], ids=["local class", "subclass"])
def test_a_strict_saver_refuses_them_and_names_the_channel(tmp_path: Path, value: dict[str, Any]) -> None:
    (channel,) = value
    with HoldfastSaver.from_conn_string(str(tmp_path / "a.db"), strict=True) as saver:
        with pytest.raises(UnsupportedError, match="cannot be saved") as caught:
            compiled(saver, value).invoke({}, CONFIG)
        assert caught.value.where == channel


def test_an_error_of_put_writes_names_the_channel(tmp_path: Path) -> None:
    with HoldfastSaver.from_conn_string(tmp_path / "a.db") as saver:
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
        with pytest.raises(UnsupportedError) as caught:
            saver.put_writes(config, [("a", 1), ("tools", [{"client": object()}])], "task")
        assert caught.value.where == "tools[0].client"
