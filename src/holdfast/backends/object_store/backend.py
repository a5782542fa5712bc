"""A store of shards, on any storage of objects.

Finds the shards that changed, for `Backend.changes`: a listing of all objects shows where each log ends.

Nothing is written for it. A token has two digests of each shard: of its folder, and of the end of its log. If a folder
is gone, a line was deleted, and its name is not known any more: then the answer is not complete.

The parts of a batch on several shards are in their logs before the batch is committed. So a shard whose last entry
is undecided is named, and named again the next time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.backends.async_backend import PACE, LoopBackend, LoopTask, ServerInterrupted
from holdfast.backends.distribution import Distribution
from holdfast.backends.feed import Line, build_token, foreign_token, parse_token
from holdfast.backends.interface import Batch, Capabilities, Changes, Query, Row, closed_error
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import ENTRY, LogEntry, bodies_start, check_values, decode
from holdfast.backends.object_store.garbage_collection import GarbageCollector
from holdfast.backends.object_store.object_names import FOLD_POSITION
from holdfast.backends.object_store.object_storage import (
    ObjectInfo,
    ObjectStorage,
    RetryingStorage,
    deadline_in,
    gather_limited,
)
from holdfast.backends.object_store.query import QueryRunner
from holdfast.backends.object_store.salvage import FIRST_ENTRY, RebuiltShard, SalvagedShard, ShardRebuild
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.transactions import ShardTransactions, find_shards
from holdfast.backends.object_store.writer import ShardQueues
from holdfast.backends.runtime.group_queue import batch_weight
from holdfast.backends.runtime.loop_thread import notice_error
from holdfast.errors import CorruptError, InvalidError, UnsupportedError

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


_KIND = "objects"
_EMPTY = "-"
_DIGEST = 8
_UNSETTLED = bytes(_DIGEST)
"""Stands for the end of a log whose last entry is undecided."""

_FIRST_READ = 16 << 10


class _ShardEnd(NamedTuple):
    """The end of the log of a shard, as a listing shows it: the last objects of its generations."""

    last: dict[str, tuple[tuple[int, int], str]]
    first_object: ObjectInfo | None

    def digest(self) -> bytes:
        """Return a digest that changes with every entry of the log."""
        # The name of the first object does not show its generation. Two of them are not as old and as long.
        first = None if self.first_object is None else (self.first_object.size, self.first_object.modified)
        return _digest(repr((sorted(self.last.items()), first)))

    def last_entries(self) -> list[str]:
        """Return the names of the last entries, those of generations whose log was not folded since."""
        if not self.last:
            return [] if self.first_object is None else [self.first_object.name]
        return [name for order, name in self.last.values() if order[1] != FOLD_POSITION]


class ChangeFinder:
    """Finds the shards that changed since a token."""

    def __init__(self, shard_log: ShardLog, queries: QueryRunner) -> None:
        self._log = shard_log
        self._queries = queries

    async def find(self, known: dict[bytes, bytes] | None) -> Changes:
        """Return the shards that changed, by the digests of a token; without them, a token alone."""
        ends = _find_ends(await self._log.storage.list_objects(""))
        digests = {folder: (_digest(folder), end.digest()) for folder, end in ends.items()}
        before = known or {}
        changed = [folder for folder, (name, end) in digests.items() if before.get(name) != end]
        settled = await gather_limited([self._is_settled(ends[folder]) for folder in changed])
        for folder in (folder for folder, is_settled in zip(changed, settled, strict=True) if not is_settled):
            digests[folder] = digests[folder][0], _UNSETTLED
        token = _encode_token(dict(digests.values()))
        if known is None:
            return Changes([], token, complete=True)
        named = await gather_limited([self._queries.shard_names(*folder.split("/")) for folder in changed])
        lines: list[Line] = [names for names in named if names is not None]
        gone = known.keys() - {name for name, _ in digests.values()}
        return Changes(lines, token, complete=not gone and len(lines) == len(named))

    async def _is_settled(self, end: _ShardEnd) -> bool:
        """Return whether the last entry of a log is decided."""
        for name in end.last_entries():
            try:
                entry = await self._read_entry(name)
                if entry is None or (entry.transaction and await self._log.read_decision(entry.transaction) is None):
                    return False
            except (CorruptError, UnsupportedError):
                return False
        return True

    async def _read_entry(self, name: str) -> LogEntry | None:
        data = await self._log.storage.get(name, 0, _FIRST_READ)
        if data is None:
            return None
        missing = bodies_start(data, name) - len(data)
        if missing > 0:
            rest = await self._log.storage.get(name, len(data), missing)
            if rest is None:
                return None
            data += rest
        return decode(ENTRY, LogEntry, data, name)


def parse_since(since: str | None, where: str) -> dict[bytes, bytes] | None:
    """Return the digests of a token."""
    if since is None:
        return None
    (text,) = parse_token(since, _KIND, 1, where)
    try:
        data = b"" if text == _EMPTY else base64.b64decode(text, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise foreign_token(since, where) from None
    if len(data) % (2 * _DIGEST):
        raise foreign_token(since, where)
    parts = [data[at : at + _DIGEST] for at in range(0, len(data), _DIGEST)]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _encode_token(digests: dict[bytes, bytes]) -> str:
    data = b"".join(name + end for name, end in sorted(digests.items()))
    return build_token(_KIND, base64.urlsafe_b64encode(data).decode() or _EMPTY)


def _find_ends(listed: list[ObjectInfo]) -> dict[str, _ShardEnd]:
    """Return the end of the log of each shard of a listing, by folder."""
    ends: dict[str, _ShardEnd] = {}
    for info in listed:
        tenant, _, rest = info.name.partition("/")
        line, slash, _ = rest.partition("/")
        if not slash or not object_names.is_tenant(tenant) or not object_names.is_line(line):
            continue
        folder = f"{tenant}/{line}"
        end = ends.get(folder) or _ShardEnd({}, None)
        token = object_names.token_of(info.name, folder)
        if not token:
            ends[folder] = end._replace(first_object=info)
            continue
        ends[folder] = end
        generation, order = object_names.generation_of(token), object_names.order_of(info.name, folder)
        end.last[generation] = max(end.last.get(generation, (order, info.name)), (order, info.name))
    return ends


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).digest()
