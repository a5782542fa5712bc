"""Deletes objects that are not needed any more, and checks all shards."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import missing_error
from holdfast.backends.object_store.object_storage import clock, deadline_in, gather_limited
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import BodyLookup, LogEntryDraft, RetryLimit, ShardView, ViewOutdated
from holdfast.backends.object_store.writer import ShardQueues
from holdfast.errors import CorruptError, UnsupportedError

_logger = logging.getLogger("holdfast.backends")

_CHECKED_BYTES = 16 << 20
_DELETION_SECONDS = 600.0
"""After so long, a process that ended a generation has deleted its first object, or never will."""
_IMMEDIATE_SECONDS = 10.0


class _GracePeriod(NamedTuple):
    now: float
    grace: float

    def is_over(self, then: float) -> bool:
        """Whether the grace period since then is over."""
        return self.now - then > self.grace


class GarbageCollector:
    """Checks and cleans up all shards."""

    def __init__(self, shard_log: ShardLog, queues: ShardQueues, timeout: float) -> None:
        self._log = shard_log
        self._queues = queues
        self._timeout = timeout

    async def size(self) -> int:
        """Return the bytes of all objects."""
        with deadline_in(self._timeout):
            return sum(info.size for info in await self._log.storage.list_objects(""))

    async def check(self) -> list[str]:
        """Read everything again, and return what is damaged or missing."""
        found: list[str] = []
        for shard in await self._shards():
            with deadline_in(self._timeout):
                try:
                    await self.check_shard(shard)
                except (CorruptError, UnsupportedError) as error:
                    found.append(str(error))
        return found

    async def tidy(self, grace: float | None = None) -> None:
        """Rewrite objects with deleted rows, and delete those that were not needed for the grace period."""
        times = _GracePeriod(time.time(), self._log.grace if grace is None else grace)
        with deadline_in(self._timeout):
            decided = await self._log.storage.list_objects(object_names.TRANSACTIONS)
        needed: set[str] = set()
        failed = False
        for shard in await self._shards():
            with deadline_in(self._timeout):
                try:
                    needed |= await self._tidy(shard, times)
                except (CorruptError, UnsupportedError) as error:
                    failed = True  # the others can still be tidied; and its decisions stay, as it may need them
                    _logger.warning("a damaged thread was not tidied: %s", error)
        with deadline_in(self._timeout):
            if not failed:
                old = [info.name for info in decided if times.is_over(info.modified)]
                await self._log.storage.delete([name for name in old if name.rpartition("/")[2] not in needed])
            turns = await self._log.storage.list_objects(object_names.TURNS)
            await self._log.storage.delete([info.name for info in turns if times.is_over(info.modified)])
            await self._log.storage.delete_temporary(times.now - max(times.grace, 60.0))

    async def _shards(self) -> list[str]:
        """List the folders of all shards."""
        storage = self._log.storage
        with deadline_in(self._timeout):
            tenants = [name for name in await storage.list_folders("") if object_names.is_tenant(name)]
            lines = await gather_limited([storage.list_folders(tenant) for tenant in tenants])
        pairs = zip(tenants, lines, strict=True)
        return [f"{tenant}/{line}" for tenant, in_tenant in pairs for line in in_tenant if object_names.is_line(line)]

    # Checking

    async def check_shard(self, shard: str) -> None:
        """Read all of a shard again. Raises `CorruptError` if something is damaged or missing."""
        retry_limit = RetryLimit()
        while True:
            shard_log = ShardLog(self._log.storage, self._log.where, self._log.grace)  # with an empty cache
            view = await shard_log.read_shard(shard)
            located = [view.locate(row) for _, row in view.all_rows()]
            try:
                for chunk in _chunks(located):
                    await shard_log.bodies.fetch(chunk)
            except ViewOutdated as outdated:
                retry_limit.check(outdated)
            else:
                return

    # Tidying

    async def _tidy(self, shard: str, times: _GracePeriod) -> set[str]:
        """Tidy one shard. Returns the transactions whose decisions are still needed."""
        view = await self._log.read_shard(shard)
        names = view.names
        async with self._queues.queue(names) as queue, queue.lock:
            retry_limit = RetryLimit()
            while True:
                try:
                    view = await self._log.read_shard(shard)
                    return await self._tidy_locked(view, times)
                except ViewOutdated as outdated:
                    retry_limit.check(outdated)
                    self._log.forget(view)

    async def _tidy_locked(self, view: ShardView, times: _GracePeriod) -> set[str]:
        shard_log = self._log
        if not view.token:
            await self._delete_remains(view, times)
            return set()
        await shard_log.make_writable(view)
        if view.stale_rows or (not view.rows and view.position):
            await self._end_epoch(view)
        if not view.rows and not view.position and times.is_over(view.epoch_start) and await self._remove_shard(view):
            await self._delete_remains(ShardView(view.names, view.folder), times)
            return set()
        await self._delete_garbage(view, times)
        recent = [settled for settled in view.decided_transactions if not times.is_over(settled.time)]
        return {*view.transactions, *(id for settled in recent for id in settled.names)}

    async def _end_epoch(self, view: ShardView) -> None:
        """End the epoch, and fold it."""
        if await self._append_last_entry(view):
            await self._log.make_writable(view)

    async def _append_last_entry(self, view: ShardView) -> bool:
        draft = LogEntryDraft(view, last=True)
        ended = await self._log.append(view, draft)
        if not ended:
            await self._log.catch_up(view)  # another process writes: try another time
        return ended

    async def _remove_shard(self, view: ShardView) -> bool:
        """End the generation of an empty shard. The next writer starts another."""
        began = clock()
        if not (await self._append_last_entry(view) and await self._log.fold(view, removed=True)):
            return False
        # Now no process can continue this generation, nor start another before the first object is deleted. So this
        # deletes the right object, unless the process was paused here: then it is left to others.
        if clock() - began < _IMMEDIATE_SECONDS:
            await self._log.storage.delete_once(object_names.first_object(view.folder))
        return True

    async def _delete_remains(self, view: ShardView, times: _GracePeriod) -> None:
        """Delete the objects of generations that ended."""
        storage = self._log.storage
        listed = await storage.list_objects(view.folder)
        birth = object_names.first_object(view.folder)
        if all(info.name != birth for info in listed):
            if await self._log.lacks_first_object(view.folder, [info.name for info in listed]):
                raise missing_error(birth)
            # The fold that ends a generation is deleted last: without it, its first object would count as missing.
            old = sorted(info.name for info in listed if times.is_over(info.modified))
            for kind in ("log", "fold"):
                await storage.delete([name for name in old if name.startswith(f"{view.folder}/{kind}/")])
            return
        # A process is starting a new generation; or ended one, and may still delete its first object.
        ended = [info.modified for info in listed if _generation(info.name, view.folder) == view.ended_generation != ""]
        if ended and times.now - max(ended) > max(_DELETION_SECONDS, times.grace):
            await storage.delete_once(birth)

    async def _delete_garbage(self, view: ShardView, times: _GracePeriod) -> None:
        shard_log = self._log
        expired = [name for garbage in view.garbage if times.is_over(garbage.time) for name in garbage.names]
        waiting = {name for garbage in view.garbage if not times.is_over(garbage.time) for name in garbage.names}
        waiting |= _find_needed(view)
        listed = await shard_log.storage.list_objects(view.folder)
        folded = {info.name.rpartition("/")[2]: info.modified for info in listed if "/fold/" in info.name}
        quiet = times.is_over(view.epoch_start)
        unneeded = [name for name in expired if name not in waiting]
        for info in listed:
            name, token = info.name[len(view.folder) + 1 :], object_names.token_of(info.name, view.folder)
            if name in waiting or name in expired or token == view.token or not times.is_over(info.modified):
                continue
            # Not needed since some fold up to the latest; an entry, since the fold of its epoch.
            other_life = bool(token) and object_names.generation_of(token) != object_names.generation_of(view.token)
            if quiet or other_life or (name.startswith("log/") and times.is_over(folded.get(token, 0.0))):
                unneeded.append(name)
        await shard_log.delete_objects(view.folder, view.token, unneeded)


def _generation(name: str, folder: str) -> str:
    return object_names.generation_of(object_names.token_of(name, folder))


def _find_needed(view: ShardView) -> set[str]:
    """List the objects, by their names in the shard's folder, that are needed besides the log of the epoch."""
    names = {object_names.fold("", ref.token)[1:] for ref in view.refs}
    if view.refs and view.previous_entries:
        # The last entry of the latest fold: it shows that there was such a fold, should that get lost.
        names.add(object_names.entry("", view.refs[-1].token, len(view.previous_entries) - 1)[1:])
    if not view.epoch:
        names.add("birth")
    return names | {object_names.body_object(each.token, entry) for (_, entry), each in view.body_objects.items()}


def _chunks(located: list[BodyLookup]) -> Iterator[list[BodyLookup]]:
    """Split bodies into chunks that fit into memory."""
    chunk: list[BodyLookup] = []
    size = 0
    for one in sorted(located, key=lambda one: (one.name, one.location.offset)):
        chunk.append(one)
        size += one.location.length
        if size > _CHECKED_BYTES:
            yield chunk
            chunk, size = [], 0
    yield chunk
