"""Rebuilds damaged shards from what can be read of them.

All intact rows are written into a new first object, which replaces the old one atomically. The old objects are copied
to another folder before. Writers of other processes that have the old generation in their cache wait for that, and then
find an object in its log that they cannot read: else they would continue a log that nobody reads.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import (
    ENTRY,
    FOLD,
    FoldObject,
    LogEntry,
    WrittenRow,
    checksum,
    decode_intact,
    encode,
)
from holdfast.backends.object_store.garbage_collection import GarbageCollector
from holdfast.backends.object_store.object_storage import clock, deadline_in
from holdfast.backends.object_store.salvage import (
    SalvagedShard,
    ShardSalvager,
    current_generation,
    open_transaction,
    salvage_shard,
)
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import EPOCH_ENTRIES
from holdfast.backends.tables import TABLES
from holdfast.errors import ConflictError, CorruptError

DAMAGED_FOLDER = "damaged"
_ATTEMPTS = 5


class RebuiltShard(NamedTuple):
    """A shard that was rebuilt: the folder with copies of its old objects, and what was salvaged."""

    copies: str
    salvaged: SalvagedShard


class ShardRebuild:
    """Rebuilds shards."""

    def __init__(self, shard_log: ShardLog, tidying: GarbageCollector, timeout: float) -> None:
        self._log = shard_log
        self._storage = shard_log.storage
        self._salvager = ShardSalvager(shard_log)
        self._garbage_collector = tidying
        self._timeout = timeout

    async def shards(self, tenant: str) -> list[str]:
        """List the folders of a tenant's shards."""
        top = object_names.tenant_folder(tenant)
        with deadline_in(self._timeout):
            return sorted(
                f"{top}/{name}" for name in await self._storage.list_folders(top) if object_names.is_line(name)
            )

    async def damaged_shards(self, tenant: str) -> list[str]:
        """List the folders of the damaged shards of a tenant."""
        found = []
        for shard in await self.shards(tenant):
            with deadline_in(self._timeout):
                try:
                    await self._garbage_collector.check_shard(shard)
                except CorruptError:
                    found.append(shard)
        return found

    async def salvage(self, shard: str) -> SalvagedShard:
        """Read what is intact of a shard."""
        with deadline_in(self._timeout):
            return await self._salvager.salvage(shard)

    async def rebuild(self, shard: str, stamp: str) -> RebuiltShard:
        """Rebuild a shard, and keep copies of its objects under a stamp, if it is not empty. Raises `ConflictError` if
        another process rebuilds it, or keeps writing."""
        for _ in range(_ATTEMPTS):
            with deadline_in(self._timeout):
                objects = await self._salvager.read_objects(shard)
                last = open_transaction(shard, objects)
                if last:
                    await self._abort(last, stamp)
                salvaged = salvage_shard(shard, objects, await self._salvager.read_decisions(shard, objects))
            for name, data in objects.items() if stamp else ():
                with deadline_in(self._timeout):
                    await self._storage.create(f"{DAMAGED_FOLDER}/{stamp}/{name}", data)
            with deadline_in(self._timeout):
                if await self._replace_shard(shard, objects, salvaged):
                    return RebuiltShard(f"{DAMAGED_FOLDER}/{stamp}/{shard}", salvaged)
        raise ConflictError(
            "other processes kept writing to the store",
            where=shard,
            hint="Stop the programs that use the store, and repair it again",
        )

    async def _abort(self, id: str, stamp: str) -> None:
        """Abort a transaction, unless it was decided and the decision can be read."""
        try:
            await self._log.decide(id, committed=False)
        except CorruptError:
            name = object_names.transaction(id)
            if stamp:
                await self._storage.create(f"{DAMAGED_FOLDER}/{stamp}/{name}", await self._storage.get(name) or b"")

    async def _replace_shard(self, shard: str, objects: Mapping[str, bytes], salvaged: SalvagedShard) -> bool:
        """Write the new first object, unless the shard was written to since it was read."""
        began = clock()
        token, position = self._find_end(shard, objects)
        id = secrets.token_hex(16)
        fence = ""
        if token and position < EPOCH_ENTRIES and salvaged.names is not None:
            # Readers see the state before an open transaction, and writers wait; if this process dies, it is aborted.
            fence = object_names.entry(shard, token, position)
            before = decode_intact(ENTRY, LogEntry, objects.get(object_names.entry(shard, token, position - 1)), fence)
            previous = b"" if before is None else before.id
            entry = LogEntry(salvaged.names, token, secrets.token_bytes(8), previous, id, False, False, [], [])
            if not await self._storage.create(fence, encode(ENTRY, entry)):
                return False
        listed = {info.name for info in await self._storage.list_objects(shard)}
        if listed - {fence} != objects.keys() or clock() - began > self._log.transaction_timeout / 2:
            await self._log.decide(id, committed=False)
            return False
        await self._write_first_object(shard, salvaged, objects.get(object_names.first_object(shard)))
        if token:
            # Else processes with the old generation in their cache would continue it after a while.
            for name in (object_names.entry(shard, token, position + 1), object_names.fold(shard, token)):
                await self._storage.create(name, b"stopped by a repair " + secrets.token_hex(32).encode())
        self._log.forget_shard(shard)
        return True

    def _find_end(self, shard: str, objects: Mapping[str, bytes]) -> tuple[str, int]:
        """Return the token of the last epoch, and the number of its next entry."""
        generation = current_generation(shard, objects)
        tokens_there = [
            token
            for name in objects
            if (token := object_names.token_of(name, shard)) and object_names.generation_of(token) == generation
        ]
        folds = [
            decode_intact(FOLD, FoldObject, objects.get(object_names.fold(shard, token)), shard)
            for token in dict.fromkeys(tokens_there)
        ]
        tokens = [*tokens_there, *(fold.next_token for fold in folds if fold is not None)]
        first = decode_intact(ENTRY, LogEntry, objects.get(object_names.first_object(shard)), shard)
        if not tokens and first is not None:
            tokens = [first.token]
        last = max(tokens, key=object_names.epoch_of, default="")
        prefix = f"{object_names.log(shard, last)}/"
        numbers = [int(name[len(prefix) :]) for name in objects if name.startswith(prefix)]
        return last, max(numbers, default=-1 if last and object_names.epoch_of(last) else 0) + 1

    async def _write_first_object(self, shard: str, salvaged: SalvagedShard, before: bytes | None) -> None:
        birth = object_names.first_object(shard)
        parts = shard.split("/")
        tenant, line = object_names.decode_name(parts[0]), object_names.decode_name(parts[1])
        names = salvaged.names or (None if tenant is None or line is None else (tenant, line))
        if await self._storage.get(birth) != before:
            raise ConflictError(
                "another process is rebuilding the store", where=shard, hint="Wait for it to end, and verify the store"
            )
        if names is None:
            await self._storage.delete([info.name for info in await self._storage.list_objects(shard)])  # copies exist
            return
        order = {space: number for number, space in enumerate(TABLES)}
        rows = sorted(salvaged.rows, key=lambda each: (order[each[0]], each[1].key))
        written = [
            WrittenRow(space.name, row.key[2:], row.columns, len(row.body), checksum(row.body)) for space, row in rows
        ]
        token = object_names.new_generation()
        entry = LogEntry(names, token, secrets.token_bytes(8), b"", "", False, False, [], written)
        data = encode(ENTRY, entry, [row.body for _, row in rows])
        if before is not None:
            await self._storage.put(birth, data)
        elif not await self._storage.create(birth, data):
            raise ConflictError(
                "another process is rebuilding the store", where=shard, hint="Wait for it to end, and verify the store"
            )
