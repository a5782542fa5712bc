"""The journal of a store that is copied elsewhere: what was written here, entry by entry, in order.

An entry is one or more rows of the space `JOURNAL`, numbered without gaps, written in the same batch as the changes
that it tells of. Each batch expects the last row to be there, so whoever writes from an outdated number is refused. The
last row is never removed; the first is an entry of nothing.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Put, Row, Scan
from holdfast.backends.runtime.group_commit import size_of
from holdfast.backends.tables import JOURNAL, TABLES, Key
from holdfast.errors import CorruptError, InvalidError

_MORE, _END = b"\x00", b"\x01"
_HEAD = 9

LINE: Key = ("", "journal")
PIECE = (1 << 20) - _HEAD
"""How many bytes of an entry a row holds: with its head, what any store takes."""

_SPACES = {space.name: space for space in TABLES}


class JournalRow(NamedTuple):
    """A row of the journal: its number and time."""

    number: int
    time: int

    @property
    def there(self) -> Expect:
        """The condition that this row is there."""
        return Expect(JOURNAL, (*LINE, self.number), (self.time,))


class JournalEntry(NamedTuple):
    """What one or several batches changed."""

    mark: JournalRow
    """That of its last row."""
    changes: list[Change]


LAST = Scan(JOURNAL, LINE, reverse=True, limit=1, bodies=False)
"""Finds the last row."""


def at(number: int) -> Scan:
    """Finds the row with a number, without what is in it."""
    return Scan(JOURNAL, (*LINE, number), bodies=False)


def mark_of(row: Row) -> JournalRow:
    """The number and time of a row."""
    return JournalRow(int(row.key[2]), int(row.columns[0]))


def first(number: int) -> Create:
    """Begins a journal, at some number."""
    made, _ = write(JournalRow(number - 1, 0), (), 0)
    found = made[1]
    assert isinstance(found, Create)  # noqa: S101 - the second of two
    return found


def write(after: JournalRow, changes: Sequence[Change], batches: int) -> tuple[list[Change], JournalRow]:
    """The changes that add an entry, and the mark of its last row."""
    try:
        data = msgspec.msgpack.encode([_flat(change) for change in changes if not isinstance(change, Expect)])
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidError(f"a row holds what no store does: {error}") from error
    now = time.time_ns()
    pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
    made: list[Change] = [after.there]
    for number, piece in enumerate(pieces, after.number + 1):
        last = number == after.number + len(pieces)
        count = batches if last else 0
        body = (_END if last else _MORE) + zlib.crc32(piece).to_bytes(4) + count.to_bytes(4) + piece
        made.append(Create(JOURNAL, Row((*LINE, number), (now,), body)))
    return made, JournalRow(after.number + len(pieces), now)


def ends(row: Row) -> bool:
    """Whether an entry ends in this row."""
    return row.body[:1] == _END


def batches_in(row: Row) -> int:
    """How many batches the entry tells of that ends in this row."""
    return int.from_bytes(row.body[5:_HEAD])


def entries(rows: Sequence[Row], where: str) -> Iterator[JournalEntry]:
    """The entries that are whole in some rows that follow each other."""
    data = b""
    for row in rows:
        checksum, piece = row.body[1:5], row.body[_HEAD:]
        if zlib.crc32(piece).to_bytes(4) != checksum:
            raise CorruptError(f"row {mark_of(row).number} of the journal is not what was written", where=where)
        data += piece
        if ends(row):
            yield JournalEntry(mark_of(row), [_change(*change) for change in msgspec.msgpack.decode(data)])
            data = b""


def _flat(change: Change) -> tuple[Any, ...]:
    if isinstance(change, Delete):
        return ("delete", change.space.name, change.prefix)
    assert not isinstance(change, Expect)  # noqa: S101 - conditions are left out
    return ("ensure" if isinstance(change, Ensure) else "put", change.space.name, *change.row)


def _change(kind: str, space: str, key: list[Any], columns: Sequence[Any] = (), body: bytes = b"") -> Change:
    if kind == "delete":
        return Delete(_SPACES[space], tuple(key))
    row = Row(tuple(key), tuple(columns), body)
    return Ensure(_SPACES[space], row) if kind == "ensure" else Put(_SPACES[space], row)


class MergedBatch:
    """Batches made into one. What the port does not let one batch do is left for the next."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._written: set[tuple[str, Key]] = set()
        self.size = 0
        """The bytes of all bodies."""
        self.batches: list[Batch] = []

    def take(self, batch: Batch) -> bool:
        """Add a batch, if it can be made together with those before it."""
        size = size_of(batch)
        if self.batches and (self.size + size > self._max_bytes or not self._apart(batch)):
            return False
        self.size += size
        self.batches.append(batch)
        self._written.update(
            (change.space.name, change.row.key) for change in batch if isinstance(change, Create | Ensure | Put)
        )
        return True

    def _apart(self, batch: Batch) -> bool:
        for change in batch:
            if isinstance(change, Delete):
                width = len(change.prefix)
                if any(
                    name == change.space.name and key[:width] == tuple(change.prefix) for name, key in self._written
                ):
                    return False
            elif not isinstance(change, Expect) and (change.space.name, change.row.key) in self._written:
                return False
        return True
