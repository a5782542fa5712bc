"""Agents for tests of the operations that every agent has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.definition.state_machine import Machine
from holdfast.backends.interface import Backend
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.store.store import AsyncStore, Store
from tests.state.kit import Clock


def machine() -> Machine:
    made = Machine("idle", "busy")
    made.add("work", "idle", "busy")
    made.add("rest", "busy", "idle")
    return made


class Greeter(PersistentAgent, name="tests: greeter"):
    """Greets, and remembers whom."""

    greeted: list[str] = []
    count: int = 0
    notes: dict[str, Any] = {}
    machine = machine()

    def greet(self, name: str) -> str:
        said = f"{self.configuration.get('greeting', 'Hello')}, {name} ({self.count})"
        self.greeted.append(name)
        self.count += 1
        self.conversation.append({"role": "assistant", "content": said})
        return said

    def validate(self, fields: Mapping[str, Any]) -> None:
        if fields["count"] < 0:
            raise ValueError("nobody greets less than nobody")


class AsyncGreeter(AsyncPersistentAgent, name="tests: async greeter"):
    """The same for asyncio."""

    greeted: list[str] = []
    count: int = 0


def opened(backend: Backend, clock: Clock | None = None) -> Store:
    """A store that remembers nothing yet."""
    return Store(Engine(EngineContext(backend, MemoryCache(1 << 20), clock=clock or Clock())), "")


def aopened(backend: Backend, clock: Clock | None = None) -> AsyncStore:
    """The same for asyncio."""
    return AsyncStore(Engine(EngineContext(backend, MemoryCache(1 << 20), clock=clock or Clock())), "")
