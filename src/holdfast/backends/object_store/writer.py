"""Batches about one shard: those that come at the same time are one entry of its log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from holdfast.backends.async_backend import ServerInterrupted, extra_seconds
from holdfast.backends.interface import Batch
from holdfast.backends.object_store.entries import LogEntryDraft, drafted
from holdfast.backends.object_store.object_names import Names, folder
from holdfast.backends.object_store.object_storage import check_deadline, within
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import ShardView
from holdfast.backends.object_store.staleness import CreatedTooLate, StaleReadLimit, ViewOutdated
from holdfast.backends.runtime.group_commit import Outcome, body_bytes, copy_error
from holdfast.errors import OutcomeUnknownError

_MAX_BATCHES = 256
_MAX_BYTES = 8 << 20


class _Ticket(NamedTuple):
    batch: Batch
    future: asyncio.Future[int | None]


class ShardQueue:
    """The way to one shard. Whoever writes to it holds the lock."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.folder = folder(names)
        self.lock = asyncio.Lock()
        self.queued: deque[_Ticket] = deque()
        self.users = 0


class ShardQueues:
    """The ways to all shards that are being written."""

    def __init__(self, core: ShardLog, timeout: float) -> None:
        self._core = core
        self._timeout = timeout
        self._lanes: dict[Names, ShardQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def lane(self, names: Names) -> AsyncIterator[ShardQueue]:
        """A lane, for as long as it is needed."""
        lane = self._lanes.get(names)
        if lane is None:
            lane = self._lanes[names] = ShardQueue(names)
        lane.users += 1
        try:
            yield lane
        finally:
            lane.users -= 1
            if not lane.users:
                del self._lanes[names]

    async def apply(self, names: Names, batch: Batch) -> int | None:
        """Make a batch about one shard."""
        async with self.lane(names) as lane:
            future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
            lane.queued.append(_Ticket(batch, future))
            if len(lane.queued) == 1:
                task = asyncio.create_task(self._work(lane))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            return await future

    async def drain(self) -> None:
        """Wait until what was begun is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _work(self, lane: ShardQueue) -> None:
        """Make what is queued, group by group."""
        lane.users += 1
        try:
            while lane.queued:
                async with lane.lock:
                    await self._group(lane)
        finally:
            lane.users -= 1
            if not lane.users:
                self._lanes.pop(lane.names, None)

    async def _group(self, lane: ShardQueue) -> None:
        group = _next_group(lane.queued)
        outcomes: Sequence[Outcome]
        batches = [ticket.batch for ticket in group]
        with within(self._timeout + extra_seconds(batches)):
            try:
                outcomes = await self._commit(lane, batches)
            except Exception as error:  # noqa: BLE001 - the answer to all of them
                outcomes = [error] + [copy_error(error) for _ in group[1:]]
            for ticket, outcome in zip(group, outcomes, strict=True):
                lane.queued.popleft()
                if isinstance(outcome, Exception):
                    ticket.future.set_exception(outcome)
                else:
                    ticket.future.set_result(outcome)
            await self._fold_early(lane)

    async def _fold_early(self, lane: ShardQueue) -> None:
        """Fold a full epoch while nobody waits for it."""
        view = self._core.known(lane.folder)
        if view is None or not view.full or view.pending is not None:
            return
        try:
            await self._core.fold(view)
        except Exception:  # noqa: BLE001 - whoever writes next has to fold, and is told if it fails again
            self._core.forget(view)

    async def _commit(self, lane: ShardQueue, batches: list[Batch]) -> list[int | None]:
        core = self._core
        view = core.known(lane.folder) or await core.fresh(lane.folder, lane.names)
        patience = StaleReadLimit()
        while True:
            check_deadline()
            try:
                await core.clear(view)
                outcomes, draft = drafted(view, batches)
                if await (self.append(view, draft) if draft else self._still(view)):
                    return outcomes
                unborn = not view.token
                await core.catch_up(view)
                if unborn and not view.token:
                    await asyncio.sleep(0.02)  # a life before is being removed
            except ViewOutdated as stale:
                patience.bear(stale)
                core.forget(view)
                view = await core.fresh(lane.folder, lane.names)

    async def append(self, view: ShardView, draft: LogEntryDraft) -> bool:
        """Add an entry to a shard. False where that is not as the view says any more. For one who holds the lock."""
        try:
            return await self._core.append(view, draft)
        except CreatedTooLate as late:
            # It was created, but perhaps under a name that had been freed. Is it part of the shard?
            self._core.forget(view)
            try:
                now = await self._core.fresh(view.folder, view.names)
                counts = await self._core.counts(now, late.name, draft.entry)
            except ServerInterrupted as interrupted:
                raise ServerInterrupted(str(interrupted), sent=True) from interrupted
            if counts:
                return True
            if counts is not None:
                raise ViewOutdated from late
            raise OutcomeUnknownError(
                "this process was paused for so long that it cannot be told whether a batch was made",
                where=self._core.where,
                hint="Look whether it was before you do it again; saving again under the same id is always safe",
            ) from late

    async def _still(self, view: ShardView) -> bool:
        """Whether a shard is as the view says."""
        version = view.version
        await self._core.catch_up(view)
        return view.version == version and view.pending is None


def _next_group(queued: deque[_Ticket]) -> list[_Ticket]:
    group: list[_Ticket] = []
    size = 0
    for ticket in queued:
        size += body_bytes(ticket.batch)
        if group and (size > _MAX_BYTES or len(group) == _MAX_BATCHES):
            break
        group.append(ticket)
    return group
