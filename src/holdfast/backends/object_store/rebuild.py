"""Beginning damaged shards anew, with all that can be read of them.

What a shard's objects hold is put into a new birth, which takes the place of the old one in one step: before it the
shard is as it was, after it all rows are there. The objects are kept under another name first. Writers of other
processes that know the old life wait meanwhile, and then find something in its log that they cannot read: else they
would go on writing where nobody looks any more.
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
    check_of,
    decode,
    encode,
)
from holdfast.backends.object_store.garbage_collection import GarbageCollector
from holdfast.backends.object_store.object_storage import clock, together, within
from holdfast.backends.object_store.salvage import (
    SalvagedShard,
    current_life,
    open_transaction,
    salvage_shard,
    token_of,
)
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import EPOCH
from holdfast.backends.tables import TABLES
from holdfast.errors import ConflictError, CorruptError, UnsupportedError

DAMAGED = "damaged"
_PACE = 16
_TRIES = 5


class RebuiltShard(NamedTuple):
    """What became of a damaged shard: where its objects are kept, and what could be read of them."""

    kept: str
    remains: SalvagedShard


class ShardRebuild:
    """Begins shards anew."""

    def __init__(self, core: ShardLog, tidying: GarbageCollector, timeout: float) -> None:
        self._core = core
        self._blobs = core.blobs
        self._tidying = tidying
        self._timeout = timeout

    async def shards(self, tenant: str) -> list[str]:
        """The folders of a tenant's shards."""
        top = object_names.tenant_folder(tenant)
        with within(self._timeout):
            return sorted(f"{top}/{name}" for name in await self._blobs.folders(top) if object_names.is_line(name))

    async def damaged(self, tenant: str) -> list[str]:
        """Those of them that are damaged."""
        found = []
        for shard in await self.shards(tenant):
            with within(self._timeout):
                try:
                    await self._tidying.check_shard(shard)
                except CorruptError:
                    found.append(shard)
        return found

    async def rehearse(self, shard: str) -> SalvagedShard:
        """What could be read of a shard."""
        with within(self._timeout):
            objects = await self._objects(shard)
            return salvage_shard(shard, objects, await self._decided(shard, objects))

    async def renew(self, shard: str, stamp: str) -> RebuiltShard:
        """Begin a shard anew. `ConflictError` if another did so meanwhile, or kept writing."""
        for _ in range(_TRIES):
            with within(self._timeout):
                objects = await self._objects(shard)
                last = open_transaction(shard, objects)
                if last:
                    await self._void(last, stamp)
                remains = salvage_shard(shard, objects, await self._decided(shard, objects))
            for name, data in objects.items():
                with within(self._timeout):
                    await self._blobs.create(f"{DAMAGED}/{stamp}/{name}", data)
            with within(self._timeout):
                if await self._switch(shard, objects, remains):
                    return RebuiltShard(f"{DAMAGED}/{stamp}/{shard}", remains)
        raise ConflictError(
            "others kept writing there", where=shard, hint="Stop what uses the store, and repair it again"
        )

    async def _void(self, id: str, stamp: str) -> None:
        """Have a transaction be void, unless it was decided: then that counts, if it can be read."""
        try:
            await self._core.decide(id, made=False)
        except CorruptError:
            name = object_names.transaction(id)
            await self._blobs.create(f"{DAMAGED}/{stamp}/{name}", await self._blobs.get(name) or b"")

    async def _switch(self, shard: str, objects: Mapping[str, bytes], remains: SalvagedShard) -> bool:
        """Put the new birth in its place, unless something was written meanwhile."""
        began = clock()
        token, position = self._end(shard, objects)
        id = secrets.token_hex(16)
        fence = ""
        if token and position < EPOCH and remains.names is not None:
            # Readers see what was before an open transaction, and writers wait for it; it is void if this ends here.
            fence = object_names.entry(shard, token, position)
            entry = LogEntry(remains.names, token, secrets.token_bytes(8), id, False, False, [], [])
            if not await self._blobs.create(fence, encode(ENTRY, entry)):
                return False
        listed = {blob.name for blob in await self._blobs.listed(shard)}
        if listed - {fence} != objects.keys() or clock() - began > self._core.patience / 2:
            await self._core.decide(id, made=False)
            return False
        await self._begin(shard, remains, objects.get(object_names.birth(shard)))
        if token:
            # Whoever knows the old life would go on with it after a while.
            for name in (object_names.entry(shard, token, position + 1), object_names.fold(shard, token)):
                await self._blobs.create(name, b"stopped by a repair " + secrets.token_hex(32).encode())
        known = self._core.known(shard)
        if known is not None:
            self._core.forget(known)
        return True

    def _end(self, shard: str, objects: Mapping[str, bytes]) -> tuple[str, int]:
        """The token of the epoch in which the shard's life goes on, and the number of the next entry."""
        life = current_life(shard, objects)
        there = [token for name in objects if (token := token_of(name, shard)) and object_names.life_of(token) == life]
        following = [
            self._following(objects.get(object_names.fold(shard, token)), shard) for token in dict.fromkeys(there)
        ]
        born = "" if there else self._token(objects.get(object_names.birth(shard)), shard)
        tokens = [token for token in (*there, *following, born) if token]
        last = max(tokens, key=object_names.number_of, default="")
        prefix = f"{object_names.log(shard, last)}/"
        numbers = [int(name[len(prefix) :]) for name in objects if name.startswith(prefix)]
        return last, max(numbers, default=-1 if last and object_names.number_of(last) else 0) + 1

    def _token(self, data: bytes | None, name: str) -> str:
        try:
            return "" if data is None else decode(ENTRY, LogEntry, data, name).token
        except (CorruptError, UnsupportedError):
            return ""

    def _following(self, data: bytes | None, name: str) -> str:
        try:
            return "" if data is None else decode(FOLD, FoldObject, data, name).following
        except (CorruptError, UnsupportedError):
            return ""

    async def _objects(self, shard: str) -> dict[str, bytes]:
        """All objects of a shard, in the order in which they were made."""
        listed = sorted(await self._blobs.listed(shard), key=lambda blob: (blob.modified, blob.name))
        names = [blob.name for blob in listed]
        found = await together([self._blobs.get(name) for name in names], _PACE)
        return {name: data for name, data in zip(names, found, strict=True) if data is not None}

    async def _decided(self, shard: str, objects: Mapping[str, bytes]) -> dict[str, bool]:
        made: dict[str, bool] = {}
        for name, data in objects.items():
            try:
                id = (
                    ""
                    if name.startswith(object_names.folds(shard))
                    else decode(ENTRY, LogEntry, data, name).transaction
                )
                decision = await self._core.decided(id) if id else None
            except (CorruptError, UnsupportedError):
                continue
            if decision is not None:
                made[id] = decision
        return made

    async def _begin(self, shard: str, remains: SalvagedShard, before: bytes | None) -> None:
        birth = object_names.birth(shard)
        parts = shard.split("/")
        tenant, line = object_names.decoded(parts[0]), object_names.decoded(parts[1])
        names = remains.names or (None if tenant is None or line is None else (tenant, line))
        if await self._blobs.get(birth) != before:
            raise ConflictError("another begins it anew", where=shard, hint="Wait for it to end, and verify the store")
        if names is None:
            await self._blobs.delete([blob.name for blob in await self._blobs.listed(shard)])  # they are kept
            return
        order = {space: number for number, space in enumerate(TABLES)}
        rows = sorted(remains.rows, key=lambda each: (order[each[0]], each[1].key))
        written = [
            WrittenRow(space.name, row.key[2:], row.columns, len(row.body), check_of(row.body)) for space, row in rows
        ]
        entry = LogEntry(names, object_names.new_life(), secrets.token_bytes(8), "", False, False, [], written)
        data = encode(ENTRY, entry, [row.body for _, row in rows])
        if before is not None:
            await self._blobs.put(birth, data)
        elif not await self._blobs.create(birth, data):
            raise ConflictError("another begins it anew", where=shard, hint="Wait for it to end, and verify the store")
