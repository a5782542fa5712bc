"""Protects every row that the engine writes, and checks every row that it reads.

A row gets its checksum here, once, on every store: over its table, its key, its columns and its record. What the
engine reads with bodies was checked, so no other part of it computes or compares checksums; rows that are read without
their bodies, for lists, are unchecked. Left out are rows that can be rebuilt, since servers store them in forms of
their own, and the journals of wrappers, which are below the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.backends.interface import Backend, Batch, Change, Create, Ensure, Put, Query, Row, Scan
from holdfast.backends.tables import JOURNAL, READABLE, WORDS, Table
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


async def read_despite_damage(backend: Backend, queries: Sequence[Query]) -> list[list[Row]]:
    """Read rows for a list, in which a damaged one must not hide the others: its record is `DAMAGED`, which raises
    `CorruptError` when it is opened and when it is stored. Its columns cannot be trusted."""
    stored = backend.inner if isinstance(backend, CheckedBackend) else backend
    found = await stored.read(queries)
    return [_check_answer(query, rows, _mark_damage) for query, rows in zip(queries, found, strict=True)]


def _protect_change(change: Change) -> Change:
    if isinstance(change, _WRITES) and change.space.name not in _UNPROTECTED:
        table, (key, columns, record) = change
        return type(change)(table, Row(key, columns, protect(record, RecordContext(table.name, key, columns))))
    return change


def _check_answer(query: Query, rows: list[Row], check: Callable[[Table, Row], Row] = check_row) -> list[Row]:
    table = query.space
    if table.name in _UNPROTECTED:
        return rows
    if isinstance(query, Scan) and not query.bodies:
        return [Row(row[0], row[1]) if row[2] else row for row in rows]
    return [check(table, row) for row in rows]


def _mark_damage(table: Table, row: Row) -> Row:
    try:
        return check_row(table, row)
    except CorruptError:
        return row._replace(body=DAMAGED)
