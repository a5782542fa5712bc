"""Helpers for tests of automatic saves: agents, a clock that is set by hand, and a store that fails on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.definition.state_machine import Machine
from holdfast.backends.interface import Backend, Batch, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError, OutcomeUnknownError, TransientError
from holdfast.store.store import AsyncStore, Store


class Noter(PersistentAgent, name="autosaved-noter"):
    """Takes notes."""

    notes: list[str] = []
    table: dict[str, int] = {}
    machine = Machine("idle", "busy")
    machine.add("work", "idle", "busy", action="work")
    machine.add("rest", "busy", "idle")

    def work(self, data: Any) -> None:
        """Do as the data says."""
        if data == "fail":
            raise ZeroDivisionError

    def validate(self, fields: Any) -> None:
        """No note is bad."""
        if "bad" in fields["notes"]:
            raise ValueError("a bad note")


class AsyncNoter(AsyncPersistentAgent, name="autosaved-async-noter"):
    """Takes notes."""

    notes: list[str] = []


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wobbly(Wrapper):
    """A store that is down when it is told to be, or loses the answer to a change that it made."""

    def __init__(self, inner: Backend | None = None) -> None:
        super().__init__(inner or MemoryBackend())
        self.error: Callable[[], HoldfastError] | None = None
        self.lose = 0
        """So many answers are lost, of changes that are made."""
        self.gate = threading.Event()
        """While it is not set, changes wait."""
        self.gate.set()
        self.refused = 0
        self.calls: list[float] = []

    def fail(self, error: Callable[[], HoldfastError] | None = None) -> None:
        """Be down."""
        self.error = error or (lambda: TransientError("the store is down"))

    def work(self) -> None:
        """Be back."""
        self.error = None

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self._check()
        return await self.inner.read(queries)

    async def apply(self, batch: Batch) -> int | None:
        self.gate.wait(120)
        self._check()
        outcome = await self.inner.apply(batch)
        if self.lose and outcome is None:
            self.lose -= 1
            raise OutcomeUnknownError("no answer was received")
        return outcome

    def _check(self) -> None:
        if self.error is not None:
            self.refused += 1
            self.calls.append(time.monotonic())
            raise self.error()


def wobbly(inner: Backend | None = None) -> tuple[Store, Wobbly]:
    """A store, and what it is kept in."""
    backend = Wobbly(inner)
    return Store(Engine(EngineContext(backend)), ""), backend


def async_wobbly() -> tuple[AsyncStore, Wobbly]:
    """The same for asyncio."""
    backend = Wobbly()
    return AsyncStore(Engine(EngineContext(backend)), ""), backend


class Slow(AssertionError):
    """Something took longer than it should; perhaps the machine was busy. What is lost, or told wrongly, never is."""


def timely(held: bool, told: str) -> None:
    """What depends on the pace of the machine must hold once in a few tries."""
    if not held:
        raise Slow(told)


def patiently(scenario: Callable[[], None]) -> None:
    """Go through it once more, where only the pace was wrong."""
    for left in (2, 1, 0):
        try:
            scenario()
            break
        except Slow:
            if not left:
                raise


def until(held: Callable[[], object], seconds: float = 90.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not held():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.001)


def steps(store: Any, agent: Any) -> int:
    """How many steps an agent has in the store."""
    (rows,) = run(store._engine.context.backend.read([Scan(STEPS, tuple(agent.persister.line.line))]))
    return len(rows)


def threads() -> list[threading.Thread]:
    """The threads of auto-save."""
    return [each for each in threading.enumerate() if each.name == "holdfast-autosave"]
