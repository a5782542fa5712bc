"""Protects every row that the engine writes, and checks every row that it reads.

A row gets its checksum here, once, on every store: over its table, its key, its columns and its record. What the
engine reads of one line was checked, so no other part of it computes or compares checksums. Left out are rows that can
be rebuilt, since servers store them in forms of their own, and the journals of wrappers, which are below the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.interface import Backend, Batch, Change, Create, Ensure, Get, Put, Query, Row
from holdfast.backends.tables import JOURNAL, LINES, READABLE, STEPS, WORDS, Table
from holdfast.backends.wrappers import Wrapper
from holdfast.codec.envelope import DAMAGED, RecordContext, expose, protect, strip
from holdfast.errors import CorruptError, HoldfastError

_UNPROTECTED = frozenset(table.name for table in (JOURNAL, WORDS, *READABLE))
_WRITES = (Create, Ensure, Put)


def protect_row(table: Table, row: Row) -> Row:
    """Return a row as it is stored."""
    if table.name in _UNPROTECTED:
        return row
    key, columns, record = row
    return Row(key, columns, protect(record, RecordContext(table.name, key, columns)))


def check_row(table: Table, row: Row) -> Row:
    """Return a stored row with its record as the body. `CorruptError` if any byte of it differs."""
    if table.name in _UNPROTECTED:
        return row
    key, columns, body = row
    return Row(key, columns, expose(body, RecordContext(table.name, key, columns)))


def strip_row(table: Table, row: Row) -> Row:
    """Return a stored row with its record as the body, unchecked."""
    return row if table.name in _UNPROTECTED else row._replace(body=strip(row.body))


def is_intact(table: Table, row: Row) -> bool:
    """Return whether a stored row is what was written."""
    try:
        check_row(table, row)
    except CorruptError:
        return False
    except HoldfastError:
        return True  # sealed, or from a newer release: a copy would not repair that
    return True


class CheckedBackend(Wrapper):
    """The store as the engine uses it. `inner` has the rows as they are stored."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        inner.set_row_check(is_intact)

    async def apply(self, batch: Batch) -> int | None:
        return await self.inner.apply([_protect_change(change) for change in batch])

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        found = await self.inner.read(queries)
        return [_check_answer(query, rows) if rows else rows for query, rows in zip(queries, found, strict=True)]


def _protect_change(change: Change) -> Change:
    if isinstance(change, _WRITES) and change.space.name not in _UNPROTECTED:
        table, (key, columns, record) = change
        return type(change)(table, Row(key, columns, protect(record, RecordContext(table.name, key, columns))))
    return change


def _check_answer(query: Query, rows: list[Row]) -> list[Row]:
    table = query.space
    if table.name in _UNPROTECTED:
        return rows
    if isinstance(query, Get):
        check = _check_listed if table is STEPS and len(query.keys) > 1 else check_row
        return [check(table, row) for row in rows]
    if not query.bodies:
        return [Row(row[0], row[1]) if row[2] else row for row in rows]
    if table is LINES:
        # A list of lines: a damaged row must not hide the others. What uses the line gets its row by the key.
        return [strip_row(table, row) for row in rows]
    if table is STEPS:
        return [_check_listed(table, row) for row in rows]
    return [check_row(table, row) for row in rows]


def _check_listed(table: Table, row: Row) -> Row:
    """Return a row from a list. If it is damaged, its record cannot be opened; the others in the list can."""
    try:
        return check_row(table, row)
    except CorruptError:
        return row._replace(body=DAMAGED)
