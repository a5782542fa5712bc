"""A graph whose run is recorded: what pages show, and what servers replay."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import holdfast
from holdfast.langgraph import HoldfastSaver

THREAD = "weather"


class State(TypedDict):
    """The state of the graph."""

    messages: Annotated[list[Any], add_messages]


model = GenericFakeChatModel(
    messages=iter([AIMessage("It is **sunny** in Whitby."), AIMessage("Take the coast path.")] * 2)
)


@tool
def forecast(town: str) -> str:
    """Look up the forecast of a town."""
    if town == "Atlantis":
        raise ValueError("there is no such town <i>")
    return f"{town}: sunny"


def look(state: State) -> dict[str, Any]:
    """Call the tool; once for a town that there is not."""
    found = forecast.invoke({"town": "Whitby"})
    try:
        forecast.invoke({"town": "Atlantis"})
    except ValueError:
        found += ", and nowhere else"
    return {"messages": [("user", found)]}


def answer(state: State) -> dict[str, Any]:
    """Call the model."""
    return {"messages": [model.invoke([("system", "Be brief."), *state["messages"]])]}


graph = StateGraph(State)
graph.add_sequence([look, answer])
graph.add_edge(START, "look")


def record_run(store: holdfast.Store) -> None:
    """Record two questions on one thread."""
    saver = HoldfastSaver(store)
    compiled = graph.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": THREAD}, "callbacks": [saver.recorder]}
    for question in ("How is the weather?", "And <b>where</b> shall I walk?"):
        compiled.invoke({"messages": [("user", question)]}, config)
