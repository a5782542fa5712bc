"""A process of its own that opens a store and loads the latest checkpoint of a thread, and says how long that took.

Imports are done before the clock starts: of the savers, of what they would import when they open a file, and of the
messages' classes. The file's pages may be in the system's memory; nothing is in the process's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import NamedTuple

from langchain_core.messages import AIMessage, HumanMessage

import holdfast.backends.sqlite  # noqa: F401 - imported when a store is opened
from benchmarks.langgraph_savers import SAVERS


class Load(NamedTuple):
    """Milliseconds, and what was found."""

    wall: float
    cpu: float
    messages: int
    characters: int


def load_cold(name: str, path: str, thread: str) -> Load:
    """Start a process, and have it load."""
    command = [sys.executable, "-m", "benchmarks.langgraph_cold", name, path, thread]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Load(*json.loads(done.stdout))


def _load(name: str, path: str, thread: str) -> Load:
    cpu, wall = time.process_time(), time.perf_counter()
    with SAVERS[name](path) as saver:
        found = saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})
        assert found is not None
        messages = found.checkpoint["channel_values"]["messages"]
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        assert all(type(each) is (AIMessage if place % 2 else HumanMessage) for place, each in enumerate(messages))
    return Load(wall * 1000, cpu * 1000, len(messages), sum(len(each.content) for each in messages))


if __name__ == "__main__":
    print(json.dumps(_load(*sys.argv[1:])))
