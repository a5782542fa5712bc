"""Group commit in an event loop: batches that come while others are being committed wait, and are committed together.

`CommitQueue` is for stores that commit in a thread, without a loop; the rules for groups are the same.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from holdfast.backends.distribution import BATCHES, Distribution
from holdfast.backends.interface import Batch, key_of
from holdfast.backends.runtime.group_commit import Outcome, body_bytes, copy_error
from holdfast.backends.runtime.loop_thread import notice_error
from holdfast.backends.tables import Key
from holdfast.errors import HoldfastError, UnavailableError

_MAX_BATCHES = 256
MAX_BYTES = 4 << 20
"""The size up to which batches are committed together."""

_ROW_BYTES = 2 << 10
"""The assumed size of the columns of a row. Most have fewer bytes."""

CommitGroup: TypeAlias = Callable[[list[Batch], int, float], Coroutine[Any, Any, Sequence[Outcome]]]
"""Commits a group in a slot, by a deadline of the loop's clock, and returns the outcome of each batch."""

GiveUp: TypeAlias = Callable[[str, bool], Exception]
"""Makes the error for a batch whose time is over, of the reason and whether it may have been committed."""


class Waiter(Protocol):
    """Waits for the outcome of a batch, such as a future."""

    def done(self) -> bool: ...
    def set_result(self, result: int | None, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


class QueuedBatch(NamedTuple):
    """A batch, its approximate size, who waits for its outcome, and the time by which they have an answer."""

    batch: Batch
    weight: int
    future: Waiter
    deadline: float


class GroupQueue:
    """Commits batches in groups, in the order of submission, in as many slots at a time as there are.

    With `give_up`, callers get that error when their time is over. `max_lines` limits the lines that the batches of a
    group touch together. `after` is awaited when the batches of a group have outcomes, before the next group. `sizes`
    counts how many batches the groups have.
    """

    def __init__(
        self,
        commit: CommitGroup,
        slots: int = 1,
        *,
        give_up: GiveUp | None = None,
        max_lines: int | None = None,
        after: Callable[[], Awaitable[None]] | None = None,
        sizes: Distribution | None = None,
    ) -> None:
        self._commit_group = commit
        self._give_up = give_up
        self._max_lines = max_lines
        self._after = after
        self._sizes = Distribution(BATCHES) if sizes is None else sizes
        self._free = deque(range(slots))
        self._queued: deque[QueuedBatch] = deque()
        self._open: dict[asyncio.Future[None], list[QueuedBatch]] = {}
        """The groups in progress, by the task that gives their batches outcomes."""
        self._expiry: asyncio.TimerHandle | None = None
        self._is_starting = False

    @property
    def is_idle(self) -> bool:
        """Whether no batch waits or is being committed."""
        return not self._open and not self._queued

    def add(self, queued: QueuedBatch) -> None:
        """Commit a batch, now or with others. An empty one is answered after all before it."""
        if not queued.batch and self.is_idle:
            queued.future.set_result(None)
            return
        self._queued.append(queued)
        if self._give_up is not None and (self._expiry is None or queued.deadline < self._expiry.when()):
            self._expire_at(queued.deadline)
        if self._free and not self._is_starting:
            self._is_starting = True
            asyncio.get_running_loop().call_soon(self._start)  # with all that are added in this turn of the loop

    async def drain(self) -> None:
        """Wait until all batches have outcomes."""
        while not self.is_idle:
            await (asyncio.wait(self._open) if self._open else asyncio.sleep(0))

    def _expire_at(self, time: float) -> None:
        expire = weakref.WeakMethod(self._expire)  # the loop keeps no store alive that was dropped

        def call() -> None:
            method = expire()
            if method is not None:
                method()

        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_at(time, call)

    def _expire(self) -> None:
        """Answer callers whose time is over. A batch that waits for others is not sent; the others may have been.

        The latest batch of a group has the deadline of the group, and gets its outcome.
        """
        give_up = self._give_up
        if give_up is None:
            return
        loop = asyncio.get_running_loop()
        left: list[float] = []
        for sent, batches in ((False, list(self._queued)), *((True, group) for group in self._open.values())):
            last = max((queued.deadline for queued in batches), default=0) if sent else math.inf
            for queued in batches:
                if queued.future.done() or queued.deadline >= last:
                    continue
                if queued.deadline > loop.time():
                    left.append(queued.deadline)
                    continue
                why = "no answer was received" if sent else "no answer was received for the changes before this one"
                queued.future.set_exception(give_up(why, sent))
                if not sent:
                    self._queued.remove(queued)
        self._expiry = None
        if left:
            self._expire_at(min(left))

    def _start(self) -> None:
        self._is_starting = False
        while self._free and self._queued:
            group = self._next_group()
            if not group:
                return
            task = asyncio.get_running_loop().create_task(self._commit(group, self._free.popleft()))
            self._open[task] = group
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        del self._open[task]
        notice_error(task)
        self._start()

    def _next_group(self) -> list[QueuedBatch]:
        """Return the next group; none if the first batch has to wait for those in progress."""
        group: list[QueuedBatch] = []
        size = 0
        lines: set[Key] = set()
        cut = self._max_lines is not None and len(self._queued) > 1
        while self._queued:
            queued = self._queued[0]
            if not queued.batch:
                if group or self._open:
                    break
                _set_outcome(self._queued.popleft().future, None)
                continue
            size += queued.weight
            if cut:
                lines.update(key_of(change)[:2] for change in queued.batch)
            full = size > MAX_BYTES or len(group) == _MAX_BATCHES
            if group and (full or (self._max_lines is not None and len(lines) > self._max_lines)):
                break
            group.append(self._queued.popleft())
        return group

    async def _commit(self, group: list[QueuedBatch], slot: int) -> None:
        outcomes: Sequence[Outcome]
        self._sizes.add(len(group))
        try:
            deadline = max(queued.deadline for queued in group)
            outcomes = await self._commit_group([queued.batch for queued in group], slot, deadline)
        except BaseException as error:  # noqa: BLE001 - the outcome of all
            outcomes = [error if isinstance(error, HoldfastError) else _commit_failed(error)] * len(group)
        for queued, outcome in zip(group, outcomes, strict=True):
            _set_outcome(queued.future, outcome)
        try:
            if self._after is not None:
                await self._after()
        finally:
            self._free.append(slot)


def _set_outcome(future: Waiter, outcome: Outcome) -> None:
    if future.done():
        return  # its caller could not wait any longer
    if isinstance(outcome, Exception):
        future.set_exception(copy_error(outcome))
    else:
        future.set_result(outcome)


def batch_weight(batch: Batch) -> int:
    """Return the approximate size of a batch in bytes."""
    return body_bytes(batch) + _ROW_BYTES * len(batch)


def _commit_failed(error: BaseException) -> Exception:
    failure = UnavailableError(f"the commit failed: {error!r}", hint="Open the store again, and check what was stored")
    failure.__cause__ = error
    return failure
