"""The rows of a line, as the chunks of a backup make them, and as they were at an earlier point."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from holdfast.backends.interface import Row
from holdfast.backends.tables import (
    BRANCHES,
    EVENTS,
    FOLDS,
    LINES,
    LINKS,
    REFS,
    STEPS,
    TABLES,
    WRITES,
    Key,
    Scalar,
    Table,
)
from holdfast.codec.envelope import RecordContext, repack
from holdfast.engine.checked_rows import CHECKSUMS, RowCodec
from holdfast.engine.row_format import Line, info_of, info_row
from holdfast.errors import CorruptError
from holdfast.maintenance.backup.capture import BACKED_UP
from holdfast.maintenance.backup.format import ChunkIndex, LineEntry, starts_with

TABLES_BY_NAME = {table.name: table for table in TABLES}

_KINDS = {table.name: tuple(table.all_columns.values())[2:] for table in BACKED_UP}
"""The types of the columns of rows in backups, without tenant and line."""


class OpenRow(Row):
    """A row of a backup with its record as the body: digests of blocks protect it, and not a checksum of its own."""

    __slots__ = ()

    def _replace(self, **values: Any) -> Row:  # type: ignore[override] # a changed row is to be checked
        return Row(*self)._replace(**values)


class BackupRows(RowCodec):
    """Rows of a backup: those without checksums are as they were read, and others are checked."""

    async def field_names(self, tenant: str) -> None:
        """A backup has no index of fields: what is restored gets its own."""

    def decode(self, table: Table, row: Row) -> Row:
        return row if type(row) is OpenRow else super().decode(table, row)

    def salvage(self, table: Table, row: Row) -> Row:
        return row if type(row) is OpenRow else super().salvage(table, row)


BACKUP_ROWS = BackupRows()


class LineRow(NamedTuple):
    """A row of a line, without its key. The body is as it is stored; or unpacked, as `unpack_body` returns it."""

    columns: tuple[Scalar, ...]
    body: bytes
    is_unpacked: bool = False

    def stored(self, table: str, key: Key) -> Row:
        """Return the row as it is stored, given its whole key."""
        row = self.in_backup(table, key)
        return CHECKSUMS.encode(TABLES_BY_NAME[table], row) if type(row) is OpenRow else row

    def in_backup(self, table: str, key: Key) -> Row:
        """Return the row as the store that is a backup has it, given its whole key."""
        if not self.is_unpacked:
            return Row(key, self.columns, self.body)
        return OpenRow(key, self.columns, repack(self.body, RecordContext(table, key, self.columns)))


class LineRows:
    """All rows of a line, by table and key without tenant and line."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Key, LineRow]] = {}
        self.row: Row = Row((), ())
        """The row of the line itself, as it is stored, where it is needed."""
        self.removed: list[tuple[str, Key]] = []
        """What the chunks removed, which may be in chunks before them."""
        self.size: int = 0

    def apply(self, index: ChunkIndex, bodies: bytes, where: str) -> None:
        """Apply a chunk."""
        self.removed += index.removed
        for name, prefix in index.removed:
            rows = self.tables.get(name, {})
            if not prefix:
                rows.clear()
            elif rows.pop(prefix, None) is None:
                for key in [key for key in rows if starts_with(key, prefix)]:
                    del rows[key]
        at = 0
        for name, listed in index.rows:
            kinds = _KINDS.get(name)
            if kinds is None:
                raise CorruptError(f"a backup has rows of an unknown table {name!r}", where=where)
            rows = self.tables.setdefault(name, {})
            for key, columns, length in listed:
                if tuple(map(type, (*key, *columns))) != kinds:
                    raise CorruptError(f"a row of {name} in a backup has other columns", where=where)
                size = length if length >= 0 else -length - 1
                rows[key] = LineRow(columns, bodies[at : at + size], length < 0)
                at += size
        if at != len(bodies):
            raise CorruptError("the rows of a backup do not have the recorded lengths", where=where)
        self.size += at


class Cut(NamedTuple):
    """A line at a point: the backups' entries of it that are needed, and what makes its rows from theirs."""

    sources: Sequence[LineEntry]
    make: Callable[[Sequence[LineRows]], Awaitable[LineRows]]


def at_step(id: str, before: Cut) -> Cut:
    """Return a line without everything after a step: ids increase."""

    async def make(sources: Sequence[LineRows]) -> LineRows:
        found = await before.make(sources)
        lengths = dict[Scalar, int]()
        for (branch, seq), row in sorted(found.tables.get(STEPS.name, {}).items()):
            lengths.setdefault(branch, 0)
            if lengths[branch] == seq and str(row.columns[0]) <= id:
                lengths[branch] = int(seq) + 1
        _truncate(found, lengths)
        return found

    return Cut(before.sources, make)


def whole(entry: LineEntry) -> Cut:
    """Return a line as a backup has it."""

    async def make(sources: Sequence[LineRows]) -> LineRows:
        return sources[0]

    return Cut([entry], make)


def _truncate(found: LineRows, lengths: dict[Scalar, int]) -> None:
    """Leave so many steps of each branch, and what belongs to them."""
    steps = found.tables.get(STEPS.name, {})
    removed = {str(row.columns[0]) for key, row in steps.items() if int(key[1]) >= lengths.get(key[0], 0)}
    removed -= {str(row.columns[0]) for key, row in steps.items() if int(key[1]) < lengths.get(key[0], 0)}
    removed.discard("")
    for table in (STEPS, FOLDS):
        rows = found.tables.get(table.name, {})
        for key in [key for key in rows if int(key[1]) >= lengths.get(key[0], 0)]:
            del rows[key]
    branches = found.tables.get(BRANCHES.name, {})
    for key in [key for key in branches if not lengths.get(key[0])]:
        del branches[key]
    for table, column in ((WRITES, 0), (EVENTS, 0), (LINKS, 1)):
        rows = found.tables.get(table.name, {})
        for key in [key for key in rows if key[column] in removed]:
            del rows[key]
    refs = found.tables.get(REFS.name, {})
    for key in [key for key, ref in refs.items() if ref.columns[0] in removed]:
        del refs[key]
    info = info_of(CHECKSUMS.decode(LINES, found.row))
    ids = [str(row.columns[0]) for row in found.tables.get(STEPS.name, {}).values()]
    events, last = found.tables.get(EVENTS.name, {}), max(ids, default="")
    for key in [key for key in events if str(key[0]) > last]:  # also of later steps that were pruned
        del events[key]
    switched_from = info.switched_from if info.switched_from in ids else ""
    info = info._replace(pruned=ids.count(""), switched_from=switched_from)
    line = Line(*map(str, found.row.key))
    found.row = CHECKSUMS.encode(LINES, info_row(line, info)) if found.row.key else Row((), ())
