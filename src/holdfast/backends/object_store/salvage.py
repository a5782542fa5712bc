"""What can still be read of a shard of which an object is damaged.

Whoever follows a shard needs every object of it: one that is damaged hides all others. Here they are read one by one,
in the order in which they came, and whatever each says by itself counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.backends.interface import Row
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import (
    BY_NAME,
    ENTRY,
    FOLD,
    IN_FOLD,
    FoldObject,
    IndexedRow,
    LogEntry,
    base_of,
    check_of,
    decode,
)
from holdfast.backends.object_store.object_names import Names
from holdfast.backends.tables import Key, Table
from holdfast.errors import CorruptError, UnsupportedError

_LAST = 1 << 30
"""The place of a fold in its epoch."""


class SalvagedShard(NamedTuple):
    """What could be read of a shard. The names are None where nothing tells them."""

    names: Names | None
    rows: list[tuple[Table, Row]]


def current_life(folder: str, objects: Mapping[str, bytes]) -> str:
    """The life that a shard has: as its birth says, or else the latest that has not ended. Objects are in the order in
    which they were made. Empty if there is none."""
    lives = [object_names.life_of(token) for name in objects if (token := token_of(name, folder))]
    born = _entry(objects.get(object_names.birth(folder), b""), object_names.birth(folder))
    if born is not None:
        lives.append(object_names.life_of(born.token))
    ended = {object_names.life_of(fold.token) for fold in _folds(folder, objects) if fold.removed}
    return next((life for life in reversed(lives) if life not in ended), "")


def salvage_shard(folder: str, objects: Mapping[str, bytes], made: Mapping[str, bool]) -> SalvagedShard:
    """The rows that objects of a shard hold, by their names, as far as they are sound; `made` are the transactions of
    which it is known what became of them."""
    life = current_life(folder, objects)
    birth = object_names.birth(folder)
    own = [name for name in objects if name == birth or object_names.life_of(token_of(name, folder)) == life]
    reading = _Reading(objects, made, life)
    for name in sorted(own, key=lambda name: _order(name, folder)):
        reading.take(name, _order(name, folder))
    return SalvagedShard(reading.names, [(space, row) for (space, _), row in reading.rows.items()])


def token_of(name: str, folder: str) -> str:
    """The token in the name of an object in a shard's folder; empty for its birth, which has none."""
    parts = name[len(folder) + 1 :].split("/")
    return parts[1] if len(parts) > 1 else ""


def open_transaction(folder: str, objects: Mapping[str, bytes]) -> str:
    """The transaction that the last entry of a shard is part of, if it is: nobody may have decided it yet."""
    life = current_life(folder, objects)
    own = [
        name
        for name in objects
        if object_names.life_of(token_of(name, folder)) == life or name == object_names.birth(folder)
    ]
    last = max(own, key=lambda name: _order(name, folder), default="")
    entry = _entry(objects.get(last, b""), last)
    return "" if entry is None else entry.transaction


def _entry(data: bytes, name: str) -> LogEntry | None:
    try:
        return decode(ENTRY, LogEntry, data, name)
    except (CorruptError, UnsupportedError):
        return None


def _folds(folder: str, objects: Mapping[str, bytes]) -> list[FoldObject]:
    found = []
    for name, data in objects.items():
        if name.startswith(f"{object_names.folds(folder)}/"):
            try:
                found.append(decode(FOLD, FoldObject, data, name))
            except (CorruptError, UnsupportedError):
                continue
    return found


def _order(name: str, folder: str) -> tuple[int, int]:
    """When an object came: its epoch, and its place in that. A fold comes last."""
    parts = name[len(folder) + 1 :].split("/")
    if len(parts) < 2:
        return (0, 0)
    number = object_names.number_of(parts[1])
    return (number, _LAST) if parts[0] == "fold" else (number, int(parts[2]))


class _Reading:
    def __init__(self, objects: Mapping[str, bytes], made: Mapping[str, bool], life: str) -> None:
        self._objects = objects
        self._made = made
        self._life = life
        self._at: dict[tuple[int, int], tuple[str, int]] = {}
        """Objects by epoch and place, and where their bodies begin."""
        self._folds: dict[str, FoldObject] = {}
        self.names: Names | None = None
        self.rows: dict[tuple[Table, Key], Row] = {}

    def take(self, name: str, order: tuple[int, int]) -> None:
        """What one object says, if it is sound."""
        data = self._objects[name]
        try:
            if order[1] == _LAST:
                fold = decode(FOLD, FoldObject, data, name)
                self._at[order[0], IN_FOLD] = (name, base_of(data, name))
                self._fold(fold)
            else:
                entry = decode(ENTRY, LogEntry, data, name)
                if object_names.life_of(entry.token) != self._life:
                    return  # the birth of another
                self._at[order] = (name, base_of(data, name))
                if not entry.stub and self._counts(entry):
                    self._entry(entry, data, base_of(data, name))
        except (CorruptError, UnsupportedError):
            return

    def _counts(self, entry: LogEntry) -> bool:
        """Whether the transaction that an entry is part of, if it is, was made."""
        # What was decided is removed once it was folded; and what was not made is not folded.
        return not entry.transaction or self._made.get(entry.transaction, False)

    def _entry(self, entry: LogEntry, data: bytes, offset: int) -> None:
        self.names = entry.names
        for deleted in entry.deleted:
            self._delete(deleted.space, (*entry.names, *deleted.prefix))
        for written in entry.written:
            body = data[offset : offset + written.length]
            offset += written.length
            self._put(written.space, (*entry.names, *written.key), written.columns, body, written.length, written.check)

    def _fold(self, fold: FoldObject) -> None:
        self.names = fold.names
        self._folds[fold.token] = fold
        before: dict[tuple[Table, Key], Row] = {}
        if all(ref.token in self._folds for ref in fold.refs):
            # All rows are in these. What else was read has gone, though an old object still has it.
            before, self.rows = self.rows, {}
            for ref in fold.refs:
                self._index(self._folds[ref.token], before)
        self._index(fold, before)

    def _index(self, fold: FoldObject, before: Mapping[tuple[Table, Key], Row]) -> None:
        for tomb in fold.tombs:
            self._delete(tomb.space, (*fold.names, *tomb.prefix))
        for indexed in fold.rows:
            place = self._at.get((indexed.epoch, indexed.entry))
            key = (*fold.names, *indexed.key)
            body = b"" if place is None else self._body(indexed, *place)
            if len(body) != indexed.length or check_of(body) != indexed.check:
                known = before.get((BY_NAME[indexed.space], key)) if indexed.space in BY_NAME else None
                body = b"" if known is None else known.body  # an older object may have it too
            self._put(indexed.space, key, indexed.columns, body, indexed.length, indexed.check)

    def _body(self, indexed: IndexedRow, name: str, base: int) -> bytes:
        return self._objects[name][base + indexed.offset :][: indexed.length]

    def _put(self, space: str, key: Key, columns: tuple[object, ...], body: bytes, length: int, check: int) -> None:
        known = BY_NAME.get(space)
        if known is None:
            return
        if len(body) == length and check_of(body) == check:
            self.rows[known, key] = Row(key, columns, body)  # type: ignore[arg-type]
        else:
            self.rows.pop((known, key), None)  # an older form of it is not what was there

    def _delete(self, space: str, prefix: Key) -> None:
        known = BY_NAME.get(space)
        for each in [each for each in self.rows if each[0] is known and each[1][: len(prefix)] == prefix]:
            del self.rows[each]
