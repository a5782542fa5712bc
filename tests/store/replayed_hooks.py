"""Hooks and an agent that are recorded and replayed; `CHANGE` in the environment changes their code."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path
from typing import Any

from holdfast import PersistentAgent, Store, replay
from holdfast.agents import Machine
from holdfast.errors import VetoError
from holdfast.hooks import HookContext

CHANGE = os.environ.get("CHANGE", "")
LIVE = {"tools": False}


def register(store: Store) -> None:
    """Register the hooks."""

    @store.hooks.before("state.set", record=True)
    def limit(call: HookContext) -> Any:
        if call.value == "bad":
            raise VetoError("bad is not allowed")
        if CHANGE == "post":
            urllib.request.urlopen("http://127.0.0.1:9/")
        if CHANGE == "write":
            Path("leak.txt").write_text("x", encoding="utf-8")
        if isinstance(call.value, int):
            store.state(agent="other").set("seen", call.value)
            before = 0 if call.before in (0, None) else call.old
            return min(call.value, 50 if CHANGE == "limit" else 100) + (before if isinstance(before, int) else 0) * 0
        return None


def ask(question: str) -> str:
    """Answer only while it is recorded."""
    if not LIVE["tools"]:
        raise RuntimeError("a tool was called")
    return f"answer to {question}"


class Clerk(PersistentAgent, name="replayed-clerk"):
    machine = Machine("new", "open", "closed", final=["closed"])
    machine.add("begin", "new", "open", action="on_begin")
    machine.add("close", "open", "closed", action="on_close")
    notes: list[str] = []

    def __init__(self, **configuration: Any) -> None:
        super().__init__(**configuration)
        self.tools.declare("ask")

    def on_begin(self, data: Any) -> None:
        question = f"{data}!" if CHANGE == "prompt" else str(data)
        self.notes.append(self.tools.call("ask", ask, question))
        self.notes.append(replay.now().isoformat())

    def on_close(self, data: Any) -> None:
        self.notes.append("changed" if CHANGE == "code" else str(replay.uuid4()))
