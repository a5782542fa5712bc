"""A graph with tools, interrupts, parallel branches and a subgraph. Its models and tools answer only in this process;
`CHANGE` in the environment changes its code."""

from __future__ import annotations

import itertools
import operator
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt

from holdfast import replay

CHANGE = os.environ.get("CHANGE", "")
LIVE = {"models": False}
"""Whether models and tools answer: only while a run is recorded."""

_count = itertools.count(1)


def _require_live(what: str) -> None:
    if not LIVE["models"]:
        raise RuntimeError(f"{what} was called")


class ScriptedModel(BaseChatModel):
    """Answers with a number, and calls both tools if it is asked to."""

    tools: bool = False

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        _require_live("a model")
        number = next(_count)
        if number % 7 == 3:
            time.sleep(0.002)  # parallel nodes end in another order than they began
        calls = [
            {"name": name, "args": {"query": f"q{number}"}, "id": f"{name}-{number}"}
            for name in (("search", "lookup") if self.tools else ())
        ]
        message = AIMessage(f"answer {number} to {len(messages)}", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        _require_live("a model")
        number = next(_count)
        for part in (f"stream {number}", " of ", "several ", "parts"):
            yield ChatGenerationChunk(message=AIMessageChunk(content=part))
        if number % 5 == 0:
            raise ConnectionError("the stream broke")


@tool
def search(query: str) -> str:
    """Search."""
    _require_live("a tool")
    return f"found {query}: {replay.random()}"


@tool
def lookup(query: str) -> str:
    """Look up."""
    _require_live("a tool")
    if query.endswith("3"):
        raise ValueError(f"no {query}")
    return f"looked up {query}"


@replay.recorded
def quote(amount: int) -> dict[str, int]:
    """Ask a service that is no tool."""
    _require_live("a service")
    return {"price": amount * next(_count)}


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    notes: Annotated[list[str], operator.add]
    rounds: int
    until: int
    finding: str


planner, writer = ScriptedModel(tools=True), ScriptedModel()


def plan(state: State) -> dict[str, Any]:
    prompt = "Be rude" if CHANGE == "prompt" and state["rounds"] == 2 else "Be nice"
    return {"messages": [planner.invoke([SystemMessage(prompt), *state["messages"][-8:]])]}


def left(state: State) -> dict[str, Any]:
    return {"notes": [str(writer.invoke([HumanMessage("left"), state["messages"][-1]]).content)]}


async def right(state: State) -> dict[str, Any]:
    answer = await writer.ainvoke([HumanMessage("right"), state["messages"][-1]])
    return {"notes": [str(answer.content)]}


def each(state: dict[str, Any]) -> dict[str, Any]:
    return {"notes": [f"{state['item']}: {quote(state['item'])['price']}"]}


def spread(state: State) -> list[Send]:
    return [Send("each", {"item": number}) for number in range(3)]


class Research(TypedDict):
    messages: Annotated[list[Any], add_messages]
    rounds: int
    finding: str


def dig(state: Research) -> dict[str, Any]:
    questions = [HumanMessage("dig"), HumanMessage("deeper")]
    if CHANGE == "order":
        questions.reverse()
    first, second = (writer.invoke([question, state["messages"][-1]]) for question in questions)
    return {"finding": f"{first.content}, {second.content}"}


def approve(state: Research) -> dict[str, Any]:
    finding = f"{state['finding']}, {writer.invoke([HumanMessage('may I?')]).content}"
    if state["rounds"] % 4 == 1:
        finding += f" {interrupt('first')}"
        finding += f" {interrupt('second')}"
    return {"finding": finding}


def tell(state: State) -> dict[str, Any]:
    text = []
    try:
        for chunk in writer.stream(state["messages"][-3:]):
            text.append(chunk.content)
    except ConnectionError as error:
        text.append(str(error))
    if CHANGE == "post" and state["rounds"] == 1:
        with socket.create_connection(("127.0.0.1", 9), timeout=1) as connection:
            connection.sendall(b"x")
    if CHANGE == "write" and state["rounds"] == 1:
        Path("leak.txt").write_text("x", encoding="utf-8")
    if CHANGE == "leaks":
        Path(f"leak-{state['rounds']}.txt").write_text("x", encoding="utf-8")
    if CHANGE == "code" and state["rounds"] == 3:
        text.append("changed")
    return {"messages": [AIMessage("|".join(map(str, text)))], "rounds": state["rounds"] + 1}


def stamp(state: State) -> dict[str, Any]:
    return {"notes": [replay.now().isoformat(), str(replay.uuid4()), str(isinstance(uuid.uuid4(), uuid.UUID))]}


def more(state: State) -> str:
    return "plan" if state["rounds"] < state["until"] else END


def build(saver: Any = None) -> Any:
    """Return the graph."""
    research = StateGraph(Research)
    research.add_node(dig)
    research.add_node(approve)
    research.add_edge(START, "dig")
    research.add_edge("dig", "approve")
    graph = StateGraph(State)
    for node in (plan, left, right, each, tell, stamp):
        graph.add_node(node)
    graph.add_node("tools", ToolNode([search, lookup], handle_tool_errors=True))
    graph.add_node("research", research.compile())
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "tools")
    graph.add_edge("tools", "left")
    graph.add_edge("tools", "right")
    graph.add_edge(["left", "right"], "stamp")
    graph.add_conditional_edges("stamp", spread, ["each"])
    graph.add_edge("each", "research")
    graph.add_edge("research", "tell")
    graph.add_conditional_edges("tell", more, ["plan", END])
    return graph.compile(checkpointer=saver)
