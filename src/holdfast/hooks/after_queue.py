"""The queue of after-hooks: each in order within a scope, in parallel for different scopes, and never in the way of a
writer or of another hook.

The queue is bounded: when it is full, the oldest hook is dropped, counted and reported. Executions are recorded in
batches, by steps of a system line, once a second at most: a process that is killed loses what was to be recorded in the
second before, and the hooks that were still waiting, unless they are durable.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import NamedTuple

from holdfast.backends.runtime.threads import WorkerThread
from holdfast.backends.tables import Key
from holdfast.engine.events import Event
from holdfast.hooks.context import HookedChange
from holdfast.hooks.hook import Hook, log
from holdfast.hooks.outbox import OutboxCall

MAX_WAITING = 10_000
"""The maximum number of waiting executions."""

_RECORD_INTERVAL = 1.0
"""The seconds between two records of executions."""

_MAX_ROWS = 1000
"""The maximum number of executions in a record; as many are recorded at once."""

_MAX_FAILURES = 10
"""How often recording is attempted."""


class QueuedHook:
    """An after-hook to run."""

    __slots__ = ("call", "context", "finished", "hook", "subject")

    def __init__(self, hook: Hook, subject: HookedChange, context: Context, call: OutboxCall | None = None) -> None:
        self.call = call
        """The call in the outbox, if it is durable."""
        self.hook = hook
        self.subject = subject
        self.context = context
        self.finished = False
        """Whether it was run or dropped."""


class Outcome(NamedTuple):
    """The outcome of an execution, as it is recorded."""

    event: Event | None
    """None if it was not called."""
    call: OutboxCall | None = None
    """The call in the outbox, if it is durable."""
    next: OutboxCall | None = None
    """The call as it is stored from now on; None if it was delivered."""


class AfterQueue:
    """The waiting after-hooks, and the executions that are not recorded yet."""

    def __init__(
        self,
        run: Callable[[QueuedHook], Outcome],
        write: Callable[[Sequence[Outcome]], None],
        most: int = MAX_WAITING,
        every: float = _RECORD_INTERVAL,
    ) -> None:
        self._run = run
        self._write = write
        self._max_waiting = most
        self._interval = every
        self.dropped = 0
        """The number of hooks dropped because too many were waiting."""
        self.reinit_locks()

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child. Waiting hooks are the parent's to run."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._all: deque[QueuedHook] = deque()
        self._queues: dict[tuple[str, str], deque[QueuedHook]] = {}
        """The waiting calls by the name of the hook and the scope."""
        self.waiting = 0
        """How many wait or are at work."""
        self._unrecorded: list[Outcome] = []
        self._pending: set[Key] = set()
        """The rows of durable calls that wait, are at work, or are not recorded yet."""
        self._delivered: set[Key] = set()
        """The rows of calls that are only to be recorded."""
        self._writing = False
        self._draining = False
        self._closed = False
        self._recorder: WorkerThread | None = None

    # Running ----------------------------------------------------------------------------------------------------

    def put(self, job: QueuedHook) -> None:
        """Run a hook after its calls in the same scope that were put before."""
        key = (job.hook.name, job.subject.scope)
        with self._changed:
            if self.waiting >= self._max_waiting:
                self._drop()
            self._hold(job.call)
            self.waiting += 1
            self._all.append(job)
            while self._all and self._all[0].finished:
                self._all.popleft()
            queue = self._queues.get(key)
            if queue is not None:
                queue.append(job)
                return
            self._queues[key] = deque((job,))
        job.hook.runner.after_workers.start(lambda: self._serve(key))

    def _drop(self) -> None:
        """Drop the oldest waiting hook. Running ones are no longer in the queue."""
        while self._all:
            oldest = self._all.popleft()
            if not oldest.finished:
                oldest.finished = True
                self._let_go(oldest.call)
                oldest.hook.dropped += 1
                self.waiting -= 1
                self.dropped += 1
                if self.dropped & (self.dropped - 1) == 0:  # the first, the second, the fourth and so on
                    log.error("too many after-hooks wait: %d were dropped so far", self.dropped)
                return

    @property
    def capacity(self) -> int:
        """How many more calls can wait."""
        return max(0, self._max_waiting - self.waiting)

    def is_waiting(self, row: Key) -> bool:
        """Return whether the durable call with this row waits, is at work, or is not recorded yet."""
        with self._lock:
            return row in self._pending

    def is_delivered(self, row: Key) -> bool:
        """Return whether the durable call with this row was delivered, and that is not recorded yet."""
        with self._lock:
            return row in self._delivered

    def _hold(self, call: OutboxCall | None) -> None:
        if call is not None:
            self._pending.add(call.row.key)

    def _let_go(self, call: OutboxCall | None) -> None:
        if call is not None:
            self._pending.discard(call.row.key)
            self._delivered.discard(call.row.key)

    def _serve(self, key: tuple[str, str]) -> None:
        """Run the waiting calls of a hook in a scope, as long as there are any."""
        while True:
            with self._changed:
                queue = self._queues.get(key)
                while queue and queue[0].finished:
                    queue.popleft()
                if not queue:
                    self._queues.pop(key, None)
                    self._changed.notify_all()
                    return
                job = queue.popleft()
                job.finished = True
            outcome = None
            try:
                outcome = self._run(job)
            except Exception as error:  # noqa: BLE001 - it is reported, and the others have their turn
                log.error("an after-hook could not be run", exc_info=error)
            finally:
                with self._changed:
                    self.waiting -= 1
                    if outcome is None:
                        self._let_go(job.call)
                    else:
                        self.record(outcome)
                    if not self.waiting:
                        self._changed.notify_all()

    # Recording --------------------------------------------------------------------------------------------------

    def record(self, outcome: Outcome) -> None:
        """Record an execution with the next batch."""
        with self._lock:  # the condition's own, which takes fewer calls
            self._hold(outcome.call)
            if outcome.call is not None and outcome.next is None:
                self._delivered.add(outcome.call.row.key)
            self._unrecorded.append(outcome)
            if self._recorder is None and not self._closed:
                self._recorder = WorkerThread("holdfast-hook-rows", self._record_loop)
            elif len(self._unrecorded) in (1, _MAX_ROWS):
                self._changed.notify_all()

    def _record_loop(self) -> None:
        """Record executions from time to time."""
        failed = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unrecorded or self._closed, self._interval)
                if not self._unrecorded:
                    self._recorder = None
                    return
                self._changed.wait_for(self._is_due, None if self._closed else self._interval)
                records, self._unrecorded = self._unrecorded[:_MAX_ROWS], self._unrecorded[_MAX_ROWS:]
                self._writing = True
            try:
                self._write(records)
                failed = 0
            except Exception as error:  # noqa: BLE001 - it is reported, and tried again
                failed += 1
                if failed < _MAX_FAILURES and not self._closed:
                    log.warning("executions of hooks are not recorded yet", exc_info=error)
                    with self._changed:
                        self._unrecorded = [*records, *self._unrecorded]
                else:
                    log.error("%d executions of hooks could not be recorded", len(records), exc_info=error)
                    failed = 0
            finally:
                with self._changed:
                    self._writing = False
                    if not failed:
                        for each in records:
                            self._let_go(each.call)
                    self._changed.notify_all()
            if failed:
                time.sleep(min(self._interval, 0.1 * failed))

    def _is_due(self) -> bool:
        return (self._draining and not self.waiting) or self._closed or len(self._unrecorded) >= _MAX_ROWS

    # Ending -----------------------------------------------------------------------------------------------------

    def drain(self, timeout: float) -> bool:
        """Wait until all hooks have run and are recorded. False if they have not within the timeout."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            try:
                return self._changed.wait_for(self._is_idle, timeout)
            finally:
                self._draining = False

    def _is_idle(self) -> bool:
        return not (self._queues or self.waiting or self._unrecorded or self._writing)

    def close(self) -> None:
        """End all threads, and drop the hooks that still wait."""
        with self._changed:
            for job in self._all:
                if not job.finished:
                    job.finished = True
                    job.hook.dropped += 1
                    self.waiting -= 1
                    self.dropped += 1
            self._all.clear()
            self._closed = True
            self._changed.notify_all()
