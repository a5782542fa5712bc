"""Who saves agents in the background: for each store one, with a lane for each event loop.

An agent of an `AsyncStore` is saved on its own event loop. Those of a `Store` share one thread, whatever their number,
with a loop in it: so saves of many agents are committed together.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from holdfast.agents.definition.autosave import Autosave
from holdfast.agents.runtime.dirty_tracker import DirtyTracker
from holdfast.agents.runtime.metrics import AgentMetrics, BreakerState, SaveStatistics, StoreMetrics, summed
from holdfast.agents.runtime.save_queue import SaveQueue
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.fork_safety import renew_after_fork
from holdfast.engine.engine import Engine
from holdfast.errors import TransientError, UnavailableError
from holdfast.hooks.breaker import HookBreaker

if TYPE_CHECKING:
    from holdfast.agents.runtime.persister import AgentPersister

_log = logging.getLogger("holdfast.agents")

_STATES: dict[str, BreakerState] = {"on": "closed", "off": "open", "trying": "trying"}
"""What the states of a breaker are called in figures, where it is the store that is switched off."""


_making = threading.Lock()


class AutosaveWorker:
    """The background of one store's agents."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.figures = SaveStatistics()
        """Of all agents of the store."""
        self.creations: dict[Hashable, Any] = {}
        """New agents of which it is not known whether they were saved; by what was asked for."""
        self._breakers: dict[tuple[int, float, float], HookBreaker] = {}
        self._closed = False
        self.renew_locks()
        renew_after_fork(self)
        self._at_exit = _flushing(weakref.ref(self))
        atexit.register(self._at_exit)
        weakref.finalize(self, atexit.unregister, self._at_exit).atexit = False

    @staticmethod
    def of(engine: Engine) -> AutosaveWorker:
        """That of a store."""
        found = _worker(engine)
        if found is None:
            with _making:
                found = _worker(engine)
                if found is None:
                    engine.workers.append(found := AutosaveWorker())
        return found

    def renew_locks(self) -> None:
        """For a forked child: agents that it has from its parent are the parent's to save, until it changes them."""
        keepers = list(getattr(self, "_keepers", ()))
        self._lock = threading.Lock()
        self._keepers: weakref.WeakSet[AgentPersister] = weakref.WeakSet(keepers)
        self._thread = SaveQueue(self.clock)
        self._lanes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SaveQueue] = weakref.WeakKeyDictionary()
        self.figures.renew_locks()
        for breaker in self._breakers.values():
            breaker.renew_locks()
        for keeper in keepers:
            keeper.renew_locks()

    def breaker(self, settings: Autosave) -> HookBreaker:
        """The breaker of all agents that have the same settings for it."""
        key = (settings.failures, settings.rest, settings.longest_rest)
        with self._lock:
            if key not in self._breakers:
                rest, longest = (int(seconds * 1e9) for seconds in key[1:])
                self._breakers[key] = HookBreaker(lambda: int(self.clock() * 1e9), settings.failures, rest, longest)
            return self._breakers[key]

    def joined(self, keeper: AgentPersister) -> None:
        """An agent of the store came to life."""
        with self._lock:
            self._keepers.add(keeper)

    # Of watches -----------------------------------------------------------------------------------------------

    def put(self, watch: DirtyTracker, at: float) -> None:
        """Look at an agent at that time."""
        lane = self._lane(watch)
        if lane is not None and at < inf:
            lane.put(watch, at)

    def hurry(self, watch: DirtyTracker) -> None:
        """Look at an agent now."""
        lane = self._lane(watch)
        if lane is not None:
            lane.hurry(watch)

    def settled(self, watch: DirtyTracker) -> None:
        """A save of an agent has ended: see when the next one is due."""
        lane = self._lane(watch)
        if lane is not None:
            lane.settled(watch)
            if not watch.saving:
                self.put(watch, watch.due())

    def back(self) -> None:
        """The store works again."""
        with self._lock:
            lanes = [self._thread, *self._lanes.values()]
        for lane in lanes:
            lane.retry()

    def _lane(self, watch: DirtyTracker) -> SaveQueue | None:
        """The one that an agent is saved in: of a thread, or of the event loop that runs. None if there is none."""
        if self._closed:
            return None
        if watch.sync:
            return self._thread
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return watch.lane
        with self._lock:
            lane = self._lanes.get(loop)
            if lane is None:
                lane = self._lanes[loop] = SaveQueue(self.clock, loop)
        if watch.lane is not lane:
            watch.lane, watch.queued, watch.saving = lane, inf, False
        return lane

    # Of the store ---------------------------------------------------------------------------------------------

    def keepers(self) -> list[AgentPersister]:
        """Those of the agents that there are."""
        with self._lock:
            return list(self._keepers)

    def metrics(self, actor: str = "") -> StoreMetrics:
        """How it goes; for an identity, with its own agents only."""
        keepers = [each for each in self.keepers() if actor in ("", each.line.handle.guard.actor)]
        figures = summed(keeper.figures for keeper in keepers) if actor else self.figures
        counts, buckets = figures.shown()
        agents = {keeper.line.id: metrics_of(keeper) for keeper in keepers}
        unsaved = sum(each.unsaved for each in agents.values())
        counts.changes += unsaved
        states = {_STATES[breaker.state] for breaker in self._breakers.values()}
        worst: BreakerState = "open" if "open" in states else "trying" if "trying" in states else "closed"
        oldest = max((each.oldest for each in agents.values()), default=0.0)
        return StoreMetrics(counts, buckets, agents, unsaved, oldest, worst)

    async def flush(self, watches: Sequence[DirtyTracker]) -> None:
        """Save what is unsaved of agents; where the store cannot be used, of no more than are tried until then."""
        for number, watch in enumerate(watches):
            keeper = watch.keeper
            try:
                await keeper.save(if_changed=True)
            except (TransientError, UnavailableError) as error:
                _tell_of(watches[number:], str(error))
                return
            except Exception as error:  # noqa: BLE001 - the others are still to be saved
                _log.error("agent %r could not be saved: %s", keeper.line.id, error)

    async def close(self) -> None:
        """The store is being closed: save what is unsaved, and nothing after that."""
        if not self._closed:
            await self.flush(self._unsaved())
            self._closed = True
            with self._lock:
                lanes = [self._thread, *self._lanes.values()]
            for lane in lanes:
                lane.end()

    def leave(self) -> None:
        """The program ends: save what agents of a `Store` have not saved, if the store can be used."""
        if self._closed:
            return
        unsaved = self._unsaved()
        watches = [watch for watch in unsaved if watch.sync]
        _tell_of([watch for watch in unsaved if not watch.sync], "the AsyncStore was not closed")
        if any(watch.breaker.until for watch in watches):
            _tell_of(watches, "the store is left alone, because saves failed")
        else:
            run(self.flush(watches))

    def _unsaved(self) -> list[DirtyTracker]:
        """What may have something to save."""
        return [each.watch for each in self.keepers() if each.watch is not None and each.watch.wants]


def _worker(engine: Engine) -> AutosaveWorker | None:
    return next((each for each in engine.workers if isinstance(each, AutosaveWorker)), None)


def _tell_of(watches: Sequence[DirtyTracker], why: str) -> None:
    lost = [watch.keeper.line.id for watch in watches if watch.unsaved]
    if lost:
        _log.error("%d agents have changes that are not saved: %s: %s", len(lost), ", ".join(lost[:20]), why)


def _flushing(saver: weakref.ref[AutosaveWorker]) -> Callable[[], None]:
    def flush() -> None:
        found = saver()
        if found is not None:
            found.leave()

    return flush


def metrics_of(keeper: AgentPersister) -> AgentMetrics:
    """How the saving of one agent goes."""
    counts, buckets = keeper.figures.shown()
    watch, error = keeper.watch, keeper.error
    about = "" if error is None else f"{type(error).__name__}: {error}"
    if watch is None:
        return AgentMetrics(keeper.line.id, keeper.version, counts, buckets, 0, 0.0, "closed", False, about)
    counts.changes += watch.unsaved
    standing = (watch.unsaved, watch.oldest, _STATES[watch.breaker.state], watch.halted is None)
    return AgentMetrics(keeper.line.id, keeper.version, counts, buckets, *standing, about)
