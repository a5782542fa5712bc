"""The state of a shard in a process: its rows without their bodies, and the location of each body."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.backends.batch_eval import Columns, Effect, evaluate
from holdfast.backends.interface import Batch, Row, Scan
from holdfast.backends.memory import SortedRows
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import (
    BodyLocation,
    BodyObject,
    DeletedRows,
    FoldObject,
    FoldRef,
    Garbage,
    LogEntry,
    Tombstone,
    WrittenRow,
    checksum,
    damaged_error,
    find_table,
    missing_error,
    order_error,
    pack_location,
    unpack_location,
)
from holdfast.backends.object_store.object_names import IN_FOLD, ShardNames
from holdfast.backends.object_store.object_storage import check_deadline
from holdfast.backends.tables import Key, Table

EPOCH_ENTRIES = 32
"""The most entries of an epoch."""

TOP_LEVEL = 99
"""The level of the index of a thorough fold, which is merged into no other."""

ShardVersion = tuple[str, int]
"""The generation of a shard and the number of its valid entries: changes whenever its rows do."""

BodyObjectKey = tuple[int, int]
"""An object with bodies: its epoch, and its position in the log or `IN_FOLD`."""


class UndecidedEntry(NamedTuple):
    """The last entry, while its transaction is undecided."""

    entry: LogEntry
    base: int
    read_at: float


class BodyLookup(NamedTuple):
    """The object and the location of a body; valid also after the shard was folded."""

    name: str
    body_object: BodyObject
    location: BodyLocation


_NO_BODY = BodyObject(0, 0, "", 0, 0)


class ShardView:
    """A shard as of some entry of its log. Without a token, it is empty: nothing was ever written."""

    def __init__(self, names: ShardNames, folder: str) -> None:
        self.names = names
        self.folder = folder
        self.token: str = ""
        self.epoch: int = 0
        self.position: int = 0
        """The position of the next entry."""
        self.count: int = 0
        self.read_at: float = 0.0
        """When it was last known to be up to date, by `clock`."""
        self.last: bool = False
        self.removed: bool = False
        self.ended_generation = ""
        """The previous generation, if its first object may still exist."""
        self.pending: UndecidedEntry | None = None
        self.parts: dict[Table, SortedRows] = {}
        self.rows: int = 0
        self.body_objects: dict[BodyObjectKey, BodyObject] = {}
        self.live_bytes: dict[BodyObjectKey, int] = {}
        """The bytes of bodies that are still used, by object."""
        self.entries: list[bytes] = []
        self.previous_entries: list[bytes] = []
        """The ids of the entries of the previous epoch."""
        self.refs: list[FoldRef] = []
        """All folds whose index is valid, including the latest."""
        self.tombstones: list[Tombstone] = []
        self.garbage: list[Garbage] = []
        self.transactions: list[str] = []
        """The transactions of the entries of this epoch."""
        self.decided_transactions: list[Garbage] = []
        self.stale_rows: int = 0
        """The number of deleted and replaced rows that are still in an object that is needed."""
        self.appended = 0
        """The number of entries that this process appended since it last looked whether others wait for a turn."""
        self.epoch_start: float = 0.0
        """When the epoch started."""

    @property
    def full(self) -> bool:
        """Whether the next object must be a fold."""
        return self.position >= EPOCH_ENTRIES or self.last

    @property
    def version(self) -> ShardVersion:
        """Changes whenever the rows do."""
        return (object_names.generation_of(self.token) if self.rows or self.count else "", self.count)

    @property
    def last_id(self) -> bytes:
        """The id of the last entry of the epoch; empty if there is none."""
        return self.entries[-1] if self.entries else b""

    def next_name(self) -> str:
        """The name of the next object."""
        if not self.token:
            return object_names.first_object(self.folder)
        if self.full:
            return object_names.fold(self.folder, self.token)
        return object_names.entry(self.folder, self.token, self.position)

    # Reading

    def columns(self, space: Table, key: Key) -> Columns | None:
        """Return the columns of a row, or None if it does not exist."""
        row = self.row(space, key)
        return None if row is None else row.columns

    def row(self, space: Table, key: Key) -> Row | None:
        """Return a row, with its location in place of the body."""
        part = self.parts.get(space)
        return None if part is None else part.rows.get(key)

    def scan(self, scan: Scan, limit: int | None) -> list[Row]:
        """Return rows, with their locations in place of the bodies."""
        part = self.parts.get(scan.space)
        return [] if part is None else part.scan(scan, limit)

    def locate(self, row: Row) -> BodyLookup:
        """Return the object and the location of the body of a row."""
        location = unpack_location(row.body)
        if not location.length:
            return BodyLookup("", _NO_BODY, location)
        body_object = self.body_objects[location.epoch, location.entry]
        name = object_names.body_object(body_object.token, location.entry)
        return BodyLookup(f"{self.folder}/{name}", body_object, location)

    def all_rows(self) -> Iterator[tuple[Table, Row]]:
        for space, part in self.parts.items():
            for row in part.rows.values():
                yield space, row

    # Changes

    def add_entry(self, entry: LogEntry, base: int, now: float) -> None:
        """Add the next entry of the log."""
        if not self.token and object_names.folder(entry.names) == self.folder:
            self.names, self.token = entry.names, entry.token
        elif entry.names != self.names or entry.token != self.token:
            raise damaged_error(self.next_name())
        if entry.previous != self.last_id:
            raise order_error(self.next_name())
        self.entries.append(entry.id)
        self.last = entry.last
        self.position += 1
        if entry.transaction:
            self.pending = UndecidedEntry(entry, base, now)
            self.transactions.append(entry.transaction)
        else:
            self._apply(entry, base)

    def decide(self, pending: UndecidedEntry, committed: bool) -> None:
        """Apply or drop an entry whose transaction was decided. May be called again."""
        if self.pending is not pending:
            return
        self.pending = None
        if committed:
            self._apply(pending.entry, pending.base)

    def add_fold(self, fold: FoldObject, base: int) -> None:
        """Add the fold that ends the epoch, which has the bodies of the epoch now."""
        if fold.entries != self.entries:
            raise order_error(self.next_name())
        for indexed in fold.rows:
            if indexed.epoch != self.epoch or indexed.entry != IN_FOLD:
                continue
            space = find_table(indexed.space, self.folder)
            row = self.row(space, (*self.names, *indexed.key))
            if row is None or row.columns != indexed.columns:
                raise damaged_error(object_names.fold(self.folder, fold.token))
            self._remove_row(space, row)
            self._add_row(space, row._replace(body=pack_location(BodyLocation(*indexed[3:]))))
        self._add_body_objects(fold, base)
        self._start_epoch(fold, base)

    def load_folds(self, indexes: Iterable[tuple[FoldObject, int]]) -> None:
        """Load the indexes of folds, the oldest first, and continue after the last."""
        last = None
        for fold, base in indexes:
            for tombstone in fold.tombstones:
                self._delete_rows(find_table(tombstone.space, self.folder), (*self.names, *tombstone.prefix))
            rows: dict[str, list[Row]] = {}
            for indexed in fold.rows:
                row = Row((*self.names, *indexed.key), indexed.columns, pack_location(indexed[3:]))
                rows.setdefault(indexed.space, []).append(row)
                object_key = (indexed.epoch, indexed.entry)
                self.live_bytes[object_key] = self.live_bytes.get(object_key, 0) + indexed.length
            self._add_rows(rows)
            self.tombstones += fold.tombstones
            self._add_body_objects(fold, base)
            last = fold, base
        if last is not None:
            self.token, self.epoch = last[0].token, object_names.epoch_of(last[0].token)
            self._start_epoch(*last)

    def _start_epoch(self, fold: FoldObject, base: int) -> None:
        """Start the epoch after a fold."""
        own = FoldRef(fold.level, fold.first, self.epoch, fold.token, base)
        self.refs = [*fold.refs, own]
        # There is nothing before the oldest index that tombstones would have to hide.
        self.tombstones = [tombstone for tombstone in self.tombstones if tombstone.epoch > self.refs[0].epoch]
        self.garbage, self.removed, self.epoch_start = fold.garbage, fold.removed, fold.time
        self.decided_transactions, self.transactions = fold.decided_transactions, []
        if not fold.refs and fold.level == TOP_LEVEL:
            self.stale_rows = 0
        self.count, self.previous_entries = fold.count, fold.entries
        self.token, self.epoch = fold.next_token, self.epoch + 1
        self.position, self.last, self.entries = 0, False, []
        self.body_objects = {
            object_key: body_object
            for object_key, body_object in self.body_objects.items()
            if self.live_bytes.get(object_key, 0)
        }
        self.live_bytes = {object_key: size for object_key, size in self.live_bytes.items() if size}

    def _add_body_objects(self, fold: FoldObject, base: int) -> None:
        for body_object in fold.body_objects:
            whole = (
                body_object._replace(base=base)
                if body_object.token == fold.token and body_object.entry == IN_FOLD
                else body_object
            )
            self.body_objects[body_object.epoch, body_object.entry] = whole

    def _apply(self, entry: LogEntry, base: int) -> None:
        position = self.position - 1
        self.count += 1
        for deleted in entry.deleted:
            space = find_table(deleted.space, self.folder)
            if self._delete_rows(space, (*self.names, *deleted.prefix)) and self.refs:
                # Also for a row of this epoch: an older index may have an older version of it.
                self.tombstones.append(Tombstone(self.epoch, deleted.space, deleted.prefix))
        offset = 0
        rows: dict[str, list[Row]] = {}
        for name, key, columns, length, check in entry.written:
            location = pack_location((self.epoch, position, offset, length, check))
            rows.setdefault(name, []).append(Row((*self.names, *key), columns, location))
            offset += length
        self.live_bytes[self.epoch, position] = offset
        self._add_rows(rows)
        self.body_objects[self.epoch, position] = BodyObject(self.epoch, position, self.token, base, offset)

    def _add_rows(self, rows: dict[str, list[Row]]) -> None:
        """Add the rows of an entry or a fold by table, in place of older versions. No key is there twice."""
        for name, new in rows.items():
            space = find_table(name, self.folder)
            part = self.parts.get(space)
            if part is None:
                part = self.parts[space] = SortedRows(space)
            else:
                for row in new:
                    self._remove_old_row(space, row.key)
            part.add_many(new)
            self.rows += len(new)

    def _remove_old_row(self, space: Table, key: Key) -> None:
        """Remove the old version of a row, if there is one."""
        old = self.row(space, key)
        if old is not None:
            self._remove_row(space, old)
            self.stale_rows += 1

    def _add_row(self, space: Table, row: Row) -> None:
        part = self.parts.get(space)
        if part is None:
            part = self.parts[space] = SortedRows(space)
        part.add(row)
        location = unpack_location(row.body)
        object_key = (location.epoch, location.entry)
        self.live_bytes[object_key] = self.live_bytes.get(object_key, 0) + location.length
        self.rows += 1

    def _remove_row(self, space: Table, row: Row) -> None:
        self.parts[space].remove(row)
        location = unpack_location(row.body)
        object_key = (location.epoch, location.entry)
        # The default applies if all bodies in the object are empty.
        self.live_bytes[object_key] = self.live_bytes.get(object_key, 0) - location.length
        self.rows -= 1

    def _delete_rows(self, space: Table, prefix: Key) -> bool:
        """Remove rows. Returns whether there were any."""
        rows = self.scan(Scan(space, prefix), None)
        for row in rows:
            self._remove_row(space, row)
        self.stale_rows += len(rows)
        return bool(rows)


class LogEntryDraft:
    """An entry before it is created, with its bodies."""

    def __init__(self, view: ShardView, transaction: str = "", last: bool = False) -> None:
        self.name: str = view.next_name()
        """Its name: its conditions were evaluated on the objects before that."""
        self.entry: LogEntry = LogEntry(
            view.names, view.token, secrets.token_bytes(8), view.last_id, transaction, last, False, [], []
        )
        self.bodies: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self.entry.deleted or self.entry.written)

    def delete(self, view: ShardView, space: Table, prefix: Key) -> None:
        """Add a deletion, if there are such rows."""
        if view.scan(Scan(space, prefix), 1):
            self.entry.deleted.append(DeletedRows(space.name, prefix[2:]))

    def write(self, space: Table, row: Row) -> None:
        """Add a row."""
        body = bytes(row.body)
        self.entry.written.append(WrittenRow(space.name, row.key[2:], row.columns, len(body), checksum(body)))
        self.bodies.append(body)


def draft_entry(view: ShardView, batches: Sequence[Batch]) -> tuple[list[int | None], LogEntryDraft]:
    """Evaluate batches on one shard. Returns their outcomes, and the entry for those that are not refused."""
    outcomes, effect = evaluate(batches, view.columns)
    draft = LogEntryDraft(view)
    fill_draft(draft, view, effect)
    return outcomes, draft


def fill_draft(draft: LogEntryDraft, view: ShardView, effect: Effect) -> None:
    """Add the part of an effect that is about one shard to its entry."""
    for space, prefixes in effect.deleted.items():
        for prefix in prefixes:
            if prefix[:2] == view.names[: len(prefix)]:
                draft.delete(view, space, prefix if len(prefix) >= 2 else view.names)
    for (space, key), row in effect.written.items():
        if key[:2] == view.names:
            draft.write(space, row)


_MAX_MISSING = 3


class ViewOutdated(Exception):
    """A view cannot be brought up to date any more: the shard has to be read again."""


class ObjectMissing(ViewOutdated):
    """An object that the view needs does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class RetryLimit:
    """Limits how often a shard is read again because an object is missing."""

    def __init__(self) -> None:
        self._missed = 0

    def check(self, outdated: ViewOutdated) -> None:
        """Raise `CorruptError` if an object is missing again and again, or the deadline is over."""
        check_deadline()
        if isinstance(outdated, ObjectMissing):
            self._missed += 1
            if self._missed == _MAX_MISSING:
                raise missing_error(outdated.name) from outdated


class CreatedTooLate(ViewOutdated):
    """An object was created so late that its name may have been deleted and free again."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
