"""Reads what is intact of a shard with damaged objects.

Other readers need every object of a shard: one that is damaged hides the rest. Here each is read on its own, in the
order of creation, and all that is intact is used.

Rebuilds damaged shards from what can be read of them.

All intact rows are written into a new first object, which replaces the old one atomically. The old objects are copied
to another folder before. Writers of other processes that have the old generation in their cache wait for that, and then
find an object in its log that they cannot read: else they would continue a log that nobody reads.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from holdfast.backends.interface import Row
from holdfast.backends.memory import SortedRows
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import (
    ENTRY,
    FOLD,
    TABLES_BY_NAME,
    FoldObject,
    IndexedRow,
    LogEntry,
    WrittenRow,
    bodies_start,
    checksum,
    decode,
    decode_intact,
    encode,
)
from holdfast.backends.object_store.garbage_collection import GarbageCollector
from holdfast.backends.object_store.object_names import IN_FOLD, ShardNames
from holdfast.backends.object_store.object_storage import clock, deadline_in, gather_limited
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import EPOCH_ENTRIES, ShardVersion, ShardView
from holdfast.backends.tables import DAMAGED_LINE, LINES, TABLES, Key, Table
from holdfast.errors import ConflictError, CorruptError, UnsupportedError

_MAX_READS = 16

FIRST_ENTRY = "entry 0 of epoch 0"
"""The entry that creates a shard, in `SalvagedShard.lost`."""


class SalvagedShard(NamedTuple):
    """The rows of a shard that could be read; the bodies of some may be damaged. The names are None if no object has
    them. `lost` are the entries and folds with changes that could not be read."""

    names: ShardNames | None
    rows: list[tuple[Table, Row]]
    lost: list[str]


class ShardSalvager:
    """Reads what is intact of shards."""

    def __init__(self, shard_log: ShardLog) -> None:
        self._log = shard_log
        self._storage = shard_log.storage

    async def salvage(self, shard: str) -> SalvagedShard:
        """Read what is intact of a shard."""
        objects = await self.read_objects(shard)
        decisions = await self.read_decisions(shard, objects)
        last = open_transaction(shard, objects)
        if last and not await self._storage.exists(object_names.transaction(last)):
            decisions[last] = False
        return salvage_shard(shard, objects, decisions)

    async def read_objects(self, shard: str) -> dict[str, bytes]:
        """Read all objects of a shard, in the order of their creation."""
        listed = sorted(await self._storage.list_objects(shard), key=lambda info: (info.modified, info.name))
        names = [info.name for info in listed]
        found = await gather_limited([self._storage.get(name) for name in names], _MAX_READS)
        return {name: data for name, data in zip(names, found, strict=True) if data is not None}

    async def read_decisions(self, shard: str, objects: Mapping[str, bytes]) -> dict[str, bool]:
        """Read the decisions of the transactions of a shard, as far as they can be read."""
        decisions: dict[str, bool] = {}
        for name, data in objects.items():
            try:
                id = (
                    ""
                    if name.startswith(object_names.folds(shard))
                    else decode(ENTRY, LogEntry, data, name).transaction
                )
                decision = await self._log.read_decision(id) if id else None
            except (CorruptError, UnsupportedError):
                continue
            if decision is not None:
                decisions[id] = decision
        return decisions


class SalvagedView(ShardView):
    """The readable rest of a damaged shard. Its rows have their bodies.

    It always has the row of its line, with the form `DAMAGED_LINE` and no body: else a scan would not show that the
    line exists, or it would seem to be whole.
    """

    def __init__(self, names: ShardNames, folder: str, salvaged: SalvagedShard) -> None:
        super().__init__(names, folder)
        for table, row in salvaged.rows:
            self.parts.setdefault(table, SortedRows(table)).add(row)
        if names[1]:  # else these are settings and jobs of a tenant, which are no line
            found = self.row(LINES, names)
            created = 0 if found is None else found.columns[0]
            self.parts[LINES] = SortedRows(LINES)
            self.parts[LINES].add(Row(names, (created, 0, DAMAGED_LINE, 0, "")))

    @property
    def version(self) -> ShardVersion:
        return ("damaged", 0)


def current_generation(folder: str, objects: Mapping[str, bytes]) -> str:
    """Return the current generation of a shard: that of its first object, or else the latest that has not ended; empty
    if there is none. `objects` are in the order of creation."""
    generations = [
        object_names.generation_of(token) for name in objects if (token := object_names.token_of(name, folder))
    ]
    first_name = object_names.first_object(folder)
    first = decode_intact(ENTRY, LogEntry, objects.get(first_name), first_name)
    if first is not None:
        generations.append(object_names.generation_of(first.token))
    ended = {object_names.generation_of(fold.token) for fold in _decode_folds(folder, objects) if fold.removed}
    return next((generation for generation in reversed(generations) if generation not in ended), "")


def salvage_shard(folder: str, objects: Mapping[str, bytes], decisions: Mapping[str, bool]) -> SalvagedShard:
    """Read the rows of a shard. `objects` are its objects by name, `decisions` those of transactions."""
    generation = current_generation(folder, objects)
    reader = _SalvageReader(objects, decisions, generation)
    names = _sort_current(folder, objects, generation)
    for name in names:
        reader.read(name, object_names.order_of(name, folder))
    lost = reader.missing_folds + _find_lost([object_names.order_of(name, folder) for name in names], reader.read_at)
    return SalvagedShard(reader.names, [(space, row) for (space, _), row in reader.rows.items()], lost)


def open_transaction(folder: str, objects: Mapping[str, bytes]) -> str:
    """Return the transaction of the last entry of a shard, which may be undecided; empty if there is none."""
    names = _sort_current(folder, objects, current_generation(folder, objects))
    entry = decode_intact(ENTRY, LogEntry, objects[names[-1]], names[-1]) if names else None
    return "" if entry is None else entry.transaction


def _sort_current(folder: str, objects: Mapping[str, bytes], generation: str) -> list[str]:
    """Return the names of the first object and of those of a generation, in order."""
    first = object_names.first_object(folder)
    own = [
        each
        for each in objects
        if each == first or object_names.generation_of(object_names.token_of(each, folder)) == generation
    ]
    return sorted(own, key=lambda name: object_names.order_of(name, folder))


def _find_lost(existing: Sequence[tuple[int, int]], read: Set[tuple[int, int]]) -> list[str]:
    """Find the entries that could not be read, and have no fold that could. Both are epochs and positions.

    The last entry of a log cannot be found if it is missing.
    """
    lost = []
    folded = max((epoch for epoch, position in read if position == object_names.FOLD_POSITION), default=-1)
    last = max((epoch for epoch, _ in existing), default=-1)
    for epoch in range(folded + 1, last + 1):
        positions = [position for each, position in existing if each == epoch and position < object_names.FOLD_POSITION]
        lost += [
            f"entry {position} of epoch {epoch}"
            for position in range(max(positions, default=-1) + 1)
            if (epoch, position) not in read
        ]
        if not positions:
            lost.append(f"epoch {epoch}")
    return lost


def _decode_folds(folder: str, objects: Mapping[str, bytes]) -> list[FoldObject]:
    start = f"{object_names.folds(folder)}/"
    found = (decode_intact(FOLD, FoldObject, data, name) for name, data in objects.items() if name.startswith(start))
    return [fold for fold in found if fold is not None]


class _SalvageReader:
    def __init__(self, objects: Mapping[str, bytes], decisions: Mapping[str, bool], generation: str) -> None:
        self._objects = objects
        self._decisions = decisions
        self._generation = generation
        self._objects_by_position: dict[tuple[int, int], tuple[str, int]] = {}
        """Objects by epoch and position, and where their bodies start."""
        self._folds: dict[str, FoldObject] = {}
        self.names: ShardNames | None = None
        self.rows: dict[tuple[Table, Key], Row] = {}
        self.read_at: set[tuple[int, int]] = set()
        """Epoch and position of what was read."""
        self.missing_folds: list[str] = []
        self._valid_entries = 0

    def read(self, name: str, order: tuple[int, int]) -> None:
        """Read one object, if it is intact."""
        data = self._objects[name]
        try:
            if order[1] == object_names.FOLD_POSITION:
                fold = decode(FOLD, FoldObject, data, name)
                self._objects_by_position[order[0], IN_FOLD] = (name, bodies_start(data, name))
                self._read_fold(fold)
                self.read_at.add(order)
            else:
                entry = decode(ENTRY, LogEntry, data, name)
                if object_names.generation_of(entry.token) != self._generation:
                    return  # of another generation
                self._objects_by_position[order] = (name, bodies_start(data, name))
                committed = self._is_committed(entry)
                if entry.stub or committed is None:
                    return
                self.read_at.add(order)
                if committed:
                    self._valid_entries += 1
                    self._read_entry(entry, data, bodies_start(data, name))
        except (CorruptError, UnsupportedError):
            return

    def _is_committed(self, entry: LogEntry) -> bool | None:
        """Whether an entry is part of no transaction, or of one that was committed; None if that is unknown."""
        # Decisions are deleted after their entries were folded, and entries that are not committed are not folded.
        return self._decisions.get(entry.transaction) if entry.transaction else True

    def _read_entry(self, entry: LogEntry, data: bytes, offset: int) -> None:
        self.names = entry.names
        for deleted in entry.deleted:
            self._delete(deleted.space, (*entry.names, *deleted.prefix))
        for written in entry.written:
            body = data[offset : offset + written.length]
            offset += written.length
            self._put(written.space, (*entry.names, *written.key), written.columns, body, written.length, written.check)

    def _read_fold(self, fold: FoldObject) -> None:
        self.names = fold.names
        self._folds[fold.token] = fold
        before: dict[tuple[Table, Key], Row] = {}
        if all(ref.token in self._folds for ref in fold.refs):
            # All rows are in these. Other rows were deleted, though an old object still has them.
            before, self.rows = self.rows, {}
            self.missing_folds = []
            for ref in fold.refs:
                self._read_index(self._folds[ref.token], before)
        elif self._valid_entries == fold.count:  # all that the missing ones had is in entries that still exist
            self.missing_folds = []
        else:
            self.missing_folds = [f"fold {ref.token}" for ref in fold.refs if ref.token not in self._folds]
        self._read_index(fold, before)

    def _read_index(self, fold: FoldObject, before: Mapping[tuple[Table, Key], Row]) -> None:
        for tombstone in fold.tombstones:
            self._delete(tombstone.space, (*fold.names, *tombstone.prefix))
        for indexed in fold.rows:
            location = self._objects_by_position.get((indexed.epoch, indexed.entry))
            key = (*fold.names, *indexed.key)
            body = b"" if location is None else self._body(indexed, *location)
            if len(body) != indexed.length or checksum(body) != indexed.check:
                older = before.get((TABLES_BY_NAME[indexed.space], key)) if indexed.space in TABLES_BY_NAME else None
                body = b"" if older is None else older.body  # an older object may have it too
            self._put(indexed.space, key, indexed.columns, body, indexed.length, indexed.check)

    def _body(self, indexed: IndexedRow, name: str, base: int) -> bytes:
        return self._objects[name][base + indexed.offset :][: indexed.length]

    def _put(self, space: str, key: Key, columns: tuple[object, ...], body: bytes, length: int, check: int) -> None:
        table = TABLES_BY_NAME.get(space)
        if table is None:
            return
        if len(body) != length or checksum(body) != check:
            body = b""  # an older version would be wrong, and without the row nobody would know what is lost
        self.rows[table, key] = Row(key, columns, body)  # type: ignore[arg-type]

    def _delete(self, space: str, prefix: Key) -> None:
        table = TABLES_BY_NAME.get(space)
        for each in [each for each in self.rows if each[0] is table and each[1][: len(prefix)] == prefix]:
            del self.rows[each]


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
