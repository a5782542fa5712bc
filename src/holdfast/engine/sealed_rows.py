"""Rows that are stored sealed, by an authenticated cipher.

Nothing uses this yet: it is what encryption needs of the stored format, so that it is the same before and after.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence

from msgspec import MsgspecError
from msgspec.msgpack import decode as unpack
from msgspec.msgpack import encode as pack

from holdfast.backends.interface import Row
from holdfast.backends.tables import FOLDS, NODES, STEPS, TABLES, Scalar, Table
from holdfast.codec.envelope import DAMAGED, RecordContext, Sealer, damaged_error, seal, unseal
from holdfast.engine.checked_rows import UNPROTECTED, RowCodec
from holdfast.errors import CorruptError, HoldfastError, InvalidError

_STABLE_NAMES: dict[str, tuple[str, ...]] = {
    STEPS.name: ("hash",),
    FOLDS.name: ("hash",),
    NODES.name: ("node",),
}
"""The columns that name a record for good, where that is not the rest of the key: a rewrite numbers its nodes anew."""


class _SealedTable:
    """The positions in a row of the columns that a seal is about."""

    def __init__(self, table: Table) -> None:
        everything = list(table.all_columns)
        names = _STABLE_NAMES.get(table.name, tuple(table.key)[2:])
        self.name = tuple(everything.index(each) for each in names)
        indexed = {column for columns in table.indexes.values() for column in columns}
        self.hidden = tuple(
            number
            for number, (column, kind) in enumerate(table.columns.items())
            if issubclass(kind, str) and column not in indexed
        )


_SEALED = {table.name: _SealedTable(table) for table in TABLES if table.name not in UNPROTECTED}


class SealedRowCodec(RowCodec):
    """Stores rows sealed: key, columns and record are inside of the body, and columns of text are digests outside.

    The seal covers the table, the tenant, the line and the stable name of the record: a body that was moved anywhere
    else does not open. Columns that stores compare or order by are outside as well, and must be those inside.

    `keys` are further keys to open rows with, by id.
    """

    hides_columns = True

    def __init__(self, sealer: Sealer, keys: Mapping[bytes, Sealer] | None = None) -> None:
        self._sealer = sealer
        self._keys = {**(keys or {}), sealer.key_id: sealer}

    def encode(self, table: Table, row: Row) -> Row:
        if table.name in UNPROTECTED:
            return row
        if row.body == DAMAGED:
            raise damaged_error(_where(table, row))
        try:
            content, associated = pack((row.key[2:], row.columns, row.body)), _associated(table, row)
        except UnicodeEncodeError:
            where = ascii((row.key, row.columns))
            raise InvalidError("a name or a column is not text: it has lone surrogates", where=where) from None
        body = seal(content, associated, self._sealer)
        return Row(row.key, self.columns(table, row.columns), body)

    def decode(self, table: Table, row: Row) -> Row:
        if table.name in UNPROTECTED:
            return row
        where = _where(table, row)
        content = unseal(row.body, _associated(table, row), self._keys, where)
        try:
            key, columns, record = unpack(content)
        except (MsgspecError, ValueError, TypeError):
            raise CorruptError("a sealed row is not one", where=where) from None
        opened = Row((*row.key[:2], *key), tuple(columns), record)
        if opened.key != row.key or not self._shows(table, opened, row):
            raise CorruptError("a row was damaged: its columns are not those in its seal", where=where)
        return opened

    def salvage(self, table: Table, row: Row) -> Row:
        try:
            return self.decode(table, row)
        except HoldfastError:
            return row._replace(body=b"")  # nothing of it can be read

    def columns(self, table: Table, row: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        return self._digests(table, row, self._sealer)

    def _shows(self, table: Table, opened: Row, stored: Row) -> bool:
        """Return whether the columns outside of a seal are those inside, under any of the keys."""
        return any(self._digests(table, opened.columns, key) == stored.columns for key in self._keys.values())

    def _digests(self, table: Table, columns: tuple[Scalar, ...], sealer: Sealer) -> tuple[Scalar, ...]:
        hidden = _SEALED[table.name].hidden if table.name in _SEALED else ()
        outside = list(columns)
        for number in hidden:
            text = outside[number]
            if isinstance(text, str) and text:
                digest = sealer.digest(pack((table.name, number, text)))
                outside[number] = urlsafe_b64encode(digest[:15]).decode()
        return tuple(outside)


def _associated(table: Table, row: Row) -> bytes:
    """Return what a seal covers besides the content."""
    whole: Sequence[Scalar] = (*row.key, *row.columns)
    return pack((table.name, row.key[:2], [whole[number] for number in _SEALED[table.name].name]))


def _where(table: Table, row: Row) -> str:
    return str(RecordContext(table.name, row.key, row.columns))
