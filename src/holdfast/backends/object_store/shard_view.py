"""What a process knows of a shard: its rows without their bodies, and where each body is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.backends.batch_eval import Columns
from holdfast.backends.interface import Row, Scan
from holdfast.backends.memory import SortedRows
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import (
    IN_FOLD,
    BodyLocation,
    BodyObject,
    FoldObject,
    FoldRef,
    Garbage,
    LogEntry,
    Tombstone,
    damaged,
    pack_place,
    space_of,
    unpack_place,
)
from holdfast.backends.object_store.object_names import Names
from holdfast.backends.tables import Key, Table

EPOCH = 32
"""How many entries an epoch has at most."""

TOP = 99
"""The level of a thorough fold's index: it is merged into no other."""

Version = tuple[str, int]
"""Changes with anything that readers can see of a shard: a life, and how many entries of it counted."""

Spot = tuple[int, int]
"""An object that holds bodies: its epoch, and its place in the log or `IN_FOLD`."""


class UndecidedEntry(NamedTuple):
    """The last entry, as long as it is open whether it counts."""

    entry: LogEntry
    base: int
    seen: float


class BodyLookup(NamedTuple):
    """Where a body is, found also when the shard has gone on."""

    name: str
    holder: BodyObject
    place: BodyLocation


_NOWHERE = BodyObject(0, 0, "", 0, 0)


class ShardView:
    """A shard as of some entry of its log. One that has no token is not born yet: nothing was ever written."""

    def __init__(self, names: Names, folder: str) -> None:
        self.names = names
        self.folder = folder
        self.token = ""
        self.epoch = 0
        self.position = 0
        """Of the next entry."""
        self.count = 0
        self.looked = 0.0
        """When it was last seen that nothing is missing, by `clock`."""
        self.last = False
        self.removed = False
        self.buried = ""
        """The life that ended before, if its birth may still be there."""
        self.pending: UndecidedEntry | None = None
        self.parts: dict[Table, SortedRows] = {}
        self.rows = 0
        self.holders: dict[Spot, BodyObject] = {}
        self.live: dict[Spot, int] = {}
        """Bytes of bodies that are still in use, by object."""
        self.entries: list[bytes] = []
        self.before: list[bytes] = []
        """The ids of the entries of the epoch before."""
        self.refs: list[FoldRef] = []
        """All folds whose index counts, the latest one too."""
        self.tombs: list[Tombstone] = []
        self.doomed: list[Garbage] = []
        self.transactions: list[str] = []
        """Those that entries of this epoch are part of."""
        self.settled: list[Garbage] = []
        self.dropped = 0
        """How many rows are gone, or have another form, and are still in some object that is needed."""
        self.folded = 0.0
        """When the epoch began."""

    @property
    def full(self) -> bool:
        """Whether a fold has to come next."""
        return self.position >= EPOCH or self.last

    @property
    def version(self) -> Version:
        """Changes with anything that readers can see."""
        return (object_names.life_of(self.token) if self.rows or self.count else "", self.count)

    def next_name(self) -> str:
        """The name of what comes next."""
        if not self.token:
            return object_names.birth(self.folder)
        if self.full:
            return object_names.fold(self.folder, self.token)
        return object_names.entry(self.folder, self.token, self.position)

    def awaits(self, name: str) -> bool:
        """Whether an object of this name can be taken now."""
        return self.pending is None and name == self.next_name()

    # Reading

    def columns(self, space: Table, key: Key) -> Columns | None:
        """The columns of a row, or None where there is none."""
        row = self.row(space, key)
        return None if row is None else row.columns

    def row(self, space: Table, key: Key) -> Row | None:
        """A row, with its place for a body."""
        part = self.parts.get(space)
        return None if part is None else part.rows.get(key)

    def scan(self, scan: Scan, limit: int | None) -> list[Row]:
        """Rows, with their places for bodies."""
        part = self.parts.get(scan.space)
        return [] if part is None else part.scan(scan, limit)

    def locate(self, row: Row) -> BodyLookup:
        """Where the body of a row is."""
        place = unpack_place(row.body)
        if not place.length:
            return BodyLookup("", _NOWHERE, place)
        holder = self.holders[place.epoch, place.entry]
        if place.entry == IN_FOLD:
            return BodyLookup(object_names.fold(self.folder, holder.token), holder, place)
        return BodyLookup(object_names.entry(self.folder, holder.token, place.entry), holder, place)

    def everything(self) -> Iterator[tuple[Table, Row]]:
        """All rows."""
        for space, part in self.parts.items():
            for row in part.rows.values():
                yield space, row

    # Following the log

    def absorb(self, entry: LogEntry, base: int, now: float) -> None:
        """Take the next entry of the log."""
        if not self.token and object_names.folder(entry.names) == self.folder:
            self.names, self.token = entry.names, entry.token
        elif entry.names != self.names or entry.token != self.token:
            raise damaged(self.next_name())
        self.entries.append(entry.id)
        self.last = entry.last
        self.position += 1
        if entry.transaction:
            self.pending = UndecidedEntry(entry, base, now)
            self.transactions.append(entry.transaction)
        else:
            self._make(entry, base)

    def settle(self, pending: UndecidedEntry, made: bool) -> None:
        """It was decided whether an entry counts. Again is no failure."""
        if self.pending is not pending:
            return
        self.pending = None
        if made:
            self._make(pending.entry, pending.base)

    def follow(self, fold: FoldObject, base: int) -> None:
        """Take the fold that ends the epoch: what it carries is there now."""
        for indexed in fold.rows:
            if indexed.epoch != self.epoch or indexed.entry != IN_FOLD:
                continue
            space = space_of(indexed.space, self.folder)
            row = self.row(space, (*self.names, *indexed.key))
            if row is None or row.columns != indexed.columns:
                raise damaged(object_names.fold(self.folder, fold.token))
            self._drop(space, row)
            self._keep(space, row._replace(body=pack_place(BodyLocation(*indexed[3:]))))
        self._hold(fold, base)
        self._begin(fold, base)

    def load(self, indexes: Iterable[tuple[FoldObject, int]]) -> None:
        """Take what folds have indexed, the oldest first. The last one tells the rest."""
        last = None
        for fold, base in indexes:
            for tomb in fold.tombs:
                self._delete(space_of(tomb.space, self.folder), (*self.names, *tomb.prefix))
            for indexed in fold.rows:
                space = space_of(indexed.space, self.folder)
                key = (*self.names, *indexed.key)
                self._replace(space, key)
                self._keep(space, Row(key, indexed.columns, pack_place(BodyLocation(*indexed[3:]))))
            self.tombs += fold.tombs
            self._hold(fold, base)
            last = fold, base
        if last is not None:
            self.token, self.epoch = last[0].token, object_names.number_of(last[0].token)
            self._begin(*last)

    def _begin(self, fold: FoldObject, base: int) -> None:
        """Go on after a fold."""
        own = FoldRef(fold.level, fold.first, self.epoch, fold.token, base)
        self.refs = [*fold.refs, own]
        # What the oldest index covers has nothing before it that would have to be hidden.
        self.tombs = [tomb for tomb in self.tombs if tomb.epoch > self.refs[0].epoch]
        self.doomed, self.removed, self.folded = fold.doomed, fold.removed, fold.time
        self.settled, self.transactions = fold.settled, []
        if not fold.refs and fold.level == TOP:
            self.dropped = 0
        self.count, self.before = fold.count, fold.entries
        self.token, self.epoch = fold.following, self.epoch + 1
        self.position, self.last, self.entries = 0, False, []
        self.holders = {spot: holder for spot, holder in self.holders.items() if self.live.get(spot, 0)}
        self.live = {spot: size for spot, size in self.live.items() if size}

    def _hold(self, fold: FoldObject, base: int) -> None:
        for holder in fold.holders:
            whole = holder._replace(base=base) if holder.token == fold.token and holder.entry == IN_FOLD else holder
            self.holders[holder.epoch, holder.entry] = whole

    def _make(self, entry: LogEntry, base: int) -> None:
        position = self.position - 1
        self.count += 1
        for deleted in entry.deleted:
            space = space_of(deleted.space, self.folder)
            if self._delete(space, (*self.names, *deleted.prefix)) and self.refs:
                # Also where the row is of this epoch: an older index may know an older form of it.
                self.tombs.append(Tombstone(self.epoch, deleted.space, deleted.prefix))
        offset = 0
        for written in entry.written:
            space, key = space_of(written.space, self.folder), (*self.names, *written.key)
            self._replace(space, key)
            place = BodyLocation(self.epoch, position, offset, written.length, written.check)
            self._keep(space, Row(key, written.columns, pack_place(place)))
            offset += written.length
        self.holders[self.epoch, position] = BodyObject(self.epoch, position, self.token, base, offset)

    def _replace(self, space: Table, key: Key) -> None:
        """Let go of a row, if it is there: it has another form now."""
        old = self.row(space, key)
        if old is not None:
            self._drop(space, old)
            self.dropped += 1

    def _keep(self, space: Table, row: Row) -> None:
        part = self.parts.get(space)
        if part is None:
            part = self.parts[space] = SortedRows(space)
        part.add(row)
        place = unpack_place(row.body)
        spot = (place.epoch, place.entry)
        self.live[spot] = self.live.get(spot, 0) + place.length
        self.rows += 1

    def _drop(self, space: Table, row: Row) -> None:
        self.parts[space].remove(row)
        place = unpack_place(row.body)
        spot = (place.epoch, place.entry)
        self.live[spot] = self.live.get(spot, 0) - place.length  # 0, where all bodies in it are empty
        self.rows -= 1

    def _delete(self, space: Table, prefix: Key) -> bool:
        """Remove rows. Whether there were any."""
        rows = self.scan(Scan(space, prefix), None)
        for row in rows:
            self._drop(space, row)
        self.dropped += len(rows)
        return bool(rows)
