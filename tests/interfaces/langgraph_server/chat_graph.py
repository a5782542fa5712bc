"""A chat with tools, without a service behind it: what the model says depends on the last message."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolCallChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

WORDS = 40
"""How many words the answer to `count` has, one in a tenth of a second."""


class ScriptedModel(BaseChatModel):
    """Calls a tool that a person names, says what a tool returned, and counts slowly when asked to."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        whole: Any = None
        for each in self._stream(messages):
            whole = each if whole is None else whole + each
        said = whole.message
        return ChatResult(generations=[ChatGeneration(message=AIMessage(said.content, tool_calls=said.tool_calls))])

    def _stream(self, messages: list[BaseMessage], *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        last = messages[-1]
        text = str(last.content)
        if isinstance(last, HumanMessage) and (name := next((each for each in TOOLS if each in text), None)):
            call = ToolCallChunk(name=name, args='{"what": "tea"}', id=f"call-{len(messages)}", index=0)
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))
            return
        counts = isinstance(last, HumanMessage) and "count" in text
        words = [str(each) for each in range(1, WORDS + 1)] if counts else f"You got: {text}".split(" ")
        for index, word in enumerate(words):
            if counts:
                time.sleep(0.1)
            yield ChatGenerationChunk(message=AIMessageChunk(content=word if not index else f" {word}"))


@tool
def price(what: str) -> str:
    """Return what something costs."""
    return f"{what} costs 3"


@tool
def buy(what: str) -> str:
    """Buy something, if somebody approves."""
    answer = interrupt({"question": f"Buy {what}?"})
    return f"bought {what}" if answer["approved"] else "not bought"


TOOLS = {"price": price, "buy": buy}


def chat() -> Any:
    """A graph that calls the model, and the tools that it asks for."""
    model = ScriptedModel()
    builder: Any = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode(list(TOOLS.values())))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder.compile(name="chat")
