"""Threads of another saver of LangGraph's come along with their history, and the graph goes on.

    python -m examples.move_from_langgraph

It prints how many checkpoints came along, and that the graph goes on where it was.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

import holdfast
from holdfast.langgraph import HoldfastSaver, import_threads


class Count(TypedDict):
    """The state of the graph."""

    n: int


def add(state: Count) -> dict[str, int]:
    """Add one."""
    return {"n": state["n"] + 1}


builder = StateGraph(Count)
builder.add_node("add", add)
builder.add_edge(START, "add")


def main() -> None:
    config: Any = {"configurable": {"thread_id": "count-1"}}
    old = InMemorySaver()  # or SqliteSaver, PostgresSaver, …
    graph = builder.compile(checkpointer=old)
    for _ in range(3):
        graph.invoke({"n": 1}, config)
    there = [each.config["configurable"]["checkpoint_id"] for each in graph.get_state_history(config)]

    with tempfile.TemporaryDirectory() as folder, holdfast.open(Path(folder) / "agents.db") as store:
        import_threads(old, store)
        moved = builder.compile(checkpointer=HoldfastSaver(store))
        here = [each.config["configurable"]["checkpoint_id"] for each in moved.get_state_history(config)]
        print(f"{len(here)} checkpoints, the same ids: {here == there}")
        print("the graph goes on:", moved.invoke({"n": 10}, config))
        print("readable without LangGraph:", store.thread("count-1").get().state["n"])
        print("verified:", store.maintenance.verify().ok)


if __name__ == "__main__":
    main()
