"""After-hooks that run soon: in order within a scope, side by side for different ones, and never in anybody's way.

What waits is bounded: where there is no room, the oldest one is dropped, counted and reported. That an after-hook ran
is recorded together with others, by a step of a line of its own, once a second at most: whoever is killed loses what
was to be recorded in the second before, and the hooks that were still waiting.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context

from holdfast.engine.events import Event
from holdfast.hooks.context import HookedChange
from holdfast.hooks.hook import Hook, log
from holdfast.hooks.workers import WorkerThreads

MOST = 10_000
"""How many executions wait at most."""

_LANES = 4
"""For so many scopes at a time after-hooks run."""

_EVERY = 1.0
"""Executions are recorded every so many seconds."""

_ROWS = 1000
"""So many executions are recorded at a time at most, and as soon as there are so many."""

_PATIENCE = 10
"""How often they are tried to be recorded, if that fails."""


class QueuedHook:
    """An after-hook to be run."""

    __slots__ = ("context", "gone", "hook", "subject")

    def __init__(self, hook: Hook, subject: HookedChange, context: Context) -> None:
        self.hook = hook
        self.subject = subject
        self.context = context
        self.gone = False
        """It has been run, or dropped."""


class AfterQueue:
    """After-hooks that wait, and those that have run and are not recorded yet."""

    def __init__(
        self,
        run: Callable[[QueuedHook], Event],
        write: Callable[[list[Event]], None],
        most: int = MOST,
        every: float = _EVERY,
    ) -> None:
        self._run = run
        self._write = write
        self._most = most
        self._every = every
        self._lanes = WorkerThreads("holdfast-after", _LANES)
        self.dropped = 0
        """How many were dropped because too many waited."""
        self.reinit_locks()

    def reinit_locks(self) -> None:
        """For a forked child: what waits is the parent's."""
        self._lanes.reinit_locks()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._all: deque[QueuedHook] = deque()
        self._by_scope: dict[str, deque[QueuedHook]] = {}
        self.waiting = 0
        """How many wait or are at work."""
        self._told: list[Event] = []
        self._writing = False
        self._hurry = False
        self._ended = False
        self._scribe: threading.Thread | None = None

    # Running ----------------------------------------------------------------------------------------------------

    def put(self, job: QueuedHook) -> None:
        """Have a hook run after those of the same scope that were put before it."""
        scope = job.subject.scope
        with self._changed:
            if self.waiting >= self._most:
                self._drop()
            self.waiting += 1
            self._all.append(job)
            while self._all and self._all[0].gone:
                self._all.popleft()
            lane = self._by_scope.get(scope)
            if lane is not None:
                lane.append(job)
                return
            self._by_scope[scope] = deque((job,))
        self._lanes.start(lambda: self._serve(scope))

    def _drop(self) -> None:
        """Make room. Those at work are no longer in the queue."""
        while self._all:
            oldest = self._all.popleft()
            if not oldest.gone:
                oldest.gone = True
                oldest.hook.dropped += 1
                self.waiting -= 1
                self.dropped += 1
                if self.dropped & (self.dropped - 1) == 0:  # the first, the second, the fourth and so on
                    log.error("too many after-hooks wait: %d were dropped so far", self.dropped)
                return

    def _serve(self, scope: str) -> None:
        """Run the hooks of a scope, as long as there are any."""
        while True:
            with self._changed:
                lane = self._by_scope.get(scope)
                while lane and lane[0].gone:
                    lane.popleft()
                if not lane:
                    self._by_scope.pop(scope, None)
                    self._changed.notify_all()
                    return
                job = lane.popleft()
                job.gone = True
            event = None
            try:
                event = self._run(job)
            except Exception as error:  # noqa: BLE001 - it is reported, and the others have their turn
                log.error("an after-hook could not be run", exc_info=error)
            finally:
                with self._changed:
                    self.waiting -= 1
                    if event is not None:
                        self.tell(event)
                    if not self.waiting:
                        self._changed.notify_all()

    # Recording --------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Have it recorded that a hook ran."""
        with self._lock:  # the condition's own, which takes fewer calls
            self._told.append(event)
            if self._scribe is None and not self._ended:
                self._scribe = threading.Thread(target=self._record, name="holdfast-hook-rows", daemon=True)
                self._scribe.start()
            elif len(self._told) in (1, _ROWS):
                self._changed.notify_all()

    def _record(self) -> None:
        """Record what there is, from time to time."""
        failed = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._told or self._ended, self._every)
                if not self._told:
                    self._scribe = None
                    return
                self._changed.wait_for(self._is_due, None if self._ended else self._every)
                events, self._told = self._told[:_ROWS], self._told[_ROWS:]
                self._writing = True
            try:
                self._write(events)
                failed = 0
            except Exception as error:  # noqa: BLE001 - it is reported, and tried again
                failed += 1
                if failed < _PATIENCE and not self._ended:
                    log.warning("executions of hooks are not recorded yet", exc_info=error)
                    with self._changed:
                        self._told = [*events, *self._told]
                else:
                    log.error("%d executions of hooks could not be recorded", len(events), exc_info=error)
                    failed = 0
            finally:
                with self._changed:
                    self._writing = False
                    self._changed.notify_all()
            if failed:
                time.sleep(min(self._every, 0.1 * failed))

    def _is_due(self) -> bool:
        return (self._hurry and not self.waiting) or self._ended or len(self._told) >= _ROWS

    # Ending -----------------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Wait until all that waits has run and is recorded. False if it has not by then."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            try:
                return self._changed.wait_for(self._is_idle, timeout)
            finally:
                self._hurry = False

    def _is_idle(self) -> bool:
        return not (self._by_scope or self.waiting or self._told or self._writing)

    def close(self) -> None:
        """End all threads; what still waits is dropped."""
        with self._changed:
            for job in self._all:
                if not job.gone:
                    job.gone = True
                    job.hook.dropped += 1
                    self.waiting -= 1
                    self.dropped += 1
            self._all.clear()
            self._ended = True
            self._changed.notify_all()
        self._lanes.close()
