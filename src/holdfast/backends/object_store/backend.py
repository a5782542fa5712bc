"""A store of shards, on any storage of objects."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.backends.async_backend import PACE, LoopBackend, LoopTask, ServerInterrupted
from holdfast.backends.distribution import Distribution
from holdfast.backends.interface import Batch, Capabilities, Changes, Query, Row, closed_error
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.change_finder import ChangeFinder, parse_since
from holdfast.backends.object_store.formats import check_values
from holdfast.backends.object_store.garbage_collection import GarbageCollector
from holdfast.backends.object_store.object_storage import ObjectStorage, RetryingStorage, deadline_in
from holdfast.backends.object_store.query import QueryRunner
from holdfast.backends.object_store.rebuild import RebuiltShard, ShardRebuild
from holdfast.backends.object_store.salvage import FIRST_ENTRY, SalvagedShard
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.transactions import ShardTransactions, find_shards
from holdfast.backends.object_store.writer import ShardQueues
from holdfast.backends.runtime.group_queue import batch_weight
from holdfast.backends.runtime.loop_thread import notice_error
from holdfast.errors import InvalidError

T = TypeVar("T")
MAX_BODY = 64 << 20
MAX_BATCH = 256 << 20


class _OpenStore:
    """The parts of a store that is open, in its loop."""

    def __init__(self, storage: ObjectStorage, where: str, grace: float, timeout: float, sizes: Distribution) -> None:
        self.storage = RetryingStorage(storage)
        self.log = ShardLog(self.storage, where, grace)
        self.queues = ShardQueues(self.log, timeout, sizes)
        self.queries = QueryRunner(self.log)
        self.changes = ChangeFinder(self.log, self.queries)
        self.transactions = ShardTransactions(self.log, self.queues, self.queries)
        self.garbage_collector = GarbageCollector(self.log, self.queues, timeout)
        self.rebuild = ShardRebuild(self.log, self.garbage_collector, timeout)
        self.pending: set[asyncio.Future[int | None]] = set()

    async def close(self) -> None:
        """Wait for batches in progress, and close the storage."""
        while self.pending:
            await asyncio.wait(self.pending)
        await self.queues.drain()
        await self.storage.close()


class ObjectStoreBackend(LoopBackend):
    """A store on a storage of objects, which a subclass opens."""

    def __init__(self, url: str, timeout: float, grace: float, connect_timeout: float = 0.0) -> None:
        super().__init__(url, timeout, connect_timeout)
        self._grace = grace
        self._open: _OpenStore | None = None

    @abstractmethod
    def _open_storage(self) -> ObjectStorage:
        """Open the storage. Called in the loop."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, shared=True, max_body=MAX_BODY, max_batch=MAX_BATCH)

    async def apply(self, batch: Batch) -> int | None:
        self._check_size(batch)
        task: LoopTask[int | None] = LoopTask(lambda future: self._schedule(lambda: self._apply(batch), future))
        return await task

    async def changes(self, since: str | None = None) -> Changes:
        known = parse_since(since, self.url)
        return await self._run_in_loop(lambda: self._find_changes(known))

    async def size(self) -> int:
        return await self._with_collector(GarbageCollector.size)

    async def check(self) -> list[str]:
        return await self._with_collector(GarbageCollector.check)

    async def tidy(self) -> None:
        await self._with_collector(GarbageCollector.tidy)

    async def _with_collector(self, work: Callable[[GarbageCollector], Coroutine[Any, Any, T]]) -> T:
        return await self._run_once(lambda: work(self._opened().garbage_collector))

    async def purge(self) -> list[str]:
        """Rewrite objects with deleted rows. Those that they replace are deleted after the grace period: until then,
        other processes may be reading them."""
        await self.tidy()
        later = f"replaced objects of {self.url}, which `tidy` deletes after {self._grace:g} seconds"
        return [later, f"versions, logs and backups of the bucket or disk of {self.url}"]

    async def damaged_shards(self, tenant: str) -> list[str]:
        """List the folders of the shards of a tenant with a damaged or missing object."""
        return await self._run_once(lambda: self._opened().rebuild.damaged_shards(tenant))

    async def shards(self, tenant: str) -> list[str]:
        """List the folders of all shards of a tenant."""
        return await self._run_once(lambda: self._opened().rebuild.shards(tenant))

    async def salvage(self, shard: str) -> SalvagedShard:
        """Read what is intact of a damaged shard."""
        return await self._run_once(lambda: self._opened().rebuild.salvage(shard))

    async def rebuild(self, shard: str, stamp: str) -> RebuiltShard:
        """Rebuild a damaged shard from what is intact. Its objects are copied first."""
        return await self._run_once(lambda: self._opened().rebuild.rebuild(shard, stamp))

    async def rebuild_line(self, tenant: str, line: str) -> bool:
        shard = object_names.folder((tenant, line))
        lost = (await self.salvage(shard)).lost
        if set(lost) - {FIRST_ENTRY}:
            return False  # it may have been a hold: that is never in the entry that creates a line
        await self.rebuild(shard, "")
        return True

    async def status(self) -> dict[str, int | float | str]:
        counts = await self._run_in_loop(self._request_counts)
        return {f"requests_{kind}": count for kind, count in sorted(counts.items())}

    async def _find_changes(self, known: dict[bytes, bytes] | None) -> Changes:
        with deadline_in(self._timeout):
            return await self._opened().changes.find(known)

    async def _request_counts(self) -> dict[str, int]:
        return dict(self._opened().storage.request_counts)

    async def _connect(self) -> _OpenStore:
        opened = _OpenStore(self._open_storage(), self.url, self._grace, self._timeout, self._group_sizes)
        opened.storage.retry_unreachable = False  # the opening itself is retried, if at all
        with deadline_in(self._timeout):
            await opened.log.start()
        opened.storage.retry_unreachable = True
        self._open = opened
        return opened

    async def _disconnect(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened.close()

    async def _answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        with deadline_in(self._timeout):
            return await self._opened().queries.run(queries)

    async def _apply(self, batch: Batch) -> int | None:
        opened = self._opened()
        if not batch:
            earlier = set(opened.pending)
            if earlier:
                await asyncio.wait(earlier)
            return None
        task = asyncio.ensure_future(self._apply_to_shards(opened, batch))
        opened.pending.add(task)
        task.add_done_callback(opened.pending.discard)
        task.add_done_callback(notice_error)
        # It may wait for other batches, each of which has as much time.
        done, _ = await asyncio.wait([task], timeout=self._timeout + batch_weight(batch) / PACE)
        if not done:
            raise self._give_up_error("no answer was received", sent=True)
        return task.result()

    async def _apply_to_shards(self, opened: _OpenStore, batch: Batch) -> int | None:
        try:
            check_values(batch)
        except (TypeError, ValueError, OverflowError) as error:
            # Checked alone: in an entry with others, it would make them fail too.
            raise InvalidError(f"a value does not fit into its column: {error}", where=self.url) from error
        names, wide = find_shards(batch)
        try:
            with deadline_in(self._timeout):
                if len(names) == 1 and not wide:
                    return await opened.queues.apply(names.pop(), batch)
                return await opened.transactions.apply(batch, names, wide)
        except ServerInterrupted as interrupted:
            raise self._give_up_error(str(interrupted), interrupted.sent) from interrupted

    def _opened(self) -> _OpenStore:
        if self._open is None:
            raise closed_error(self.url)
        return self._open
