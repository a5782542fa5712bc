"""The rows of a line, as the chunks of a backup make them."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.backends.interface import Row
from holdfast.backends.tables import Key, Scalar, Table
from holdfast.codec.envelope import RecordContext, repack_body, strip
from holdfast.engine.checked_rows import RowCodec
from holdfast.errors import CorruptError
from holdfast.maintenance.backup.capture import BACKED_UP
from holdfast.maintenance.backup.format import ChunkIndex, starts_with

_KINDS = {table.name: tuple(table.all_columns.values())[2:] for table in BACKED_UP}
"""The types of the columns of rows in backups, without tenant and line."""


class RepackedRow(Row):
    """A row whose checksum was computed when it was read: a backup has none of it, and digests of blocks instead."""

    __slots__ = ()

    def _replace(self, **values: Any) -> Row:  # type: ignore[override] # a changed row is to be checked
        return Row(*self)._replace(**values)


class BackupRows(RowCodec):
    """Rows with checksums, which are compared where they are in the backup."""

    def decode(self, table: Table, row: Row) -> Row:
        if type(row) is RepackedRow:
            return Row(row.key, row.columns, strip(row.body))
        return super().decode(table, row)


BACKUP_ROWS = BackupRows()


class LineRow(NamedTuple):
    """A row of a line, without its key. The body is as it is stored; or unpacked, as `unpack_body` returns it."""

    columns: tuple[Scalar, ...]
    body: bytes
    is_unpacked: bool = False

    def stored(self, table: str, key: Key) -> Row:
        """Return the row as it is stored, given its whole key."""
        if not self.is_unpacked:
            return Row(key, self.columns, self.body)
        return RepackedRow(key, self.columns, repack_body(self.body, RecordContext(table, key, self.columns)))


class LineRows:
    """All rows of a line, by table and key without tenant and line."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Key, LineRow]] = {}
        self.row = Row((), ())
        """The row of the line itself, as it is stored, where it is needed."""
        self.removed: list[tuple[str, Key]] = []
        """What the chunks removed, which may be in chunks before them."""
        self.size = 0

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
            raise CorruptError("the rows of a backup have other lengths than it says", where=where)
        self.size += at
