"""A lane: saves the agents of one event loop, each when it is due.

It is a loop of others, or one of its own in a thread of its own. The thread is started when it is first needed, and
ends when there is nothing left to look at. It does not keep a program from ending, and does not keep agents alive but
for those that have something unsaved.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from math import inf

from holdfast.agents.runtime.dirty_tracker import AgentBusy, DirtyTracker
from holdfast.backends.runtime.drivers import arun

_log = logging.getLogger("holdfast.agents")

_AT_ONCE = 16
"""So many agents of a lane are saved at a time."""

_SOON = 0.005
"""After so many seconds an agent is looked at again that was just being changed."""

_LATER = 1.0
"""For so many seconds, at least, nothing is begun in a loop that cancelled a save."""

_LAST_TASKS = ("shutdown_asyncgens", "shutdown_default_executor")
"""What an event loop runs when all other tasks are done."""

_ENDING = 5.0
"""For so many seconds a store that is closed waits for the thread."""


class SaveQueue:
    """The agents that one event loop saves, by when they are due."""

    def __init__(self, clock: Callable[[], float], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Without a loop, it has one of its own, in a thread of its own."""
        self._clock = clock
        self._own = loop is None
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] = _none if loop is None else weakref.ref(loop)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._numbers = count()
        self._heap: list[tuple[float, int, weakref.ref[DirtyTracker]]] = []
        self._hurried: list[DirtyTracker] = []
        self._unsaved: set[DirtyTracker] = set()
        self._ready: deque[DirtyTracker] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._woken = inf
        """When the loop looks next, at the latest."""
        self._over = False

    @property
    def ended(self) -> bool:
        """Whether the event loop of others is no more."""
        loop = self._loop()
        return not self._own and (loop is None or loop.is_closed())

    # From any thread ------------------------------------------------------------------------------------------

    def put(self, watch: DirtyTracker, at: float) -> None:
        """Look at an agent at that time."""
        with self._lock:
            self._keep(watch)
            if at < watch.queued and not self._over:
                watch.queued = at
                heappush(self._heap, (at, next(self._numbers), weakref.ref(watch)))
                self._wake(at)

    def hurry(self, *watches: DirtyTracker) -> None:
        """Look at agents now."""
        with self._lock:
            if self._over:
                return
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

    def settled(self, watch: DirtyTracker) -> None:
        """A save of an agent has ended."""
        with self._lock:
            if watch.halted is not None or not watch.unsaved:
                self._unsaved.discard(watch)

    def end(self) -> None:
        """Save nothing more."""
        with self._lock:
            self._over = True
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

    def _keep(self, watch: DirtyTracker) -> None:
        if watch.unsaved and watch.halted is None and not self._over:
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
        self._begin_all()
        with self._lock:
            if self._heap and self._heap[0][0] < self._woken:
                self._woken = self._heap[0][0]
                self._timer = loop.call_later(max(0.0, self._woken - now), self._look, context=Context())
            self._rest()

    def _consider(self, watch: DirtyTracker, now: float) -> None:
        at = watch.due()
        if watch.saving or at == inf:
            return  # once it is saved, or changes, it is seen to anew
        if at > now:
            self.put(watch, at)
        elif watch.keeper.held:
            watch.waiting = True
            watch.want(True)
            if not watch.keeper.held:
                self.put(watch, now)  # it was let go just now
        else:
            watch.saving = True
            self._ready.append(watch)

    def _begin_all(self) -> None:
        """Begin as many saves as may run at a time, or put them off if the loop is about to end."""
        if not self._ready:
            return
        loop = asyncio.get_running_loop()
        if not self._own and _is_ending(loop):
            while self._ready:
                self._put_off(self._ready.popleft())
        for _ in range(min(len(self._ready), _AT_ONCE - len(self._tasks))):
            task = loop.create_task(self._save())
            self._tasks.add(task)
            task.add_done_callback(self._done)

    async def _save(self) -> None:
        """Save those that are ready, one after the other."""
        while self._ready:
            watch = self._ready.popleft()
            soon = 0.0
            if not watch.breaker.lets():
                watch.saving = False
                watch.want(False)
                pause = min(watch.settings.rest, 1.0) * random.uniform(0.5, 1)  # noqa: S311 - not all at once
                self.put(watch, max(watch.breaker.until / 1e9, self._clock() + pause))
                continue
            tried = bool(watch.breaker.until)
            try:
                await arun(watch.keeper.save("autosave", if_changed=True, background=True))
                watch.want(False)
            except AgentBusy:
                soon = self._clock() + _SOON
                watch.want(True)
            except asyncio.CancelledError:
                self._put_off(watch)
                raise
            except Exception as error:  # noqa: BLE001 - it is kept, counted, and tried again
                _log.debug("agent %r could not be saved: %s", watch.keeper.line.id, error)
                watch.want(False)
            finally:
                watch.saving = False
                if tried:  # else it is another one that is tried, if any is
                    watch.breaker.left()
            at = max(watch.due(), soon)
            if at < inf:
                self.put(watch, at)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            while self._ready:
                self._put_off(self._ready.popleft())
        self._begin_all()  # what came when this one had just ended, and all others were at work
        with self._lock:
            self._rest()

    def _put_off(self, watch: DirtyTracker) -> None:
        """The loop is ending, as a rule, and nothing is begun in it any more. If it goes on, so does this, later."""
        watch.saving = False
        self.put(watch, self._clock() + max(_LATER, watch.settings.interval))

    def _rest(self) -> None:
        """End the thread if nothing is left; by who has the lock."""
        if self._own and not (self._heap or self._hurried or self._ready or self._tasks):
            loop = self._loop()
            self._loop, self._thread, self._woken = _none, None, inf
            if loop is not None:
                loop.stop()


def _is_ending(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether an event loop is about to be closed: a task that began now would be left over.

    `asyncio.run` cancels all tasks and lets them end, and then runs two of its own.
    """
    tasks = asyncio.all_tasks(loop)
    return bool(tasks) and all(
        task.cancelling() or getattr(task.get_coro(), "__name__", "") in _LAST_TASKS for task in tasks
    )


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
