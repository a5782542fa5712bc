"""Batches of many callers, committed in groups: one flush for all that wait.

There is no thread that writes. A sync caller that finds nobody at it becomes the leader: it commits everything that is
queued as one group, its own batch among it, and passes the lead on if more has come meanwhile. Batches of asyncio
tasks are led by one worker thread, which the first of them starts.

A signal may interrupt a leader or a waiter anywhere. So whatever has to happen is written down in the queue before it
is begun, and `_settle` finishes it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.backends.interface import Batch, Create, Ensure, Put, Suspension
from holdfast.errors import HoldfastError, UnavailableError

if TYPE_CHECKING:
    import asyncio

Outcome: TypeAlias = int | Exception | None
"""What became of a batch: made, or the place of the change that failed, or an error of this batch alone."""

Commit: TypeAlias = Callable[[list[Batch], list[Outcome]], None]
"""Commits a group, and fills in one outcome for each batch.

Whether it returns or is interrupted, there are as many outcomes as batches if the group was made, and fewer if it was
not. An `Exception` that it raises is the answer to all.
"""

_MAX_BATCHES = 1_000
_MAX_BYTES = 8 << 20

_Bell: TypeAlias = "SimpleQueue[bool]"


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
        self._queue.finish(self)
        return self.result()

    def watch(self) -> asyncio.Future[int | None]:
        """Cancelling what is returned takes nothing back: the batch is still made, or fails, as a whole."""
        import asyncio

        self.loop = asyncio.get_running_loop()
        self.future = self.loop.create_future()
        self._queue.entrust(self)
        return self.future

    def result(self) -> int | None:
        """The place that failed, or None; or the error."""
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
    """Batches in the order they came. `where` names the store in errors."""

    def __init__(self, commit: Commit, where: str = "") -> None:
        self._commit: Final = commit
        self._where: Final = where
        self._closed = False
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget what was queued and who led: in a forked child, those threads are not there."""
        self._lock = threading.Lock()
        self._queued: deque[PendingBatch] = deque()
        self._leader: _Leader | None = None
        self._group: Sequence[PendingBatch] = ()
        self._outcomes: list[Outcome] = []
        self._worker: _Worker | None = None
        self._committing: int | None = None
        """The thread that is in the middle of a commit."""

    def submit(self, batch: Batch) -> PendingBatch:
        """A ticket for a batch, to be awaited."""
        return PendingBatch(self, batch)

    def drain(self) -> None:
        """Wait until everything that is queued has been answered."""
        self.finish(PendingBatch(self, ()), even_closed=True)

    def close(self) -> None:
        """Take nothing more; wait for what is queued; end the worker. Again is no failure."""
        with self._lock:
            self._closed = True
        self.drain()
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def finish(self, ticket: PendingBatch, even_closed: bool = False) -> None:
        """Queue a ticket, and return when it is answered: lead if nobody does."""
        if self._committing == threading.get_ident():
            raise UnavailableError(
                "this thread is in the middle of saving, and was interrupted to save something else",
                where=self._where,
                hint="In a signal handler only note that it came, and save afterwards",
            )
        interrupt: BaseException | None = None
        try:
            with self._lock:
                if self._closed and not even_closed:
                    raise self._refusal()
                if self._leader is None:  # and so nothing is queued
                    self._leader = ticket
                    self._group, self._outcomes = (ticket,), []
                else:
                    ticket.signal = threading.Lock()
                    ticket.signal.acquire()
                    self._queued.append(ticket)
            if ticket.signal is None:
                # The usual case, and little to do after the flush: by then the processor has forgotten this code.
                self._commit_group()
                ticket.outcome, ticket.done, self._group = self._outcomes[0], True, ()
                with self._lock:
                    if not self._queued:
                        self._leader = None
                        return
            else:
                ticket.signal.acquire()  # until it is answered, or is to lead
                while not ticket.done:
                    self._take_group()
                    self._commit_group()
                    self._answer()
        finally:
            # Here and not in a function: a signal could prevent the call.
            settled = ticket.done and self._leader is not ticket
            while not settled:
                try:
                    self._settle(ticket)
                    settled = True
                except BaseException as error:  # noqa: BLE001 - raised below
                    interrupt = error
            if interrupt is not None:
                raise interrupt

    def entrust(self, ticket: PendingBatch) -> None:
        """Queue a ticket for the worker."""
        with self._lock:
            if self._closed:
                raise self._refusal()
            if self._worker is None:
                self._worker = _Worker(self)
            self._queued.append(ticket)
            if self._leader is None:
                self._leader = self._worker
                self._worker.bell.put(True)

    def lead_to_the_end(self) -> None:
        """Commit group after group, until nothing is queued. For the worker, when it has the lead."""
        while True:
            with self._lock:
                if not self._queued:
                    self._leader = None
                    return
            try:
                self._take_group()
                self._commit_group()
            except BaseException as error:  # noqa: BLE001 - goes to all who wait; nobody else would hear of it
                answer = UnavailableError(
                    f"the commit broke off: {error!r}", where=self._where, hint="Open the store anew"
                )
                self._outcomes = [answer] * len(self._group)
            self._answer()

    def _refusal(self) -> UnavailableError:
        return UnavailableError("the store is closed", where=self._where, hint="Open it again", code="closed")

    def _take_group(self) -> None:
        with self._lock:
            self._group, self._outcomes = self._next_group(), []
            for _ in self._group:
                self._queued.popleft()

    def _commit_group(self) -> None:
        group = self._group
        self._committing = threading.get_ident()
        try:
            self._commit([ticket.batch for ticket in group], self._outcomes)
        except Exception as error:  # noqa: BLE001 - the answer to all of them
            self._outcomes = [error if ticket is group[0] else again(error) for ticket in group]
        finally:
            self._committing = None

    def _next_group(self) -> list[PendingBatch]:
        """The tickets at the head of the queue that are committed together."""
        group: list[PendingBatch] = []
        size = 0
        for ticket in self._queued:
            size += size_of(ticket.batch)
            if group and (size > _MAX_BYTES or len(group) == _MAX_BATCHES):
                break
            group.append(ticket)
        return group

    def _answer(self) -> None:
        """Tell the group. Telling somebody twice does no harm."""
        loops: dict[asyncio.AbstractEventLoop, list[PendingBatch]] = {}
        for ticket, outcome in zip(self._group, self._outcomes, strict=True):
            ticket.outcome = outcome
            ticket.done = True
            if ticket.loop is not None:
                loops.setdefault(ticket.loop, []).append(ticket)
            elif ticket.signal is not None and ticket.signal.locked():
                ticket.signal.release()
        for loop, tickets in loops.items():
            try:
                loop.call_soon_threadsafe(_deliver, tickets)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                # The loop ended, and with it whoever awaited.
        self._group = ()

    def _settle(self, ticket: PendingBatch) -> None:
        """Let go of the lead, and of a batch that was not begun. May be interrupted, and is then done again."""
        if self._leader is ticket and self._group:
            if len(self._outcomes) == len(self._group):
                self._answer()
            else:
                # Interrupted, and nothing of the group was made: the others still want it.
                with self._lock:
                    back = deque(other for other in self._group if other is not ticket and other not in self._queued)
                    back.extend(self._queued)
                    self._queued, self._group = back, ()
        with self._lock:
            if not ticket.done and ticket in self._queued:
                self._queued.remove(ticket)
            if self._leader is ticket:
                self._hand_over()

    def _hand_over(self) -> None:
        """Give the lead to whoever is first in the queue. Nothing can interrupt between naming and waking him."""
        if not self._queued:
            self._leader = None
        elif (signal := self._queued[0].signal) is not None:
            self._leader = self._queued[0]
            signal.release()
        elif self._worker is not None:
            self._leader = self._worker
            self._worker.bell.put(True)


class _Worker:
    """The thread that leads for asyncio tasks. Does not keep its queue alive."""

    def __init__(self, queue: CommitQueue) -> None:
        self.bell: _Bell = SimpleQueue()
        bell = self.bell
        reference = weakref.ref(queue, lambda _: bell.put(False))
        self._thread = threading.Thread(target=_work, args=(reference, bell), name="holdfast-commit", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.bell.put(False)
        self._thread.join()


def _work(reference: weakref.ref[CommitQueue], bell: _Bell) -> None:
    while bell.get():
        queue = reference()
        if queue is None:
            return
        queue.lead_to_the_end()
        del queue


def _deliver(tickets: list[PendingBatch]) -> None:
    for ticket in tickets:
        ticket.deliver()


def size_of(batch: Batch) -> int:
    """The bytes of the bodies in a batch."""
    return sum(len(change.row.body) for change in batch if isinstance(change, Create | Ensure | Put))


def again(error: Exception) -> Exception:
    """The same error for another caller, so that two threads do not write into one traceback."""
    if not isinstance(error, HoldfastError):
        return error
    copy = type(error)(error.what, where=error.where, hint=error.hint, code=error.code)
    copy.__cause__ = error.__cause__
    return copy
