"""What can still be read of a shard of which an object is damaged.

Whoever follows a shard needs every object of it: one that is damaged hides all others. Here they are read one by one,
in the order in which they came, and whatever each says by itself counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.backends.port import Row
from holdfast.backends.shards import naming
from holdfast.backends.shards.formats import (
    BY_NAME,
    DECISION,
    ENTRY,
    FOLD,
    IN_FOLD,
    Decision,
    Entry,
    Fold,
    Indexed,
    base_of,
    check_of,
    decode,
)
from holdfast.backends.spaces import Key, Space
from holdfast.errors import Corrupt, Unsupported


def salvage_shard(folder: str, objects: Mapping[str, bytes], decisions: Mapping[str, bytes]) -> list[tuple[Space, Row]]:
    """The rows that objects of a shard hold, by their names, as far as they are sound; `decisions` are those of all
    transactions."""
    reading = _Reading(objects, decisions)
    for name in sorted(objects, key=lambda name: _order(name, folder)):
        reading.take(name, _order(name, folder))
    return [(space, row) for (space, _), row in reading.rows.items()]


def _order(name: str, folder: str) -> tuple[int, int]:
    """When an object came: its epoch, and its place in that. A fold comes last."""
    parts = name[len(folder) + 1 :].split("/")
    if len(parts) < 2:
        return (0, 0)
    number = naming.number_of(parts[1])
    return (number, 1 << 30) if parts[0] == "fold" else (number, int(parts[2]))


class _Reading:
    def __init__(self, objects: Mapping[str, bytes], decisions: Mapping[str, bytes]) -> None:
        self._objects = objects
        self._decisions = decisions
        self._at: dict[tuple[int, int], tuple[str, int]] = {}
        """Objects by epoch and place, and where their bodies begin."""
        self.rows: dict[tuple[Space, Key], Row] = {}

    def take(self, name: str, order: tuple[int, int]) -> None:
        """What one object says, if it is sound."""
        data = self._objects[name]
        try:
            if order[1] == 1 << 30:
                fold = decode(FOLD, Fold, data, name)
                self._at[order[0], IN_FOLD] = (name, base_of(data, name))
                self._fold(fold)
            else:
                entry = decode(ENTRY, Entry, data, name)
                self._at[order] = (name, base_of(data, name))
                if not entry.stub and self._counts(entry):
                    self._entry(entry, data, base_of(data, name))
        except (Corrupt, Unsupported):
            return

    def _counts(self, entry: Entry) -> bool:
        """Whether the transaction that an entry is part of, if it is, was made."""
        if not entry.transaction:
            return True
        name = naming.transaction(entry.transaction)
        data = self._decisions.get(name)
        # What was decided is removed once it was folded; and what was not made is not folded.
        return data is not None and decode(DECISION, Decision, data, name).made

    def _entry(self, entry: Entry, data: bytes, offset: int) -> None:
        for deleted in entry.deleted:
            self._delete(deleted.space, (*entry.names, *deleted.prefix))
        for written in entry.written:
            body = data[offset : offset + written.length]
            offset += written.length
            self._put(written.space, (*entry.names, *written.key), written.columns, body, written.length, written.check)

    def _fold(self, fold: Fold) -> None:
        for tomb in fold.tombs:
            self._delete(tomb.space, (*fold.names, *tomb.prefix))
        for indexed in fold.rows:
            place = self._at.get((indexed.epoch, indexed.entry))
            body = b"" if place is None else self._body(indexed, *place)
            key = (*fold.names, *indexed.key)
            self._put(indexed.space, key, indexed.columns, body, indexed.length, indexed.check)

    def _body(self, indexed: Indexed, name: str, base: int) -> bytes:
        return self._objects[name][base + indexed.offset :][: indexed.length]

    def _put(self, space: str, key: Key, columns: tuple[object, ...], body: bytes, length: int, check: int) -> None:
        known = BY_NAME.get(space)
        if known is not None and len(body) == length and check_of(body) == check:
            self.rows[known, key] = Row(key, columns, body)  # type: ignore[arg-type]

    def _delete(self, space: str, prefix: Key) -> None:
        known = BY_NAME.get(space)
        for each in [each for each in self.rows if each[0] is known and each[1][: len(prefix)] == prefix]:
            del self.rows[each]
