"""Applies batches on one shard: those that come at the same time are one entry of its log."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial

from holdfast.backends.async_backend import PACE, ServerInterrupted
from holdfast.backends.distribution import Distribution
from holdfast.backends.interface import Batch
from holdfast.backends.object_store.object_names import ShardNames, folder
from holdfast.backends.object_store.object_storage import check_deadline, deadline_in
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import (
    CreatedTooLate,
    LogEntryDraft,
    RetryLimit,
    ShardView,
    ViewOutdated,
    draft_entry,
)
from holdfast.backends.object_store.turns import LOSSES
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.runtime.group_queue import GroupQueue, QueuedBatch, batch_weight
from holdfast.backends.runtime.loop_thread import notice_error
from holdfast.errors import CorruptError, OutcomeUnknownError


class ShardQueue:
    """The batches that wait for one shard. A writer has the lock."""

    def __init__(self, queues: ShardQueues, names: ShardNames) -> None:
        self.names = names
        self.folder: str = folder(names)
        self.lock: asyncio.Lock = asyncio.Lock()
        self.groups: GroupQueue = GroupQueue(
            partial(queues.commit, self), after=partial(queues.fold_early, self), sizes=queues.group_sizes
        )
        self.users = 0


class ShardQueues:
    """The queues of all shards that are being written."""

    def __init__(self, shard_log: ShardLog, timeout: float, group_sizes: Distribution) -> None:
        self._log = shard_log
        self._timeout = timeout
        self.group_sizes = group_sizes
        self._queues: dict[ShardNames, ShardQueue] = {}

    @asynccontextmanager
    async def queue(self, names: ShardNames) -> AsyncIterator[ShardQueue]:
        """The queue of a shard, for the length of the block."""
        queue = self._queues.get(names)
        if queue is None:
            queue = self._queues[names] = ShardQueue(self, names)
        with self._use(queue):
            yield queue

    @contextmanager
    def _use(self, queue: ShardQueue) -> Iterator[None]:
        queue.users += 1
        try:
            yield
        finally:
            queue.users -= 1
            if not queue.users and queue.groups.is_idle:
                del self._queues[queue.names]

    async def apply(self, names: ShardNames, batch: Batch) -> int | None:
        """Apply a batch on one shard."""
        async with self.queue(names) as queue:
            future: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
            future.add_done_callback(notice_error)
            queue.groups.add(QueuedBatch(batch, batch_weight(batch), future, math.inf))
            return await future

    async def drain(self) -> None:
        """Wait until all queues are empty."""
        while busy := [queue for queue in self._queues.values() if not queue.groups.is_idle]:
            for queue in busy:
                await queue.groups.drain()

    async def commit(self, queue: ShardQueue, batches: list[Batch], slot: int, deadline: float) -> Sequence[Outcome]:
        """Commit a group on one shard."""
        del slot, deadline  # there is one slot, and the time begins with the group
        async with queue.lock:
            with deadline_in(self._timeout + sum(map(batch_weight, batches)) / PACE):
                try:
                    return await self._commit(queue, batches)
                except Exception as error:  # noqa: BLE001 - the outcome of all of them
                    return [error] * len(batches)

    async def fold_early(self, queue: ShardQueue) -> None:
        """Fold a full epoch before the next batch comes."""
        with self._use(queue), deadline_in(self._timeout):
            async with queue.lock:
                view = self._log.cached(queue.folder)
                if view is None or not view.full or view.pending is not None:
                    return
                try:
                    await self._log.fold(view)
                except Exception:  # noqa: BLE001 - the next writer folds, and raises if it fails again
                    self._log.forget(view)

    async def _commit(self, queue: ShardQueue, batches: list[Batch]) -> list[int | None]:
        shard_log = self._log
        view = shard_log.cached(queue.folder) or await shard_log.read_shard(queue.folder, queue.names)
        retry_limit = RetryLimit()
        async with AsyncExitStack() as stack:
            for lost in itertools.count(1):
                check_deadline()
                try:
                    await shard_log.make_writable(view)
                    outcomes, draft = draft_entry(view, batches)
                    if await (self.append(view, draft) if draft else self._is_current(view)):
                        return outcomes
                    was_empty = not view.token
                    await shard_log.catch_up(view)
                    if was_empty and not view.token:
                        await asyncio.sleep(0.02)  # the previous generation is being deleted
                    elif lost == LOSSES:
                        await stack.enter_async_context(shard_log.turns.turn([queue.folder]))
                    elif lost % LOSSES == 0:
                        await shard_log.turns.renew([queue.folder])
                except ViewOutdated as outdated:
                    retry_limit.check(outdated)
                    shard_log.forget(view)
                    view = await shard_log.read_shard(queue.folder, queue.names)
                except CorruptError:
                    shard_log.forget(view)
                    raise
        raise AssertionError  # never reached

    async def append(self, view: ShardView, draft: LogEntryDraft) -> bool:
        """Append an entry to a shard. False if the shard has changed since the view. The caller has the lock."""
        try:
            return await self._log.append(view, draft)
        except CreatedTooLate as late:
            # It was created, but perhaps under a name that was free again. Is it part of the shard?
            self._log.forget(view)
            try:
                now = await self._log.read_shard(view.folder, view.names)
                counts = await self._log.is_counted(now, late.name, draft.entry)
            except ServerInterrupted as interrupted:
                raise ServerInterrupted(str(interrupted), sent=True) from interrupted
            if counts:
                return True
            if counts is not None:
                raise ViewOutdated from late
            raise OutcomeUnknownError(
                "this process was paused for so long that it is unknown whether a batch was applied",
                where=self._log.where,
                hint="Check whether it was before you repeat it; saving again under the same id is always safe",
            ) from late

    async def _is_current(self, view: ShardView) -> bool:
        """Whether a shard has not changed since the view."""
        version = view.version
        await self._log.catch_up(view)
        return view.version == version and view.pending is None
