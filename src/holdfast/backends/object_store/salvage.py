"""Reads what is intact of a shard with damaged objects.

Other readers need every object of a shard: one that is damaged hides the rest. Here each is read on its own, in the
order of creation, and all that is intact is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.backends.interface import Row
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import (
    ENTRY,
    FOLD,
    IN_FOLD,
    TABLES_BY_NAME,
    FoldObject,
    IndexedRow,
    LogEntry,
    bodies_start,
    checksum,
    decode,
)
from holdfast.backends.object_store.object_names import ShardNames
from holdfast.backends.tables import Key, Table
from holdfast.errors import CorruptError, UnsupportedError

_FOLD_POSITION = 1 << 30
"""The position of a fold in its epoch: after all entries."""


class SalvagedShard(NamedTuple):
    """The intact rows of a shard. The names are None if no object has them."""

    names: ShardNames | None
    rows: list[tuple[Table, Row]]


def current_generation(folder: str, objects: Mapping[str, bytes]) -> str:
    """Return the current generation of a shard: that of its first object, or else the latest that has not ended; empty
    if there is none. `objects` are in the order of creation."""
    generations = [
        object_names.generation_of(token) for name in objects if (token := object_names.token_of(name, folder))
    ]
    first = _decode_entry(objects.get(object_names.first_object(folder), b""), object_names.first_object(folder))
    if first is not None:
        generations.append(object_names.generation_of(first.token))
    ended = {object_names.generation_of(fold.token) for fold in _decode_folds(folder, objects) if fold.removed}
    return next((generation for generation in reversed(generations) if generation not in ended), "")


def salvage_shard(folder: str, objects: Mapping[str, bytes], decisions: Mapping[str, bool]) -> SalvagedShard:
    """Read the intact rows of a shard. `objects` are its objects by name, `decisions` those of transactions."""
    generation = current_generation(folder, objects)
    reader = _SalvageReader(objects, decisions, generation)
    for name in _sort_current(folder, objects, generation):
        reader.read(name, _order(name, folder))
    return SalvagedShard(reader.names, [(space, row) for (space, _), row in reader.rows.items()])


def open_transaction(folder: str, objects: Mapping[str, bytes]) -> str:
    """Return the transaction of the last entry of a shard, which may be undecided; empty if there is none."""
    names = _sort_current(folder, objects, current_generation(folder, objects))
    entry = _decode_entry(objects[names[-1]], names[-1]) if names else None
    return "" if entry is None else entry.transaction


def _sort_current(folder: str, objects: Mapping[str, bytes], generation: str) -> list[str]:
    """Return the names of the first object and of those of a generation, in order."""
    first = object_names.first_object(folder)
    own = [
        each
        for each in objects
        if each == first or object_names.generation_of(object_names.token_of(each, folder)) == generation
    ]
    return sorted(own, key=lambda name: _order(name, folder))


def _decode_entry(data: bytes, name: str) -> LogEntry | None:
    try:
        return decode(ENTRY, LogEntry, data, name)
    except (CorruptError, UnsupportedError):
        return None


def _decode_folds(folder: str, objects: Mapping[str, bytes]) -> list[FoldObject]:
    found = []
    for name, data in objects.items():
        if name.startswith(f"{object_names.folds(folder)}/"):
            try:
                found.append(decode(FOLD, FoldObject, data, name))
            except (CorruptError, UnsupportedError):
                continue
    return found


def _order(name: str, folder: str) -> tuple[int, int]:
    """Return the epoch of an object, and its position there. A fold is last."""
    parts = name[len(folder) + 1 :].split("/")
    if len(parts) < 2:
        return (0, 0)
    number = object_names.epoch_of(parts[1])
    return (number, _FOLD_POSITION) if parts[0] == "fold" else (number, int(parts[2]))


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

    def read(self, name: str, order: tuple[int, int]) -> None:
        """Read one object, if it is intact."""
        data = self._objects[name]
        try:
            if order[1] == _FOLD_POSITION:
                fold = decode(FOLD, FoldObject, data, name)
                self._objects_by_position[order[0], IN_FOLD] = (name, bodies_start(data, name))
                self._read_fold(fold)
            else:
                entry = decode(ENTRY, LogEntry, data, name)
                if object_names.generation_of(entry.token) != self._generation:
                    return  # of another generation
                self._objects_by_position[order] = (name, bodies_start(data, name))
                if not entry.stub and self._is_committed(entry):
                    self._read_entry(entry, data, bodies_start(data, name))
        except (CorruptError, UnsupportedError):
            return

    def _is_committed(self, entry: LogEntry) -> bool:
        """Whether an entry is part of no transaction, or of one that was committed."""
        # Decisions are deleted after their entries were folded, and entries that are not committed are not folded.
        return not entry.transaction or self._decisions.get(entry.transaction, False)

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
            for ref in fold.refs:
                self._read_index(self._folds[ref.token], before)
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
        if len(body) == length and checksum(body) == check:
            self.rows[table, key] = Row(key, columns, body)  # type: ignore[arg-type]
        else:
            self.rows.pop((table, key), None)  # an older version would be wrong

    def _delete(self, space: str, prefix: Key) -> None:
        table = TABLES_BY_NAME.get(space)
        for each in [each for each in self.rows if each[0] is table and each[1][: len(prefix)] == prefix]:
            del self.rows[each]
