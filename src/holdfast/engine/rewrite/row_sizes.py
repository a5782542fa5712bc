"""The size of rows, and how many bytes a batch of changes frees.

A row is counted with its key, its columns and its record, each number as eight bytes. The files of a store are another
matter: checksums, pages, indexes and logs come on top.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from holdfast.backends.interface import Backend, Change, Create, Delete, Ensure, Get, Put, Row
from holdfast.backends.paging import next_page, scan_rows
from holdfast.backends.tables import Key, Table
from holdfast.engine.context import EngineContext

_FEW = 8
"""How many rows are read at first, when their size is unknown."""


class SizeBalance(NamedTuple):
    """The size of what is removed, minus what is added."""

    rows: int = 0
    bytes: int = 0

    def less(self, rows: Iterable[Row]) -> SizeBalance:
        """Return the balance after some rows are added."""
        sizes = [row_bytes(row) for row in rows]
        return SizeBalance(self.rows - len(sizes), self.bytes - sum(sizes))

    def plus(self, other: SizeBalance) -> SizeBalance:
        """Add two balances."""
        return SizeBalance(self.rows + other.rows, self.bytes + other.bytes)


def row_bytes(row: Row) -> int:
    """Return how many bytes a row takes."""
    size = len(row.body)
    for part in (*row.key, *row.columns):
        size += 8 if isinstance(part, int) else len(part.encode()) if isinstance(part, str) else len(part)
    return size


async def found_rows(backend: Backend, space: Table, keys: Sequence[Key]) -> AsyncIterator[Row]:
    """Yield the rows with these keys that exist, read in pages."""
    at, page = 0, _FEW
    while at < len(keys):
        (rows,) = await backend.read([Get(space, keys[at : at + page])])
        at += page
        for row in rows:
            yield row
        page = next_page(page, rows)


async def balance(context: EngineContext, changes: Iterable[Change]) -> SizeBalance:
    """Return what a batch would free if it were applied now: what is deleted or overwritten, minus what is written.

    Rows are read as they are stored: what is damaged can be deleted, too.
    """
    stored, salvage = context.stored, context.rows.salvage
    keys_by_table: dict[Table, list[Key]] = {}
    prefixes: list[tuple[Table, Key]] = []
    written: list[tuple[Table, Key]] = []
    rows = size = 0
    for change in changes:
        if isinstance(change, Delete):
            if len(change.prefix) == len(change.space.key):
                keys_by_table.setdefault(change.space, []).append(change.prefix)
            else:
                prefixes.append((change.space, change.prefix))
        elif isinstance(change, Create | Ensure | Put):
            rows, size = rows - 1, size - row_bytes(change.row)
            written.append((change.space, change.row.key))
    deleted = {(space, prefix) for space, prefix in prefixes}
    for space, prefix in deleted:
        async for row in scan_rows(stored, space, prefix):
            rows, size = rows + 1, size + row_bytes(salvage(space, row))
    spaces = {space for space, _ in prefixes}
    for space, key in written:
        # What is overwritten counts, unless it is deleted anyway.
        if space not in spaces or not any((space, key[:width]) in deleted for width in range(len(key))):
            keys_by_table.setdefault(space, []).append(key)
    for space, keys in keys_by_table.items():
        async for row in found_rows(stored, space, list(dict.fromkeys(keys))):
            rows, size = rows + 1, size + row_bytes(salvage(space, row))
    return SizeBalance(rows, size)
