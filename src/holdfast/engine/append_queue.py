"""A queue for the saves of each line inside a process.

The position after a step is the only lock between writers, and of n that try at a time, one succeeds: together they
would need n² attempts. So one save of a line is in progress at a time in a process. The others wait; then the first of
them leads, and stores those that wait with it as one chain. A save after a parent that the caller named does not wait:
its position is its own affair.

The queue avoids conflicts, and the conditions of the store decide. So nobody depends on a leader that makes no
progress, such as a task of an event loop that was stopped: who has waited long enough takes over the lead. And a signal
handler that interrupts the queue itself saves without it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from holdfast.backends.interface import Backend
from holdfast.backends.runtime.fair_lock import FutureWait
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.runtime.group_commit import copy_error
from holdfast.engine.append import Appender, AppendRequest
from holdfast.engine.append_batch import Chain, IdExists
from holdfast.engine.lines import LineIndex
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.step_info import StepInfo, StepInfoReader
from holdfast.errors import NotFoundError, TransientError, UnavailableError

if TYPE_CHECKING:
    import asyncio

_PATIENCE = 1.0
"""After how many seconds of one leader another save takes over."""

_MAX_CHAIN = 64
"""The most saves in a chain."""


class OuterSave:
    """A save that may wait for code of the program, which may save something itself."""

    __slots__ = ("lines", "owner", "waits")

    def __init__(self, owner: object, lines: frozenset[Line]) -> None:
        self.owner: object = owner
        """The engine that saves."""
        self.lines: frozenset[Line] = lines
        self.waits: bool = False


outer_saves: ContextVar[tuple[OuterSave, ...]] = ContextVar("holdfast_outer_saves", default=())
"""The saves that led to what is done in this context."""


class _QueuedSave(FutureWait[list[StepInfo] | None]):
    """A save that waits: for its result, or for the lead, which is None."""

    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the task that waits; None for a thread."""
    is_waiting = False
    possible_id = ""
    """The id of the step, if a leader that was interrupted may have stored it."""
    has_rival = False
    """Whether a save before it in the queue has the same id."""

    def __init__(self, queue: AppendQueue, requests: Sequence[AppendRequest]) -> None:
        super().__init__()
        self._queue = queue
        self.thread: int = threading.get_ident()
        self.requests = requests
        self.line: Line = requests[0].line

    def wait(self) -> list[StepInfo] | None:
        # A task of a loop that this thread keeps from running will not pass the lead on; nor will a save that a signal
        # handler interrupted.
        patience = 0.0 if _runs_loop() or self._queue.is_led_by(self.thread, self.line) else _PATIENCE
        seconds = patience
        while True:
            try:
                return self.future.result(seconds)
            except TimeoutError:
                seconds = self._queue.take_over(self, patience)

    def watch(self) -> asyncio.Future[list[StepInfo] | None]:
        import asyncio

        self.loop = loop = asyncio.get_running_loop()
        future = super().watch()

        def take_over() -> None:
            if not future.done():
                loop.call_later(self._queue.take_over(self, _PATIENCE), take_over)

        loop.call_later(_PATIENCE, take_over)
        return future

    def may_follow(self, leader: _QueuedSave) -> bool:
        """Whether another save may be chained before this one, and saved by the leader.

        A task leads only tasks of its own loop, which stop when it stops.
        """
        first, mine = leader.requests[0], self.requests[0]
        return (
            len(self.requests) == 1
            and mine.may_chain
            and mine.parent == first.parent
            and leader.loop in (None, self.loop)
            and not self.possible_id
        )


class _LineQueue:
    """The save of a line that is in progress, since when others wait for it, and those that wait."""

    __slots__ = ("leader", "since", "thread", "waiting")

    def __init__(self, leader: _QueuedSave | Sequence[AppendRequest]) -> None:
        self.leader = leader
        self.thread = threading.get_ident()
        """The thread of the leader."""
        self.since = 0.0
        self.waiting: deque[_QueuedSave] = deque()

    def append(self, save: _QueuedSave) -> None:
        if not self.waiting:
            self.since = time.monotonic()
        save.is_waiting = True
        self.waiting.append(save)

    def has_id(self, id: str) -> bool:
        """Return whether the save in progress or one that waits has an id."""
        saves = (self.leader, *self.waiting)
        every = (each.requests if isinstance(each, _QueuedSave) else each for each in saves)
        return any(request.id == id for requests in every for request in requests)

    def pop(self) -> _QueuedSave:
        save = self.waiting.popleft()
        save.is_waiting = False
        return save

    def remove(self, save: _QueuedSave) -> None:
        self.waiting.remove(save)
        save.is_waiting = False


class AppendQueue:
    """The saves in progress of all lines of a store."""

    def __init__(self, backend: Backend, lines: LineIndex, heads: StepInfoReader, appender: Appender) -> None:
        self._backend = backend
        self._lines = lines
        self._heads = heads
        self._appender = appender
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """Forget all saves: a forked child does not have their threads."""
        self._mutex = threading.RLock()  # a signal handler may save in the middle of anything
        self._queues: dict[Line, _LineQueue] = {}

    async def append(self, requests: Sequence[AppendRequest]) -> list[StepInfo]:
        """Append steps like `Appender.append`, when earlier saves of the first one's line are done."""
        if not requests[0].follows_latest or _is_held_here(self._mutex):
            return await self._appender.append(*requests)
        line, save = requests[0].line, None
        leader: _QueuedSave | Sequence[AppendRequest] = requests
        with self._mutex:
            queue = self._queues.get(line)
            if queue is None:
                self._queues[line] = _LineQueue(leader)
            elif not any(each.waits for each in outer_saves.get()):  # or the leader may wait for this one
                leader = save = _QueuedSave(self, requests)
                save.has_rival = any(request.id and queue.has_id(request.id) for request in requests)
                queue.append(save)
        try:
            if save is None:
                return await self._appender.append(*requests)
            heads = await save
            return await self._lead(save) if heads is None else heads
        except IdExists as exists:
            exists.rival |= save is not None and save.has_rival
            raise
        finally:
            self._leave(line, leader)

    def take_over(self, save: _QueuedSave, patience: float) -> float:
        """Give a waiting save the lead, if one leader had it for too long. Returns in how many seconds to try again."""
        with self._mutex:
            queue = self._queues.get(save.line)
            if queue is None or not save.is_waiting:
                return _PATIENCE  # it was taken into a chain
            left = queue.since + patience - time.monotonic()
            if left <= 0:
                queue.remove(save)
                self._give_lead(queue, save)
            return max(left, 0.0)

    def is_led_by(self, thread: int, line: Line) -> bool:
        """Return whether a thread makes the save of a line that is in progress."""
        with self._mutex:
            queue = self._queues.get(line)
            return queue is not None and queue.thread == thread

    def _leave(self, line: Line, leader: object) -> None:
        """Remove a save that waits, and pass on the lead if it has it."""
        with self._mutex:
            queue = self._queues.get(line)
            if queue is None:
                return
            if isinstance(leader, _QueuedSave) and leader.is_waiting:
                queue.remove(leader)
            if queue.leader is not leader:
                return
            if queue.waiting:
                self._give_lead(queue, queue.pop())
            else:
                del self._queues[line]

    @staticmethod
    def _give_lead(queue: _LineQueue, save: _QueuedSave) -> None:
        """Make a save the leader. Called under the lock."""
        queue.leader, queue.thread, queue.since = save, save.thread, time.monotonic()
        save.future.set_result(None)

    async def _lead(self, save: _QueuedSave) -> list[StepInfo]:
        if save.possible_id:
            stored = await self._find(save)
            if stored is not None:
                return [stored]
        followers = self._take_followers(save)
        if not followers:
            return await self._appender.append(*save.requests)
        chain = Chain()
        heads: list[StepInfo] = []
        failure: Exception | None = None
        try:
            requests = [each.requests[0] for each in (save, *followers)]
            heads = await self._appender.append(*requests, chain=chain)
            return heads[:1]
        except (TransientError, UnavailableError) as error:
            failure = error  # the store's, and so that of all
            raise
        finally:
            # A signal may interrupt even this, and nobody else would answer those who wait.
            interrupt: BaseException | None = None
            finished = False
            while not finished:
                try:
                    self._finish(save, followers, heads[1:], failure, chain)
                    finished = True
                except BaseException as error:  # noqa: BLE001 - raised below
                    interrupt = error
            if interrupt is not None:
                raise interrupt

    def _take_followers(self, save: _QueuedSave) -> list[_QueuedSave]:
        """Remove those from the queue that may be chained to a save that leads."""
        followers: list[_QueuedSave] = []
        if not save.may_follow(save):
            return followers
        with self._mutex:
            queue = self._queues.get(save.line)
            while queue is not None and queue.waiting and len(followers) < _MAX_CHAIN - 1:
                if not queue.waiting[0].may_follow(save):
                    break
                followers.append(queue.pop())
        return followers

    def _finish(
        self,
        save: _QueuedSave,
        followers: list[_QueuedSave],
        heads: list[StepInfo],
        failure: Exception | None,
        chain: Chain,
    ) -> None:
        """Hand out the results. The saves that were not stored wait again, before the others. May be repeated."""
        left = []
        for number, each in enumerate(followers):
            if each.future.done() or each.is_waiting:
                continue
            if number < len(heads):
                each.future.set_result([heads[number]])
            elif failure is not None:
                each.future.set_exception(copy_error(failure))
            else:
                if chain.in_flight and not heads and number + 1 < len(chain.ids):
                    each.possible_id = chain.ids[number + 1]
                left.append(each)
        with self._mutex:
            queue = self._queues.setdefault(save.line, _LineQueue(save))
            for each in reversed(left):
                each.is_waiting = True
                queue.waiting.appendleft(each)

    async def _find(self, save: _QueuedSave) -> StepInfo | None:
        """Return the step of a save whose leader was interrupted, if it was stored."""
        await self._backend.apply([])  # waits for what the leader submitted
        try:
            point: StepRef = await self._lines.find(save.line, save.possible_id)
        except NotFoundError:
            return None
        return await self._heads.head(save.line, point)


def _is_held_here(mutex: threading.RLock) -> bool:
    """Whether this thread has a lock: a signal interrupted it, whose handler is running."""
    return bool(mutex._is_owned())  # type: ignore[attr-defined]


def _runs_loop() -> bool:
    """Whether this thread runs an event loop, which stands still while it waits."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
