"""Who saves agents in the background: for each store one, with a lane for each event loop.

An agent of an `AsyncStore` is saved on its own event loop. Those of a `Store` share one thread, whatever their number,
with a loop in it: so saves of many agents are committed together. The thread is started when it is first needed, and
ends when there is nothing left to look at. It does not keep a program from ending, and does not keep agents alive but
for those that have something unsaved.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from holdfast.agents.autosaving import Autosave, Busy, Watch
from holdfast.agents.metrics import BreakerState, Figures, StoreMetrics, summed
from holdfast.backends.forks import renew_after_fork
from holdfast.engine.core import Engine
from holdfast.engine.drivers import arun, run
from holdfast.errors import Transient, Unavailable
from holdfast.hooks.breaker import Breaker

if TYPE_CHECKING:
    from holdfast.agents.keeper import Keeper

_log = logging.getLogger("holdfast.agents")

_AT_ONCE = 16
"""So many agents of a lane are saved at a time."""

_SOON = 0.005
"""After so many seconds an agent is looked at again that was just being changed."""

_ENDING = 5.0
"""For so many seconds a store that is closed waits for the thread."""

STATES: dict[str, BreakerState] = {"on": "closed", "off": "open", "trying": "trying"}
"""What the states of a breaker are called in figures, where it is the store that is switched off."""


class Lane:
    """The agents that one event loop saves, by when they are due."""

    def __init__(self, clock: Callable[[], float], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Without a loop, it has one of its own, in a thread of its own."""
        self._clock = clock
        self._own = loop is None
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] = _none if loop is None else weakref.ref(loop)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._numbers = count()
        self._heap: list[tuple[float, int, weakref.ref[Watch]]] = []
        self._hurried: list[Watch] = []
        self._unsaved: set[Watch] = set()
        self._ready: deque[Watch] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._woken = inf
        """When the loop looks next, at the latest."""

    @property
    def ended(self) -> bool:
        """Whether the event loop of others is no more."""
        loop = self._loop()
        return not self._own and (loop is None or loop.is_closed())

    # From any thread ------------------------------------------------------------------------------------------

    def put(self, watch: Watch, at: float) -> None:
        """Look at an agent at that time."""
        with self._lock:
            self._keep(watch)
            if at < watch.queued:
                watch.queued = at
                heappush(self._heap, (at, next(self._numbers), weakref.ref(watch)))
                self._wake(at)

    def hurry(self, *watches: Watch) -> None:
        """Look at agents now."""
        with self._lock:
            for watch in watches:
                self._keep(watch)
                self._hurried.append(watch)
            self._wake(0.0)

    def retry(self) -> None:
        """Try all again that wait for the store."""
        with self._lock:
            waiting = list(self._unsaved)
        for watch in waiting:
            watch.retry()
        self.hurry(*waiting)

    def settled(self, watch: Watch) -> None:
        """A save of an agent has ended."""
        with self._lock:
            if watch.halted is not None or not watch.unsaved:
                self._unsaved.discard(watch)

    def end(self) -> None:
        """Save nothing more."""
        with self._lock:
            self._heap.clear()
            self._hurried.clear()
            self._unsaved.clear()
            self._ready.clear()
            thread = self._thread
            self._woken = inf
            if self._loop() is not None:
                self._wake(0.0)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_ENDING)

    def _keep(self, watch: Watch) -> None:
        if watch.unsaved and watch.halted is None:
            self._unsaved.add(watch)

    def _wake(self, at: float) -> None:
        """Have the loop look at that time; by who has the lock."""
        if at >= self._woken:
            return
        loop = self._loop()
        if loop is None and self._own:
            loop = Context().run(asyncio.new_event_loop)  # it would keep what is in the context of the caller
            thread = threading.Thread(target=_work, args=(loop,), name="holdfast-autosave", daemon=True)
            thread.start()
            self._loop, self._thread = _always(loop), thread
        self._woken = at
        if loop is not None:
            try:
                # In a context of its own: a save belongs to none of the callers whose changes are in it.
                loop.call_soon_threadsafe(self._look, context=Context())
            except RuntimeError:
                if not loop.is_closed():
                    raise
                # It ended, and the agents with it.

    # In the loop ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Begin what is due, and see when to look again."""
        now, loop = self._clock(), asyncio.get_running_loop()
        with self._lock:
            if loop is not self._loop():
                return  # it is ending, and another one has begun
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._woken = inf  # who adds something from now on asks for another look
            due, self._hurried = self._hurried, []
            while self._heap and self._heap[0][0] <= now:
                at, _, found = heappop(self._heap)
                watch = found()
                if watch is not None and watch.queued == at:
                    watch.queued = inf
                    due.append(watch)
        for watch in due:
            self._consider(watch, now)
        with self._lock:
            if self._heap and self._heap[0][0] < self._woken:
                self._woken = self._heap[0][0]
                self._timer = loop.call_later(max(0.0, self._woken - now), self._look, context=Context())
            self._rest()

    def _consider(self, watch: Watch, now: float) -> None:
        at = watch.due()
        if watch.saving or at == inf:
            return  # once it is saved, or changes, it is seen to anew
        if at > now:
            self.put(watch, at)
        elif watch.keeper.held:
            watch.waiting = True
            if not watch.keeper.held:
                self.put(watch, now)  # it was let go just now
        else:
            watch.saving = True
            self._ready.append(watch)
            self._begin()

    def _begin(self) -> None:
        if len(self._tasks) < _AT_ONCE:
            task = asyncio.get_running_loop().create_task(self._save())
            self._tasks.add(task)
            task.add_done_callback(self._done)

    async def _save(self) -> None:
        """Save those that are ready, one after the other."""
        while self._ready:
            watch = self._ready.popleft()
            soon = 0.0
            if not watch.breaker.lets():
                watch.saving = False
                pause = min(watch.settings.rest, 1.0) * random.uniform(0.5, 1)  # noqa: S311 - not all at once
                self.put(watch, max(watch.breaker.until / 1e9, self._clock() + pause))
                continue
            try:
                await arun(watch.keeper.save("autosave", if_changed=True, background=True))
            except Busy:
                soon = self._clock() + _SOON
            except Exception as error:  # noqa: BLE001 - it is kept, counted, and tried again
                _log.debug("agent %r could not be saved: %s", watch.keeper.line.id, error)
            finally:
                watch.saving = False
                watch.breaker.left()
            at = max(watch.due(), soon)
            if at < inf:
                self.put(watch, at)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._ready:  # it came when this one had just ended, and all others were at work
            self._begin()
        with self._lock:
            self._rest()

    def _rest(self) -> None:
        """End the thread if nothing is left; by who has the lock."""
        if self._own and not (self._heap or self._hurried or self._ready or self._tasks):
            loop = self._loop()
            self._loop, self._thread, self._woken = _none, None, inf
            if loop is not None:
                loop.stop()


def _none() -> None:
    return None


def _always(loop: asyncio.AbstractEventLoop) -> Callable[[], asyncio.AbstractEventLoop]:
    return lambda: loop


def _work(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


_making = threading.Lock()


class Saver:
    """The background of one store's agents."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.figures = Figures()
        """Of all agents of the store."""
        self._breakers: dict[tuple[int, float, float], Breaker] = {}
        self._closed = False
        self.renew_locks()
        renew_after_fork(self)
        self._at_exit = _flushing(weakref.ref(self))
        atexit.register(self._at_exit)
        weakref.finalize(self, atexit.unregister, self._at_exit).atexit = False

    @staticmethod
    def of(engine: Engine) -> Saver:
        """That of a store."""
        found: Saver | None = engine.agents
        if found is None:
            with _making:
                if engine.agents is None:
                    engine.agents = Saver()
                found = engine.agents
        return found

    def renew_locks(self) -> None:
        """For a forked child: agents that it has from its parent are the parent's to save, until it changes them."""
        keepers = list(getattr(self, "_keepers", ()))
        self._lock = threading.Lock()
        self._keepers: weakref.WeakSet[Keeper] = weakref.WeakSet(keepers)
        self._thread = Lane(self.clock)
        self._lanes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Lane] = weakref.WeakKeyDictionary()
        self.figures.renew_locks()
        for breaker in self._breakers.values():
            breaker.renew_locks()
        for keeper in keepers:
            keeper.renew_locks()

    def breaker(self, settings: Autosave) -> Breaker:
        """The breaker of all agents that have the same settings for it."""
        key = (settings.failures, settings.rest, settings.longest_rest)
        with self._lock:
            if key not in self._breakers:
                rest, longest = (int(seconds * 1e9) for seconds in key[1:])
                self._breakers[key] = Breaker(lambda: int(self.clock() * 1e9), settings.failures, rest, longest)
            return self._breakers[key]

    def joined(self, keeper: Keeper) -> None:
        """An agent of the store came to life."""
        with self._lock:
            self._keepers.add(keeper)

    # Of watches -----------------------------------------------------------------------------------------------

    def put(self, watch: Watch, at: float) -> None:
        """Look at an agent at that time."""
        lane = self._lane(watch)
        if lane is not None and at < inf:
            lane.put(watch, at)

    def hurry(self, watch: Watch) -> None:
        """Look at an agent now."""
        lane = self._lane(watch)
        if lane is not None:
            lane.hurry(watch)

    def settled(self, watch: Watch) -> None:
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

    def _lane(self, watch: Watch) -> Lane | None:
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
                lane = self._lanes[loop] = Lane(self.clock, loop)
        if watch.lane is not lane:
            watch.lane, watch.queued = lane, inf
        return lane

    # Of the store ---------------------------------------------------------------------------------------------

    def keepers(self) -> list[Keeper]:
        """Those of the agents that there are."""
        with self._lock:
            return list(self._keepers)

    def metrics(self, actor: str = "") -> StoreMetrics:
        """How it goes; for an identity, with its own agents only."""
        keepers = [each for each in self.keepers() if actor in ("", each.line.handle.guard.actor)]
        figures = summed(keeper.figures for keeper in keepers) if actor else self.figures
        counts, buckets = figures.shown()
        agents = {keeper.line.id: keeper.metrics() for keeper in keepers}
        unsaved = sum(each.unsaved for each in agents.values())
        counts.changes += unsaved
        states = {STATES[breaker.state] for breaker in self._breakers.values()}
        worst: BreakerState = "open" if "open" in states else "trying" if "trying" in states else "closed"
        oldest = max((each.oldest for each in agents.values()), default=0.0)
        return StoreMetrics(counts, buckets, agents, unsaved, oldest, worst)

    async def flush(self, watches: Sequence[Watch]) -> None:
        """Save what is unsaved of agents; where the store cannot be used, of no more than are tried until then."""
        for number, watch in enumerate(watches):
            keeper = watch.keeper
            try:
                await keeper.save(if_changed=True)
            except (Transient, Unavailable) as error:
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
        watches = [watch for watch in self._unsaved() if watch.sync]
        if any(watch.breaker.until for watch in watches):
            _tell_of(watches, "the store is left alone, because saves failed")
        else:
            run(self.flush(watches))

    def _unsaved(self) -> list[Watch]:
        """What may have something to save."""
        return [each.watch for each in self.keepers() if each.watch is not None and each.watch.wants]


def _tell_of(watches: Sequence[Watch], why: str) -> None:
    lost = [watch.keeper.line.id for watch in watches if watch.unsaved]
    if lost:
        _log.error("%d agents have changes that are not saved: %s: %s", len(lost), ", ".join(lost[:20]), why)


def _flushing(saver: weakref.ref[Saver]) -> Callable[[], None]:
    def flush() -> None:
        found = saver()
        if found is not None:
            found.leave()

    return flush
