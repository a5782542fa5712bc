"""The mark of a store that lost rows which nobody can name.

When a damaged SQLite file is salvaged, rows of unreadable pages are gone; when a damaged hold is removed, nobody knows
what it said. What is left looks intact. The mark says from which tables rows may be missing. While it is there, the
store counts as damaged, a repair compares every thread with its sources, and nothing that a legal hold may protect is
deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.backends.interface import Backend, Delete, Get, Row
from holdfast.backends.tables import REFS, Key
from holdfast.engine.checked_rows import RowCodec


def mark_key(tenant: str) -> Key:
    """Return the key of the mark of a tenant. It belongs to no line."""
    return (tenant, "", "setting", "lost rows", "")


def mark_query(tenant: str) -> Get:
    """Return the query for the mark of a tenant."""
    return Get(REFS, [mark_key(tenant)])


def tables_of(rows: Sequence[Row]) -> list[str]:
    """Return the tables from which rows may be missing, by the answer to `mark_query`."""
    return str(rows[0].columns[0]).split() if rows else []


def mark_row(tenant: str, tables: Iterable[str], now: int) -> Row:
    """Return the mark of a tenant."""
    return Row(mark_key(tenant), (" ".join(sorted(set(tables))), now))


def stored_mark(rows: RowCodec, tenant: str, tables: Iterable[str], now: int) -> Row:
    """Return the mark as it is stored."""
    return rows.encode(REFS, mark_row(tenant, tables, now))


async def marked_tables(backend: Backend, tenant: str) -> list[str]:
    """Return the tables from which rows may be missing."""
    (rows,) = await backend.read([mark_query(tenant)])
    return tables_of(rows)


async def remove_mark(backend: Backend, tenant: str) -> None:
    """Remove the mark: the rows were restored, or their loss was accepted."""
    await backend.apply([Delete(REFS, mark_key(tenant))])
