"""The journal of a store that has a copy: what was written, entry by entry, in order.

An entry has the changes of a batch with their conditions. These held in the local store, so that they hold in the copy,
unless one of the two was written directly.

An entry is one or more rows of the table `JOURNAL`, numbered without gaps, written in the same batch as the changes
that it records. Each batch expects the last row to exist, so that a writer with an outdated number is refused. The last
row is never removed; the first is an empty entry.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Put, Row, Scan
from holdfast.backends.runtime.group_commit import body_bytes
from holdfast.backends.tables import JOURNAL, TABLES, Key, plain_text
from holdfast.byte_reader import ByteReader, packed_form
from holdfast.errors import InvalidError

_MORE, _END = b"\x00", b"\x01"
_HEAD = 9

LINE: Key = ("", "journal")
PIECE = (1 << 20) - _HEAD
"""The bytes of an entry in a row: with the header, what any store takes."""

_TABLES = {table.name: table for table in TABLES}
_WRITES: dict[str, type[Create | Ensure | Put]] = {"create": Create, "ensure": Ensure, "put": Put}
_CHANGES = packed_form(list[list[Any]])


class JournalRow(NamedTuple):
    """The number and time of a row of the journal."""

    number: int
    time: int

    @property
    def condition(self) -> Expect:
        """That this row exists."""
        return Expect(JOURNAL, (*LINE, self.number), (self.time,))


class JournalEntry(NamedTuple):
    """The changes of one or several batches."""

    last: JournalRow
    changes: list[Change]


LAST = Scan(JOURNAL, LINE, reverse=True, limit=1, bodies=False)
"""The query for the last row."""


def row_at(number: int) -> Scan:
    """Return the query for the row with a number, without its body."""
    return Scan(JOURNAL, (*LINE, number), bodies=False)


def parse_row(row: Row) -> JournalRow:
    return JournalRow(int(row.key[2]), int(row.columns[0]))


def create_first(number: int) -> Create:
    """Return the change that starts a journal with an empty entry."""
    (_, row), _ = build_entry(JournalRow(number - 1, 0), (), 0)
    assert isinstance(row, Create)  # noqa: S101
    return row


def build_entry(after: JournalRow, changes: Sequence[Change], batches: int) -> tuple[list[Change], JournalRow]:
    """Return the changes that append an entry for so many batches, and its last row."""
    try:
        data = msgspec.msgpack.encode([_encode(change) for change in changes], enc_hook=plain_text)
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidError(f"a row has a value that no store accepts: {error}") from error
    now = time.time_ns()
    pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
    entry: list[Change] = [after.condition]
    for number, piece in enumerate(pieces, after.number + 1):
        last = number == after.number + len(pieces)
        count = batches if last else 0
        body = (_END if last else _MORE) + zlib.crc32(piece).to_bytes(4) + count.to_bytes(4) + piece
        entry.append(Create(JOURNAL, Row((*LINE, number), (now,), body)))
    return entry, JournalRow(after.number + len(pieces), now)


def ends_entry(row: Row) -> bool:
    return row.body[:1] == _END


def batch_count(row: Row) -> int:
    """Return the number of batches of the entry that ends in this row."""
    return ByteReader(row.body, "a row of the journal", row.key, at=5).number(4)


def entries(rows: Sequence[Row], where: str) -> Iterator[JournalEntry]:
    """Yield the complete entries of consecutive rows."""
    data = b""
    for row in rows:
        reader = ByteReader(row.body, f"row {parse_row(row).number} of the journal", where, at=1)
        checksum, _, piece = reader.take(4), reader.take(4), reader.rest()
        if zlib.crc32(piece).to_bytes(4) != checksum:
            raise reader.error("differs from what was written")
        data += piece
        if ends_entry(row):
            reader = ByteReader(data, "an entry of the journal", where)
            yield JournalEntry(parse_row(row), [_read_change(change, reader) for change in reader.packed(_CHANGES)])
            data = b""


def _encode(change: Change) -> tuple[Any, ...]:
    kind = type(change).__name__.lower()
    if isinstance(change, Delete):
        return (kind, change.space.name, change.prefix)
    if isinstance(change, Expect):
        return (kind, change.space.name, change.key, change.columns)
    return (kind, change.space.name, *change.row)


def _read_change(parts: list[Any], reader: ByteReader) -> Change:
    match parts:
        case ["delete", str() as name, [*key]] if name in _TABLES:
            return Delete(_TABLES[name], tuple(key))
        case ["expect", str() as name, [*key], None | [*_] as columns] if name in _TABLES:
            return Expect(_TABLES[name], tuple(key), None if columns is None else tuple(columns))
        case [str() as kind, str() as name, [*key], [*columns], bytes() as body] if kind in _WRITES and name in _TABLES:
            return _WRITES[kind](_TABLES[name], Row(tuple(key), tuple(columns), body))
    raise reader.error("has a change of an unknown kind")


def without_conditions(changes: Sequence[Change]) -> list[Change]:
    """Return changes for a copy that may have their result already."""
    return [
        Put(change.space, change.row) if isinstance(change, Create) else change
        for change in changes
        if not isinstance(change, Expect)
    ]


class MergedBatch:
    """Batches that can be applied as one: together they follow the rules for a batch."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._written: set[tuple[str, Key]] = set()
        self.size: int = 0
        self.batches: list[Batch] = []

    def add(self, batch: Batch) -> bool:
        """Add a batch, and return whether it fits."""
        size = body_bytes(batch)
        if self.batches and (self.size + size > self._max_bytes or not self._is_disjoint(batch)):
            return False
        self.size += size
        self.batches.append(batch)
        self._written.update(
            (change.space.name, change.row.key) for change in batch if isinstance(change, Create | Ensure | Put)
        )
        return True

    def _is_disjoint(self, batch: Batch) -> bool:
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
