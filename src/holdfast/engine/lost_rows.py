"""The mark of a store that lost rows which nobody can name.

When a damaged SQLite file is salvaged, rows of unreadable pages are gone, and what is left looks intact. And if a
repair removes a damaged name or hold, not even its thread is certain. The mark says from which tables rows may be
missing. While it is there, the store counts as damaged, a repair compares every thread with its sources, and nothing
that a legal hold may protect is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.backends.interface import Backend, Delete, Get, Row
from holdfast.backends.tables import REFS, Key
from holdfast.engine.checked_rows import protect_row


def mark_key(tenant: str) -> Key:
    """Return the key of the mark of a tenant. It belongs to no line."""
    return (tenant, "", "setting", "lost rows", "")


def mark_row(tenant: str, tables: Iterable[str], now: int) -> Row:
    """Return the mark."""
    return Row(mark_key(tenant), (" ".join(sorted(set(tables))), now))


def stored_mark(tenant: str, tables: Iterable[str], now: int) -> Row:
    """Return the mark as it is stored."""
    return protect_row(REFS, mark_row(tenant, tables, now))


async def marked_tables(backend: Backend, tenant: str) -> list[str]:
    """Return the tables from which rows may be missing."""
    (rows,) = await backend.read([Get(REFS, [mark_key(tenant)])])
    return str(rows[0].columns[0]).split() if rows else []


async def remove_mark(backend: Backend, tenant: str) -> None:
    """Remove the mark: the rows were restored, or their loss was accepted."""
    await backend.apply([Delete(REFS, mark_key(tenant))])
