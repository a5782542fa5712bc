"""The demo's agent: it reads the source of Python's standard library and writes a guide to it, module by module.

A LangGraph graph with tools. Where a model would be, a script decides, so that it needs neither key nor network.

Run as a program it works on its thread in a store until it is done, or killed:

    python examples/demo_agent.py DATABASE LOG [CALL_THAT_HANGS]
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send

from holdfast.langgraph import HoldfastSaver

THREAD = "guide"
CONFIG: RunnableConfig = {"configurable": {"thread_id": THREAD}, "recursion_limit": 10_000}
MODULES = int(os.environ.get("DEMO_MODULES", "75"))
"""How many modules the guide is to have."""
READINGS, LINES = 3, 40
"""How much is read of a module: that many times that many lines."""


def merged(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    return {**old, **new}


class Guide(TypedDict):
    """The agent's state."""

    messages: Annotated[list[AnyMessage], add_messages]
    plan: dict[str, Any]
    notes: Annotated[dict[str, str], merged]


Graph = CompiledStateGraph[Guide, None, Guide, Guide]


def task() -> Guide:
    """What the agent is asked to do."""
    return {
        "messages": [HumanMessage("Write a guide to the modules of the standard library.")],
        "plan": {"goal": "a guide", "style": "full", "todo": list(library()), "done": []},
        "notes": {},
    }


# The standard library -----------------------------------------------------------------------------------------


@cache
def library() -> dict[str, list[str]]:
    """What every Python brings along: the parts of each module to be read, and last what it says of itself."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py")):
        text = path.read_text(encoding="utf-8")
        about, lines = text.partition('"""')[2].partition('"""')[0], text.splitlines()
        if len(about) > 40 and len(lines) > READINGS * LINES:
            parts = [lines[start : start + LINES] for start in range(0, READINGS * LINES, LINES)]
            found[path.stem] = [*("\n".join(part) for part in parts), about[:1500]]
        if len(found) == MODULES:
            break
    return found


# The graph ----------------------------------------------------------------------------------------------------


def decide(state: Guide) -> dict[str, Any]:
    """What a model would say: ask for what is to be read, then write, module by module."""
    plan, last = state["plan"], state["messages"][-1]
    if not plan["todo"]:
        return {"messages": [AIMessage(f"The guide has {len(plan['done'])} modules.")]}
    module, *todo = plan["todo"]
    if isinstance(last, ToolMessage) and last.name == "read_source":
        text = library()[module][READINGS]
        call = _call("write_entry", module, "write", text=text if plan["style"] == "full" else text[:100])
        done = [*plan["done"], module]
        return {"messages": [AIMessage("", tool_calls=[call])], "plan": {**plan, "todo": todo, "done": done}}
    calls = [_call("read_source", module, f"part-{part}", part=part) for part in range(READINGS)]
    return {"messages": [AIMessage(f"Next is {module}.", tool_calls=calls)]}


def _call(name: str, module: str, what: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, args={"module": module, **arguments}, id=call_id(module, what), type="tool_call")


def call_id(module: str, what: str) -> str:
    return f"{module}/{what}"


def chosen(state: Guide) -> list[Send] | str:
    """A task of its own for each tool call, so that each is saved as soon as it is done."""
    last = state["messages"][-1]
    calls = last.tool_calls if isinstance(last, AIMessage) else []
    return [Send("tools", [call]) for call in calls] or END


def build(saver: BaseCheckpointSaver[Any] | None, log: ToolLog) -> Graph:
    """The agent on a checkpointer."""
    builder = StateGraph(Guide)
    builder.add_node("model", decide)
    builder.add_node("tools", ToolNode(tools(log)))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", chosen, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


# Tools --------------------------------------------------------------------------------------------------------


class ToolLog:
    """A file with a line for every tool call that really started, and one for every one that really finished."""

    def __init__(self, path: Path, hangs: str = "") -> None:
        self._path = path
        self._hangs = hangs

    @contextmanager
    def running(self, call: str) -> Iterator[None]:
        """Around a tool call. One of them gets no answer, as happens to calls over a network."""
        self._write("started", call)
        if call == self._hangs:
            time.sleep(600)
        yield
        self._write("finished", call)

    def _write(self, what: str, call: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {what} {call}\n")


def tools(log: ToolLog) -> list[BaseTool]:
    """What the agent can do."""

    @tool
    def read_source(module: str, part: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> str:
        """Read a part of a module."""
        with log.running(tool_call_id):
            return library()[module][part]

    @tool
    def write_entry(module: str, text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Write what the guide says of a module."""
        with log.running(tool_call_id):
            answer = ToolMessage(f"Wrote {module}.", name="write_entry", tool_call_id=tool_call_id)
            return Command(update={"messages": [answer], "notes": {module: f"{len(text)} characters"}})

    return [read_source, write_entry]


def main(database: str, log: str, hangs: str = "") -> None:
    """Start the work, or go on with it where it was."""
    with HoldfastSaver.from_conn_string(f"sqlite:///{database}") as saver:
        graph = build(saver, ToolLog(Path(log), hangs))
        begun = saver.get_tuple(CONFIG) is not None
        graph.invoke(None if begun else task(), CONFIG, durability="sync")


if __name__ == "__main__":
    main(*sys.argv[1:])
