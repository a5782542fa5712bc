"""Objects in memory, for tests of shards: quick, and with every answer, failure and order at the test's will."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.backends.distribution import Distribution
from holdfast.backends.interface import Batch, Query, Row
from holdfast.backends.object_store.backend import ObjectStoreBackend
from holdfast.backends.object_store.garbage_collection import GarbageCollector
from holdfast.backends.object_store.object_storage import ObjectInfo, ObjectStorage, RetryingStorage, deadline_in
from holdfast.backends.object_store.query import QueryRunner
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.transactions import ShardTransactions, find_shards
from holdfast.backends.object_store.writer import ShardQueues

PLACES: dict[str, dict[str, tuple[bytes, float]]] = {}
"""What stores opened by their URL hold."""


class InMemory(ObjectStorage):
    """Objects in a dict."""

    def __init__(self, objects: dict[str, tuple[bytes, float]] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.asked: Counter[str] = Counter()
        self.written = 0

    async def create(self, name: str, data: bytes) -> bool:
        self.asked["create"] += 1
        made = (data, time.time())
        if self.objects.setdefault(name, made) is not made:  # at once: other stores have threads of their own
            return False
        self.written += len(data)
        return True

    async def put(self, name: str, data: bytes) -> None:
        self.asked["put"] += 1
        self.written += len(data)
        self.objects[name] = (data, time.time())

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        self.asked["get"] += 1
        found = self.objects.get(name)
        if found is None:
            return None
        return found[0][start:] if length is None else found[0][start : start + length]

    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        self.asked["list"] += 1
        found = list(self.objects.copy().items())
        return [
            ObjectInfo(name, len(data), at) for name, (data, at) in found if not prefix or name.startswith(f"{prefix}/")
        ]

    async def list_folders(self, prefix: str) -> list[str]:
        self.asked["list"] += 1
        start = f"{prefix}/" if prefix else ""
        below = [name[len(start) :] for name in list(self.objects) if name.startswith(start)]
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    async def delete(self, names: Sequence[str]) -> None:
        self.asked["delete"] += len(names)
        for name in names:
            self.objects.pop(name, None)

    async def delete_temporary(self, before: float) -> None:
        """Nothing is left behind here."""

    async def close(self) -> None:
        """Nothing is held."""


class Through(ObjectStorage):
    """Passes everything on, through a function that may wait, fail, or do it and fail all the same."""

    def __init__(self, inside: ObjectStorage, way: Callable[[str, str, Callable[[], Any]], Any]) -> None:
        self._inside = inside
        self._way = way

    async def create(self, name: str, data: bytes) -> bool:
        made: bool = await self._way("create", name, lambda: self._inside.create(name, data))
        return made

    async def put(self, name: str, data: bytes) -> None:
        await self._way("put", name, lambda: self._inside.put(name, data))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        data: bytes | None = await self._way("get", name, lambda: self._inside.get(name, start, length))
        return data

    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        found: list[ObjectInfo] = await self._way("list", prefix, lambda: self._inside.list_objects(prefix))
        return found

    async def list_folders(self, prefix: str) -> list[str]:
        found: list[str] = await self._way("list", prefix, lambda: self._inside.list_folders(prefix))
        return found

    async def delete(self, names: Sequence[str]) -> None:
        await self._way("delete", "", lambda: self._inside.delete(names))

    async def delete_temporary(self, before: float) -> None:
        await self._way("list", "", lambda: self._inside.delete_temporary(before))

    async def close(self) -> None:
        await self._inside.close()


class Process:
    """What a process that has the store open works with; several of them may share the objects."""

    def __init__(
        self, blobs: ObjectStorage, grace: float = 1000.0, patience: float = 0.05, timeout: float = 60.0
    ) -> None:
        self.blobs = RetryingStorage(blobs)
        self.timeout = timeout
        self.core = ShardLog(self.blobs, "memory", grace, patience)
        self.lanes = ShardQueues(self.core, timeout, Distribution())
        self.answers = QueryRunner(self.core)
        self.transactions = ShardTransactions(self.core, self.lanes, self.answers)
        self.tidying = GarbageCollector(self.core, self.lanes, timeout)

    async def apply(self, *changes: Any) -> int | None:
        """Make a batch."""
        batch: Batch = changes
        names, wide = find_shards(batch)
        with deadline_in(self.timeout):
            if len(names) == 1 and not wide:
                return await self.lanes.apply(names.pop(), batch)
            return await self.transactions.apply(batch, names, wide)

    async def read(self, *queries: Query) -> list[list[Row]]:
        """Answer queries."""
        with deadline_in(self.timeout):
            return await self.answers.run(queries)


class Turns:
    """Lets one question to the storage be answered at a time, the next one as a number says.

    The numbers make the order: the same numbers, the same order. When they are used up, the oldest comes first.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = iter(numbers)
        self._waiting: list[asyncio.Future[None]] = []

    async def way(self, kind: str, name: str, ask: Callable[[], Any]) -> Any:
        """To be given to `Through`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn
        return await ask()

    async def run(self, *work: Any) -> list[Any]:
        """Have coroutines run to their ends."""
        tasks = [asyncio.ensure_future(each) for each in work]
        while not all(task.done() for task in tasks):
            for _ in range(30):  # until everybody waits for a turn
                await asyncio.sleep(0)
            self._waiting = [turn for turn in self._waiting if not turn.done()]
            if self._waiting:
                chosen = self._waiting.pop(next(self._numbers, 0) % len(self._waiting))
                chosen.set_result(None)
            else:
                await asyncio.sleep(0.001)  # somebody waits for time to pass
        return [task.result() for task in tasks]


class Double(ObjectStoreBackend):
    """`blobs://name`: a store on objects in this process's memory."""

    schemes = ("blobs",)

    @classmethod
    async def open(cls, url: str, **options: Any) -> Double:
        store = cls(url, 30.0, 1000.0)
        await store.start()
        return store

    def _open_storage(self) -> ObjectStorage:
        return InMemory(PLACES.setdefault(self.url, {}))
