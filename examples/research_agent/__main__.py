"""A research agent on LangGraph that is killed between two sources, and goes on in another process.

    python -m examples.research_agent

It prints what each process does: no source is fetched twice, and no finished step runs again.
"""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from holdfast.langgraph import HoldfastSaver

SOURCES = ["kelp", "rock", "tide"]


class Research(TypedDict):
    """The notes so far, and the answer in the end."""

    notes: Annotated[list[str], operator.add]
    answer: str


def read(state: Research) -> dict[str, Any]:
    """Read the next source, in place of a search that takes time and money."""
    source = SOURCES[len(state["notes"])]
    if source == os.environ.get("DIE_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"reading {source}", flush=True)
    return {"notes": [f"a note on {source}"]}


def write(state: Research) -> dict[str, Any]:
    """Write the answer, in place of a model."""
    return {"answer": f"an answer from {len(state['notes'])} notes"}


builder = StateGraph(Research)
builder.add_node("read", read)
builder.add_node("write", write)
builder.add_edge(START, "read")
builder.add_conditional_edges("read", lambda state: "read" if len(state["notes"]) < len(SOURCES) else "write")
builder.add_edge("write", END)


def work(url: str) -> None:
    """Begin the research, or go on with it."""
    with HoldfastSaver.from_conn_string(url) as saver:
        graph = builder.compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "research-1"}}
        begun = bool(graph.get_state(config).values)
        result = graph.invoke(None if begun else {"notes": [], "answer": ""}, config, durability="sync")
        print(result["answer"])


def main() -> None:
    """Have one process die, and another one go on."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{(Path(folder) / 'agents.db').as_posix()}"
        for dies_at in ("tide", ""):
            process = subprocess.run(
                [sys.executable, "-m", "examples.research_agent", url],
                env={**os.environ, "DIE_AT": dies_at},
                check=False,
            )
            print(f"the process ended with {process.returncode}", flush=True)


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else work(sys.argv[1])
