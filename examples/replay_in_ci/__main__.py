"""A chat with a graph that is recorded, and replayed with changed code: a conversation as a regression test.

Where a model would be, a script answers, so that it needs neither key nor network. The replay runs in a process of its
own, and calls neither the model nor the tool.

    python -m examples.replay_in_ci

It prints how the replays end: with the same code, with another prompt, and with another answer of the tool; and the
files that a repository needs to replay it in CI, which are written into a folder that is given as an argument.
"""

from __future__ import annotations

import os
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import holdfast
from holdfast import replay
from holdfast.langgraph import HoldfastSaver

PROMPT = os.environ.get("PROMPT", "Be brief.")
model = GenericFakeChatModel(messages=(AIMessage(f"Answer {number}") for number in count(1)))


class State(TypedDict):
    """The state of the chat."""

    messages: Annotated[list[Any], add_messages]


@tool
def tide(town: str) -> str:
    """Look up the tide in a town."""
    return f"high tide in {town}"


def look(state: State) -> dict[str, Any]:  # noqa: ARG001 - as every node
    """Look up what the answer needs."""
    return {"messages": [("user", f"{tide.invoke({'town': 'Whitby'})}, at {replay.now():%H:%M}")]}


def answer(state: State) -> dict[str, Any]:
    """Ask the model."""
    return {"messages": [model.invoke([("system", PROMPT), *state["messages"]])]}


graph = StateGraph(State)
graph.add_sequence([look, answer])
graph.add_edge(START, "look")


def main() -> None:
    """Record a chat of two turns, and replay it."""
    with tempfile.TemporaryDirectory() as directory, holdfast.open(Path(directory) / "agents.db") as store:
        saver = HoldfastSaver(store)
        config: Any = {"configurable": {"thread_id": "chat"}, "callbacks": [saver.recorder]}
        for question in ("Is it high tide?", "And now?"):
            graph.compile(checkpointer=saver).invoke({"messages": [("user", question)]}, config)
        name = "examples.replay_in_ci.__main__:graph"
        same = replay.run(store, name, thread="chat").check()
        sys.stdout.write(f"the same code: as recorded, {same.steps} steps and {same.calls} calls\n")
        for title, changed in {
            "another prompt": replay.run(store, name, thread="chat", env={"PROMPT": "Be polite."}),
            "another tide": replay.run(store, name, thread="chat", changes={"5:look#0": "low tide"}),
        }.items():
            first = changed.divergence
            sys.stdout.write(f"{title}: {'' if first is None else f'{first.kind} at step {first.step}'}\n")
        folder = sys.argv[1] if len(sys.argv) > 1 else directory
        written = replay.export(store, "chat", folder, name)
        sys.stdout.write(f"for CI: {' '.join(each.name for each in written)}\n")


if __name__ == "__main__":
    main()
