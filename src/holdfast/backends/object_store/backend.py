"""The store that shards make up, whatever the storage is."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.backends.async_backend import LoopBackend, LoopTask, ServerInterrupted
from holdfast.backends.interface import Batch, Capabilities, Query, Row
from holdfast.backends.object_store.formats import check_values
from holdfast.backends.object_store.garbage_collection import GarbageCollector
from holdfast.backends.object_store.object_storage import ObjectStorage, RetryingStorage, within
from holdfast.backends.object_store.query import QueryRunner
from holdfast.backends.object_store.rebuild import RebuiltShard, ShardRebuild
from holdfast.backends.object_store.salvage import SalvagedShard
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.transactions import ShardTransactions, shards_of
from holdfast.backends.object_store.writer import ShardQueues
from holdfast.errors import InvalidError, UnavailableError

T = TypeVar("T")

MAX_BODY = 64 << 20
MAX_BATCH = 256 << 20


class _Open:
    """What works in the loop, from connecting until closing."""

    def __init__(self, blobs: ObjectStorage, where: str, grace: float, timeout: float) -> None:
        self.blobs = RetryingStorage(blobs)
        self.core = ShardLog(self.blobs, where, grace)
        self.lanes = ShardQueues(self.core, timeout)
        self.answers = QueryRunner(self.core)
        self.transactions = ShardTransactions(self.core, self.lanes, self.answers)
        self.tidying = GarbageCollector(self.core, self.lanes, timeout)
        self.renewing = ShardRebuild(self.core, self.tidying, timeout)
        self.under_way: set[asyncio.Future[int | None]] = set()


class ObjectStoreBackend(LoopBackend):
    """A store on a storage of objects. A subclass gives the storage."""

    def __init__(self, url: str, timeout: float, grace: float) -> None:
        super().__init__(url, timeout)
        self._grace = grace
        self._open: _Open | None = None

    @abstractmethod
    def _blobs(self) -> ObjectStorage:
        """The storage, opened in the loop."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, shared=True, max_body=MAX_BODY, max_batch=MAX_BATCH)

    async def apply(self, batch: Batch) -> int | None:
        self._check_size(batch)
        asked: LoopTask[int | None] = LoopTask(lambda future: self._schedule(lambda: self._apply(batch), future))
        return await asked

    async def size(self) -> int:
        return await self._took_long(self._size)

    async def check(self) -> list[str]:
        return await self._took_long(self._check)

    async def tidy(self) -> None:
        await self._took_long(self._tidy)

    async def damaged(self, tenant: str) -> list[str]:
        """The shards of a tenant of which an object is damaged or missing, by their folders."""
        return await self._took_long(lambda: self._opened().renewing.damaged(tenant))

    async def shards(self, tenant: str) -> list[str]:
        """All shards of a tenant, by their folders."""
        return await self._took_long(lambda: self._opened().renewing.shards(tenant))

    async def remains(self, shard: str) -> SalvagedShard:
        """What can be read of a damaged shard."""
        return await self._took_long(lambda: self._opened().renewing.rehearse(shard))

    async def renew(self, shard: str, stamp: str) -> RebuiltShard:
        """Begin a damaged shard anew with what can be read of it. Its objects are kept."""
        return await self._took_long(lambda: self._opened().renewing.renew(shard, stamp))

    async def status(self) -> dict[str, int | float | str]:
        asked = await self._run_in_loop(self._requests)
        return {f"requests_{kind}": count for kind, count in sorted(asked.items())}

    async def _took_long(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What goes through the whole store returns: it may take its time, but not with one thing."""

        async def answered() -> T:
            try:
                return await question()
            except ServerInterrupted as interrupted:
                raise self._give_up_error(str(interrupted), sent=False) from interrupted

        asked: LoopTask[T] = LoopTask(lambda future: self._schedule(answered, future))
        return await asked

    async def _size(self) -> int:
        return await self._opened().tidying.size()

    async def _check(self) -> list[str]:
        return await self._opened().tidying.check()

    async def _tidy(self) -> None:
        await self._opened().tidying.tidy()

    async def _requests(self) -> dict[str, int]:
        return dict(self._opened().blobs.asked)

    async def _connect(self) -> object:
        opened = _Open(self._blobs(), self.url, self._grace, self._timeout)
        with within(self._timeout):
            await opened.core.start()
        self._open = opened
        return opened

    async def _disconnect(self) -> None:
        opened, self._open = self._open, None
        if opened is None:
            return
        while opened.under_way:
            await asyncio.wait(opened.under_way)
        await opened.lanes.drain()
        await opened.blobs.close()

    async def _answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        with within(self._timeout):
            return await self._opened().answers.answer(queries)

    async def _apply(self, batch: Batch) -> int | None:
        opened = self._opened()
        if not batch:
            earlier = set(opened.under_way)
            if earlier:
                await asyncio.wait(earlier)
            return None
        task = asyncio.ensure_future(self._made(opened, batch))
        opened.under_way.add(task)
        try:
            return await task
        finally:
            opened.under_way.discard(task)

    async def _made(self, opened: _Open, batch: Batch) -> int | None:
        try:
            check_values(batch)
        except (TypeError, ValueError, OverflowError) as error:
            # By itself: in an entry with others, it would keep these from being made.
            raise InvalidError(f"a value does not fit into its column: {error}", where=self.url) from error
        names, wide = shards_of(batch)
        try:
            with within(self._timeout):
                if len(names) == 1 and not wide:
                    return await opened.lanes.apply(names.pop(), batch)
                return await opened.transactions.apply(batch, names, wide)
        except ServerInterrupted as interrupted:
            raise self._give_up_error(str(interrupted), interrupted.sent) from interrupted

    def _opened(self) -> _Open:
        if self._open is None:
            raise UnavailableError("the store is closed", where=self.url, hint="Open it again", code="closed")
        return self._open
