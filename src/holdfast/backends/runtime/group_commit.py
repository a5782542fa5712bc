"""Group commit: one flush for the batches of many callers.

There is no writer thread. A sync caller that finds no leader becomes the leader: it commits all queued batches as one
group, its own among them, and passes the lead on if more were queued meanwhile.

Batches of asyncio tasks are committed by one worker thread, which the first of them starts. Those that the tasks of a
loop submit in one turn of the loop are gathered, and queued together at its end: one group and one wake-up for all, and
the worker does not contend with the tasks for the interpreter.

A signal may interrupt a leader or a waiter anywhere. So each action is recorded in the queue before it starts, and
`_release` completes it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.backends.distribution import BATCHES, Distribution
from holdfast.backends.interface import Batch, Create, Ensure, Put, Suspension, closed_error
from holdfast.backends.runtime.threads import WorkerThread
from holdfast.errors import HoldfastError, UnavailableError

if TYPE_CHECKING:
    import asyncio

Outcome: TypeAlias = int | Exception | None
"""The outcome of a batch: None if it was applied, the position of the change that was refused, or an error."""

Commit: TypeAlias = Callable[[list[Batch], list[Outcome]], None]
"""Commits a group, and appends one outcome for each batch.

Whether it returns or is interrupted, there are as many outcomes as batches if the group was committed, and fewer if it
was not. An `Exception` that it raises is the outcome of all.
"""

_MAX_BATCHES = 1_000
_MAX_BYTES = 8 << 20

_WakeQueue: TypeAlias = "SimpleQueue[bool]"


class PendingBatch(Suspension[int | None]):
    """A batch to commit. Queued by the first `wait` or `watch`; only one of them may be called, and once."""

    done = False
    outcome: Outcome = None
    signal: threading.Lock | None = None
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[int | None] | None = None

    def __init__(self, queue: CommitQueue, batch: Batch) -> None:
        self._queue = queue
        self.batch = batch

    def wait(self) -> int | None:
        self._queue.wait_for(self)
        return self.result()

    def watch(self) -> asyncio.Future[int | None]:
        """Return a future. Cancelling it does not cancel the batch, which is still applied or fails as a whole."""
        import asyncio

        self.loop = loop = asyncio.get_running_loop()
        self.future = future = loop.create_future()
        self._queue.gather(self, loop)
        return future

    def result(self) -> int | None:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def deliver(self) -> None:
        """Resolve the future, in its event loop."""
        if self.future is None or self.future.done():
            return
        if isinstance(self.outcome, Exception):
            self.future.set_exception(self.outcome)
        else:
            self.future.set_result(self.outcome)


_Leader: TypeAlias = "PendingBatch | _Worker"


class CommitQueue:
    """Batches in the order of submission. `where` names the store in errors."""

    def __init__(self, commit: Commit, where: str = "") -> None:
        self._commit: Final = commit
        self._where: Final = where
        self._closed = False
        self.sizes: Final = Distribution(BATCHES)
        """How many batches were committed together."""
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget the queue and the leader: a forked child does not have those threads."""
        self._lock = threading.RLock()
        self._queued: deque[PendingBatch] = deque()
        self._gathered: list[PendingBatch] = []
        """The batches of tasks that are queued at the end of a turn of one of the loops that follow."""
        self._gathering: set[asyncio.AbstractEventLoop] = set()
        self._leader: _Leader | None = None
        self._group: Sequence[PendingBatch] = ()
        self._outcomes: list[Outcome] = []
        self._worker: _Worker | None = None
        self._inside: set[int] = set()
        """The threads that wait here for a batch, or commit it."""

    def submit(self, batch: Batch) -> PendingBatch:
        """Return an awaitable that commits a batch."""
        return PendingBatch(self, batch)

    def drain(self) -> None:
        """Wait until all queued batches have outcomes."""
        self.wait_for(PendingBatch(self, ()), even_closed=True)

    def close(self) -> None:
        """Refuse new batches, wait for the queued ones, and stop the worker. May be called again."""
        with self._lock:
            self._closed = True
        self.drain()
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def wait_for(self, pending: PendingBatch, even_closed: bool = False) -> None:
        """Queue a batch, and return when it has an outcome. Becomes the leader if there is none."""
        thread = threading.get_ident()
        if thread in self._inside:
            raise UnavailableError(
                "a signal handler tried to save while its thread was already saving",
                where=self._where,
                hint="In a signal handler only record the signal, and save afterwards",
            )
        interrupt: BaseException | None = None
        try:
            self._inside.add(thread)
            with self._lock:
                if self._closed and not even_closed:
                    raise closed_error(self._where)
                if self._gathered:
                    self._queue_gathered()  # they were submitted before
                if self._leader is None:  # so nothing is queued
                    self._leader = pending
                    self._group, self._outcomes = (pending,), []
                else:
                    pending.signal = threading.Lock()
                    pending.signal.acquire()
                    self._queued.append(pending)
            if pending.signal is None:
                # The usual case. It does little after the flush, when the processor's caches are cold.
                self._commit_group()
                pending.outcome, pending.done, self._group = self._outcomes[0], True, ()
                with self._lock:
                    if not self._queued:
                        self._leader = None
                        return
            else:
                pending.signal.acquire()  # until it has an outcome, or is the leader
                while not pending.done:
                    self._take_group()
                    self._commit_group()
                    self._deliver_outcomes()
        finally:
            # Not in a function: a signal could prevent the call.
            released = pending.done and self._leader is not pending
            while not released:
                try:
                    self._release(pending)
                    released = True
                except BaseException as error:  # noqa: BLE001 - raised below
                    interrupt = error
            self._inside.discard(thread)
            if interrupt is not None:
                raise interrupt

    def gather(self, pending: PendingBatch, loop: asyncio.AbstractEventLoop) -> None:
        """Queue a batch for the worker thread, with those of other tasks, when this turn of the loop ends."""
        with self._lock:
            if self._closed:
                raise closed_error(self._where)
            if self._worker is None:
                self._worker = _Worker(self)
            self._gathered.append(pending)
            if loop not in self._gathering:  # another loop that gathers may have been stopped
                self._gathering.add(loop)
                loop.call_soon(self._queue_gathered)

    def _queue_gathered(self) -> None:
        """Queue the batches that were gathered, and wake the worker if nobody leads."""
        with self._lock:
            self._gathering.clear()
            gathered, self._gathered = self._gathered, []
            self._queued.extend(gathered)
            if self._leader is None and self._queued and self._worker is not None:
                self._leader = self._worker
                self._worker.wake_queue.put(True)

    def commit_all(self) -> None:
        """Commit group after group, until nothing is queued. For the worker, as the leader."""
        while True:
            with self._lock:
                if not self._queued:
                    self._leader = None
                    return
            try:
                self._take_group()
                self._commit_group()
            except BaseException as error:  # noqa: BLE001 - the outcome of all; nobody else would report it
                answer = UnavailableError(
                    f"the commit failed: {error!r}", where=self._where, hint="Open the store again"
                )
                self._outcomes = [answer] * len(self._group)
            self._deliver_outcomes()

    def _take_group(self) -> None:
        with self._lock:
            self._group, self._outcomes = self._next_group(), []
            for _ in self._group:
                self._queued.popleft()

    def _commit_group(self) -> None:
        group = self._group
        self.sizes.add(len(group))  # before the flush, after which the processor's caches are cold
        try:
            self._commit([pending.batch for pending in group], self._outcomes)
        except Exception as error:  # noqa: BLE001 - the outcome of all
            self._outcomes = [error if pending is group[0] else copy_error(error) for pending in group]

    def _next_group(self) -> list[PendingBatch]:
        """Return the first batches of the queue, up to the size of a group."""
        group: list[PendingBatch] = []
        size = 0
        for pending in self._queued:
            size += body_bytes(pending.batch)
            if group and (size > _MAX_BYTES or len(group) == _MAX_BATCHES):
                break
            group.append(pending)
        return group

    def _deliver_outcomes(self) -> None:
        """Deliver the outcomes to the group. May be repeated."""
        loops: dict[asyncio.AbstractEventLoop, list[PendingBatch]] = {}
        for pending, outcome in zip(self._group, self._outcomes, strict=True):
            pending.outcome = outcome
            pending.done = True
            if pending.loop is not None:
                loops.setdefault(pending.loop, []).append(pending)
            elif pending.signal is not None and pending.signal.locked():
                pending.signal.release()
        for loop, batches in loops.items():
            try:
                loop.call_soon_threadsafe(_resolve_futures, batches)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                # The loop ended, and the waiting tasks with it.
        self._group = ()

    def _release(self, pending: PendingBatch) -> None:
        """Give up the lead, and remove a batch that was not started. May be interrupted, and is then repeated."""
        if self._leader is pending and self._group:
            if len(self._outcomes) == len(self._group):
                self._deliver_outcomes()
            else:
                # Interrupted before the group was committed: the others are queued again.
                with self._lock:
                    back = deque(other for other in self._group if other is not pending and other not in self._queued)
                    back.extend(self._queued)
                    self._queued, self._group = back, ()
        with self._lock:
            if not pending.done and pending in self._queued:
                self._queued.remove(pending)
            if self._leader is pending:
                self._pass_lead()

    def _pass_lead(self) -> None:
        """Pass the lead to the first in the queue. Called under the lock: nothing comes between naming and waking."""
        if not self._queued:
            self._leader = None
        elif (signal := self._queued[0].signal) is not None:
            self._leader = self._queued[0]
            signal.release()
        elif self._worker is not None:
            self._leader = self._worker
            self._worker.wake_queue.put(True)


class _Worker:
    """The thread that commits batches of asyncio tasks. It does not keep its queue alive."""

    def __init__(self, queue: CommitQueue) -> None:
        self.wake_queue: _WakeQueue = SimpleQueue()
        wake_queue = self.wake_queue
        reference = weakref.ref(queue, lambda _: wake_queue.put(False))
        self._thread = WorkerThread("holdfast-commit", _run_worker, reference, wake_queue)

    def stop(self) -> None:
        self.wake_queue.put(False)
        self._thread.join()


def _run_worker(reference: weakref.ref[CommitQueue], wake_queue: _WakeQueue) -> None:
    while wake_queue.get():
        queue = reference()
        if queue is None:
            return
        queue.commit_all()
        del queue


def _resolve_futures(batches: list[PendingBatch]) -> None:
    for pending in batches:
        pending.deliver()


_WRITES = (Create, Ensure, Put)


def body_bytes(batch: Batch) -> int:
    """Return the size of the bodies in a batch."""
    return sum([len(change.row.body) for change in batch if isinstance(change, _WRITES)])


def copy_error(error: Exception) -> Exception:
    """Copy an error for another caller, so that two threads do not write into one traceback."""
    if not isinstance(error, HoldfastError):
        return error
    copy = type(error)(error.what, where=error.where, hint=error.hint, code=error.code)
    copy.__cause__ = error.__cause__
    return copy
