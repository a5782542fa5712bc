"""The store is unavailable for a while during automatic saves: agents continue at their pace, and lose nothing.

Two agents work at the same time: one of a `Store` in a thread of its own, and one of an `AsyncStore` on an event loop.
Each takes a turn every few milliseconds, and notes how long the last one was ago.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import pytest

import holdfast
from holdfast.agents.definition.options import Autosave
from holdfast.agents.runtime.metrics import AgentMetrics
from holdfast.backends.interface import Batch, BlockingCall
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import TransientError
from holdfast.store.store import AsyncStore, Store
from tests import servers
from tests.agents.autosaved import AsyncNoter, Noter, Wobbly, patiently, steps, timely
from tests.servers.places import with_options

T = TypeVar("T")

BEAT = 0.004
"""An agent takes a turn every so many seconds."""

HANG = 1.0
"""For so many seconds each attempt to use the store hangs before it fails. No turn may ever take as long."""


class Hanging(Wobbly):
    """Down as a server is that does not answer: each attempt takes its time to fail."""

    async def apply(self, batch: Batch) -> int | None:
        if self.error is not None:
            await BlockingCall(partial(time.sleep, HANG))
        return await super().apply(batch)


@dataclass
class Diary:
    """What an agent went through."""

    turns: list[float] = field(default_factory=list)
    """When each was taken, in seconds since 1970."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """When, and how long after the one before."""
    seen: list[tuple[float, AgentMetrics]] = field(default_factory=list)
    """Figures, now and then."""
    _last: float = 0.0
    _looked: float = 0.0

    def turn(self, agent: Any) -> None:
        """Take a turn."""
        now = time.time()
        if self._last:
            self.gaps.append((now, now - self._last))
        self._last = now
        agent.conversation.append({"role": "user", "content": f"turn {len(self.turns)}"})
        self.turns.append(now)
        if now - self._looked > 0.05:
            self._looked = now
            self.seen.append((now, agent.metrics))

    def longest(self, begin: float, end: float) -> float:
        """The longest gap in a time."""
        return max(gap for when, gap in self.gaps if begin <= when <= end)

    def during(self, begin: float, end: float) -> list[AgentMetrics]:
        """The figures in a time."""
        return [figures for when, figures in self.seen if begin <= when <= end]


@dataclass
class Outage:
    """When the store went down, and when it was back."""

    calm: float = 0.0
    """When all was well, and the agents were at work."""
    down: float = 0.0
    back: float = 0.0
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released by each agent that is at work."""
    over: threading.Event = field(default_factory=threading.Event)
    trouble: list[BaseException] = field(default_factory=list)

    @contextmanager
    def caused(self, seconds: float, kill: Callable[[], None], revive: Callable[[], None]) -> Iterator[None]:
        """Have the store be down for so many seconds, meanwhile."""

        def cause() -> None:
            try:
                for _ in range(2):
                    assert self.begun.acquire(timeout=120)
                self.calm = time.time()
                time.sleep(1.5)
                self.down = time.time()
                kill()
                time.sleep(max(0.0, seconds - (time.time() - self.down)))
                revive()
                self.back = time.time()
            except BaseException as error:
                self.trouble.append(error)
                raise
            finally:
                self.over.set()

        thread = threading.Thread(target=cause)
        thread.start()
        try:
            yield
        finally:
            thread.join()
        assert not self.trouble


def live(store: Store, diary: Diary, outage: Outage, settings: Autosave, patience: float) -> Noter:
    """The life of an agent of a `Store`."""
    agent = Noter().attach(store, "sync", autosave=settings)
    while not agent.version:
        with suppress(TransientError):  # a busy machine takes longer than the store may
            agent.start()
    outage.begun.release()
    while not outage.over.is_set():
        diary.turn(agent)
        time.sleep(BEAT)
    deadline = time.time() + patience
    while agent.metrics.unsaved and time.time() < deadline:
        time.sleep(0.001)
    return agent


async def alive(store: AsyncStore, diary: Diary, outage: Outage, settings: Autosave, patience: float) -> AsyncNoter:
    """The same on an event loop."""
    agent = AsyncNoter().attach(store, "async", autosave=settings)
    while not agent.version:
        with suppress(TransientError):
            await agent.start()
    outage.begun.release()
    while not outage.over.is_set():
        diary.turn(agent)
        await asyncio.sleep(BEAT)
    deadline = time.time() + patience
    while agent.metrics.unsaved and time.time() < deadline:
        await asyncio.sleep(0.001)
    return agent


def check(store: Store, agent: Any, diary: Diary, outage: Outage, settings: Autosave, seconds: float) -> None:
    """See that the agent kept its pace, and that nothing is lost."""
    # Its pace: no turn had to wait for the store, and there were about as many as before.
    calm, down = diary.longest(outage.calm, outage.down), diary.longest(outage.down, outage.back)
    timely(down < max(0.8 * HANG, 3 * calm), f"a gap of {down:.3f} s, and {calm:.3f} s before")
    before = sum(when < outage.down for when in diary.turns) / (outage.down - outage.calm)
    meanwhile = sum(outage.down < when < outage.back for when in diary.turns) / (outage.back - outage.down)
    timely(meanwhile > before / 3, f"{meanwhile:.0f} turns in a second, and {before:.0f} before")

    # Nothing is lost: all turns are there now; and when it went down, all were but for those of the window.
    record = store.agents.load(agent.id)
    assert record.messages == len(diary.turns)
    assert store.agents.messages(agent.id, -1)[0]["content"] == f"turn {len(diary.turns) - 1}"
    history = store.agents.history(agent.id, limit=100_000)
    went_down = datetime.fromtimestamp(outage.down, UTC)
    saved = max(step.messages for step in history if step.time <= went_down)
    window = min(settings.interval, settings.changes * BEAT) + 0.5
    due = sum(when < outage.down - window for when in diary.turns)
    timely(saved >= due > 0, f"{saved} messages were saved of {due}")

    # The figures tell it as it was.
    after = agent.metrics
    assert (after.unsaved, after.oldest, after.breaker, after.error) == (0, 0.0, "closed", "")
    assert after.counts.changes == len(diary.turns)
    assert after.counts.done == steps(store, agent) == agent.version == len(history)
    timely(after.counts.coalesced > len(diary.turns) / 3, f"{after.counts.coalesced} changes were saved with others")
    figures = diary.during(outage.down, outage.back)
    worst = max(figures, key=lambda each: each.oldest)  # it may be back before whoever started it knows
    timely({"open", "trying"} <= {each.breaker for each in figures}, "the breaker was not seen at work")
    timely(worst.oldest > seconds * 0.6, f"for {worst.oldest:.1f} s at most nothing was saved")
    assert worst.unsaved > 0
    assert worst.error
    assert all(each.is_autosaved for each in figures)
    timely(after.counts.failed >= 3, f"{after.counts.failed} saves failed")
    assert after.counts.retried >= after.counts.failed
    assert after.success_rate == after.counts.done / (after.counts.done + after.counts.failed)
    most = max(each.unsaved for each in diary.during(outage.calm, outage.down - 0.5))
    timely(most < settings.changes * 3, f"{most} changes waited to be saved")
    # It was left alone: without pauses and a breaker there would have been many more.
    assert after.counts.failed <= 6 + (outage.back - outage.down + 4) / settings.rest


def go_through(
    store: Store,
    other: AsyncStore,
    settings: Autosave,
    seconds: float,
    kill: Callable[[], None],
    revive: Callable[[], None],
    look: Callable[[], Store],
) -> None:
    """Let both agents live through an outage, and see how they did."""
    diaries, agents, outage = (Diary(), Diary()), [], Outage()
    patience = settings.max_rest + 120.0

    def one() -> None:
        agents.append(live(store, diaries[0], outage, settings, patience))

    async def two() -> AsyncNoter:
        return await alive(other, diaries[1], outage, settings, patience)

    with outage.caused(seconds, kill, revive):
        thread = threading.Thread(target=one)
        thread.start()
        agent = asyncio.run(two())
        thread.join()
    (first,) = agents
    with look() as found:
        check(found, first, diaries[0], outage, settings, seconds)
        check(found, agent, diaries[1], outage, settings, seconds)
    for where, whose in ((store, first), (other, agent)):
        figures = where.agents.metrics()
        assert figures.counts == whose.metrics.counts
        assert figures.counts.opened >= 1


@pytest.mark.nightly
def test_a_store_that_does_not_answer_for_a_while() -> None:
    patiently(outage_of_a_hanging_store)


def outage_of_a_hanging_store() -> None:
    backend = Hanging(MemoryBackend())
    store, other = Store(Engine(EngineContext(backend)), ""), AsyncStore(Engine(EngineContext(backend)), "")
    settings = Autosave(interval=0.2, changes=30, pause=0.02, max_pause=0.1, failures=2, rest=0.3, max_rest=0.6)
    try:
        go_through(
            store, other, settings, 4.0, backend.fail, backend.work, lambda: Store(Engine(EngineContext(backend)), "")
        )
        assert backend.refused > 0
    finally:
        asyncio.run(_closed(other))
        store.close()


def outage_of_postgres(settings: Autosave, seconds: float, timeout: float) -> None:
    with servers.postgres_server() as server:
        patient = server.fresh()
        url = with_options(patient, {"timeout": timeout})
        holdfast.open(patient).close()  # makes what is in it
        store = _insisted(lambda: holdfast.open(url))
        other = _insisted(lambda: asyncio.run(_opened(url)))
        try:
            go_through(store, other, settings, seconds, server.kill, server.restart, lambda: holdfast.open(patient))
        finally:
            asyncio.run(_closed(other))
            store.close()


def _insisted(ask: Callable[[], T]) -> T:
    """What is asked for, of a store that gives up sooner than a busy machine may take."""
    for _ in range(20):
        with suppress(TransientError):
            return ask()
    return ask()


async def _opened(url: str) -> AsyncStore:
    return await holdfast.aopen(url)


async def _closed(store: AsyncStore) -> None:
    await store.close()


@pytest.mark.nightly
def test_a_server_that_is_killed_and_comes_back() -> None:
    settings = Autosave(interval=0.5, changes=60, pause=0.05, max_pause=0.2, failures=2, rest=0.5, max_rest=1.0)
    patiently(lambda: outage_of_postgres(settings, 6.0, HANG))


@pytest.mark.torture
def test_a_server_that_is_down_for_a_minute() -> None:
    settings = Autosave(interval=0.5, changes=100, failures=3, rest=2.0, max_rest=8.0)
    patiently(lambda: outage_of_postgres(settings, 60.0, 2.0))
