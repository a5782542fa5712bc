"""Agents whose actions end, and stores that fail, on demand: for tests of machines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.transition_log import TransitionRecord, read_transitions
from holdfast.backends.interface import Backend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import StepRef
from holdfast.store.store import AsyncStore, Store
from tests.support.faults import Faults


class Crash(BaseException):
    """The process is gone."""


def worker_machine() -> Machine:
    """Work that is begun, done and put away."""
    machine = Machine("idle", "busy", "done", "broken", final=["done"], validators={"busy": "check_busy"})
    machine.add("work", "idle", "busy", action="act")
    machine.add("rest", "busy", "idle")
    machine.add("insist", "idle", "busy", action="act", on_incomplete="forward")
    machine.add("careful", "idle", "busy", action="act", on_incomplete="manual")
    machine.add("end", "busy", "done", guard="may_end", validators=["check_data"], action="act")
    machine.add("end", "busy", "broken", guard=lambda _, data: data == "broken")
    machine.add("repair", "broken", "idle")
    return machine


class Doing:
    """What workers of both kinds do."""

    log: list[str]
    what: str = ""
    """What happens in the next action: an error, a crash, or nothing."""

    def step(self, name: str, data: Any) -> None:
        """Do something: that it was done is in the log."""
        self.log.append(f"{name} {data}")
        if self.what == "error":
            raise ValueError("it went wrong")
        if self.what == "crash":
            raise Crash

    def may_end(self, data: Any) -> bool:
        return str(data) not in ("broken", "never")

    def check_data(self, data: Any) -> None:
        if data == "bad":
            raise ValueError("the data are bad")

    def check_busy(self, fields: Mapping[str, Any]) -> None:
        if any("lazy" in each for each in fields["log"]):
            raise ValueError("a busy one is not lazy")


class Worker(PersistentAgent, Doing, name="test-worker"):
    """A worker for threads."""

    log: list[str] = []
    machine = worker_machine()
    what = ""

    def act(self, data: Any) -> None:
        self.step("act", data)

    def on_start(self) -> None:
        self.step("start", "")

    def on_pause(self) -> None:
        self.step("pause", "")

    def on_resume(self) -> None:
        self.step("resume", "")

    def on_stop(self) -> None:
        self.step("stop", "")

    def on_fail(self, error: object) -> None:
        self.step("fail", error)


class AsyncWorker(AsyncPersistentAgent, Doing, name="test-async-worker"):
    """The same for event loops."""

    log: list[str] = []
    machine = worker_machine()
    what = ""

    async def act(self, data: Any) -> None:
        await asyncio.sleep(0)
        self.step("act", data)

    async def on_start(self) -> None:
        self.step("start", "")

    async def on_pause(self) -> None:
        self.step("pause", "")

    async def on_resume(self) -> None:
        self.step("resume", "")

    async def on_stop(self) -> None:
        self.step("stop", "")

    async def on_fail(self, error: object) -> None:
        self.step("fail", error)


def failing() -> tuple[Store, Faults]:
    """A store in memory, and what has it fail."""
    faults = Faults(MemoryBackend())
    return store_on(faults), faults


def store_on(backend: Backend) -> Store:
    """A store that remembers nothing yet."""
    return Store(Engine(EngineContext(backend)), "")


def async_store_on(backend: Backend) -> AsyncStore:
    """The same for asyncio."""
    return AsyncStore(Engine(EngineContext(backend)), "")


def line_of(store: Store | AsyncStore, id: str = "w") -> AgentLine:
    """The line of an agent."""
    return AgentLine(store._handle, id)


def recorded(store: Store | AsyncStore, id: str = "w", **asked: Any) -> list[TransitionRecord]:
    """What is recorded of an agent, the oldest first."""
    return run(read_transitions(line_of(store, id), oldest_first=True, **asked))


def path(store: Store | AsyncStore, id: str = "w", **asked: Any) -> list[tuple[str, str, str, str]]:
    """The same, in short."""
    return [(each.trigger, each.source, each.target, each.outcome) for each in recorded(store, id, **asked)]


def kinds(store: Store | AsyncStore, id: str = "w") -> list[str]:
    """The kinds of an agent's steps, the oldest first."""
    rows = run(store._engine.lines.history(line_of(store, id).line))
    return [StepRef.of(row).kind for row in reversed(rows)]
