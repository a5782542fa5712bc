"""Hooks and an agent that are recorded and replayed; `CHANGE` in the environment changes their code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast import MISSING, Store, replay
from holdfast.agents import AsyncPersistentAgent, Machine, PersistentAgent
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
            import urllib.request  # takes long, and every replay has a process of its own

            urllib.request.urlopen("http://127.0.0.1:9/")
        if CHANGE == "write":
            Path("leak.txt").write_text("x", encoding="utf-8")
        if isinstance(call.value, int):
            store.state(agent="other").set("seen", call.value)
            before = 0 if call.before in (0, None) else call.old
            return min(call.value, 50 if CHANGE == "limit" else 100) + (before if isinstance(before, int) else 0) * 0
        return None


def register_sums(store: Store) -> None:
    """Register a hook that reads the key before the change, and another scope."""

    @store.hooks.before("state.set", scope="agent:sums", record=True)
    def add(call: HookContext) -> Any:
        own = store.state(agent="sums")
        assert call.key in own or call.before in (0, None)
        return call.value + own.get(call.key, 0) + store.state(agent="rates").get("rate", 0)


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
        if CHANGE == "leaks":
            Path("leak-1.txt").write_text("x", encoding="utf-8")

    def on_close(self, data: Any) -> None:
        if CHANGE == "leaks":
            Path("leak-2.txt").write_text("x", encoding="utf-8")
        self.notes.append("changed" if CHANGE == "code" else str(replay.uuid4()))


class Desk(AsyncPersistentAgent, name="replayed-desk"):
    """An asyncio agent with durable steps."""

    machine = Machine("new", "open", final=[])
    machine.add("begin", "new", "open", action="on_begin")
    notes: list[str] = []

    async def on_begin(self, data: Any) -> None:
        if CHANGE == "version" and await self.steps.version("polite") >= 1:
            self.notes.append("with pleasure")
        self.notes.append(await self.once("charge", self.charge, data))
        await self.sleep(0.01 if LIVE["tools"] else 3600, key="nap")
        signal = await self.wait_for("go")
        self.notes.append(f"{signal.value if signal is not None else None} {replay.random()}")

    @staticmethod
    async def charge(amount: int) -> str:
        """Charge only while it is recorded. Its own draws are part of it."""
        return f"{ask(str(amount))} {replay.uuid4()}"


def register_tellers(store: Store) -> None:
    """Register a hook that returns all that it is told."""

    @store.hooks.before("state.set", scope="agent:told", record=True)
    def tell(call: HookContext) -> Any:
        old = None if call.old is MISSING else call.old
        return [call.key, call.value, old, call.actor, call.metadata.get("team")]
