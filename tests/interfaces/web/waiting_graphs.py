"""Graphs of LangGraph whose threads wait for an answer, failed, or have a tool that failed."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt

import holdfast
from holdfast.langgraph import HoldfastSaver


class Chat(TypedDict):
    """The state of a conversation."""

    messages: Annotated[list[AnyMessage], add_messages]


APPROVAL: dict[str, Any] = {
    "action_request": {"action": "refund", "args": {"order": "A-17", "amount": 42.5}},
    "config": {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True},
    "description": "Refund **42.50 EUR** for order A-17?",
}
"""What LangChain's `HumanInterrupt` has."""


def model(state: Chat) -> dict[str, Any]:
    """Stands for a model that calls a tool."""
    asked = state["messages"][-1].id or "1"
    call = {"id": f"call-{asked}", "name": "refund", "args": {"order": "A-17", "amount": 42.5}}
    return {"messages": [AIMessage("I refund the order.", tool_calls=[call])]}


def call_id(state: Chat) -> str:
    """The id of the call that the model made."""
    message = state["messages"][-1]
    assert isinstance(message, AIMessage)
    return str(message.tool_calls[0]["id"])


def approve(state: Chat) -> dict[str, Any]:
    """Asks a person before the tool is called."""
    answer = interrupt([APPROVAL])
    return {"messages": [ToolMessage(f"answered: {answer}", tool_call_id=call_id(state))]}


def charge(state: Chat) -> dict[str, Any]:
    """Raises, as a payment service does."""
    raise ConnectionError("the payment service refused: card declined (do not retry)")


def look(state: Chat) -> dict[str, Any]:
    """A tool that reports its failure as a result."""
    call = call_id(state)
    return {"messages": [ToolMessage("TimeoutError: no answer in 10 s", tool_call_id=call, status="error")]}


def graph_of(node: Any, store: holdfast.Store) -> Any:
    """A graph of a model and one more node."""
    builder = StateGraph(Chat)
    builder.add_node("model", model)
    builder.add_node(node.__name__, node)
    builder.add_edge(START, "model")
    builder.add_edge("model", node.__name__)
    builder.add_edge(node.__name__, END)
    return builder.compile(checkpointer=HoldfastSaver(store))


def run_graphs(store: holdfast.Store) -> None:
    """Run each on a thread of its own."""
    for node, thread in ((approve, "refund-17"), (charge, "refund-18"), (look, "weather-3")):
        config = {"configurable": {"thread_id": thread, "user_id": "ada"}}
        with contextlib.suppress(ConnectionError):
            graph_of(node, store).invoke({"messages": [HumanMessage("Please refund order A-17.")]}, config)
