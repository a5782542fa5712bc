"""How many bytes rows take, and how many a batch of changes gives back.

A row is counted with its key, its columns and its body, each number as eight bytes. What the store's own files take is
another matter: pages, indexes and logs come on top.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from holdfast.backends.interface import Backend, Change, Create, Delete, Ensure, Get, Put, Row, Scan
from holdfast.backends.tables import Key, Table

_FEW, _MANY = 8, 256
"""How many rows are read at first, when nobody knows how large they are, and at most."""

_PAGE_BYTES = 4 << 20
"""About how many bytes of bodies are read at a time."""


class SizeBalance(NamedTuple):
    """What is taken away, less what is added."""

    rows: int = 0
    bytes: int = 0

    def less(self, rows: Iterable[Row]) -> SizeBalance:
        """The same, and some rows are added."""
        sizes = [row_bytes(row) for row in rows]
        return SizeBalance(self.rows - len(sizes), self.bytes - sum(sizes))

    def plus(self, other: SizeBalance) -> SizeBalance:
        """Both together."""
        return SizeBalance(self.rows + other.rows, self.bytes + other.bytes)


def row_bytes(row: Row) -> int:
    """How many bytes a row takes."""
    size = len(row.body)
    for part in (*row.key, *row.columns):
        size += 8 if isinstance(part, int) else len(part.encode()) if isinstance(part, str) else len(part)
    return size


def next_page(page: int, rows: Sequence[Row]) -> int:
    """How many rows to read next, so that they are not too many bytes, given those that were read last."""
    size = sum(len(row.body) for row in rows)
    return min(2 * page, _MANY) if size < _PAGE_BYTES // 2 else max(1, page * _PAGE_BYTES // (2 * size))


async def found_rows(backend: Backend, space: Table, keys: Sequence[Key]) -> AsyncIterator[Row]:
    """The rows with these keys, as far as they are there, read in pages."""
    at, page = 0, _FEW
    while at < len(keys):
        (rows,) = await backend.read([Get(space, keys[at : at + page])])
        at += page
        for row in rows:
            yield row
        page = next_page(page, rows)


async def rows_below(backend: Backend, space: Table, prefix: Key, *, bodies: bool = True) -> AsyncIterator[Row]:
    """The rows whose key starts with this, read in pages."""
    start: Key = ()
    page = _FEW if bodies else _MANY
    while True:
        limit = page + bool(start)
        (rows,) = await backend.read([Scan(space, prefix, start=start, limit=limit, bodies=bodies)])
        for row in rows[bool(start) :]:  # a page starts with the row that the one before it ended with
            yield row
        if len(rows) < limit:
            return
        start = rows[-1].key[len(prefix) :]
        page = next_page(page, rows)


async def balance(backend: Backend, changes: Iterable[Change]) -> SizeBalance:
    """What a batch would give back if it were applied now: what is deleted or written over, less what is written."""
    single: dict[Table, list[Key]] = {}
    prefixes: list[tuple[Table, Key]] = []
    written: list[Create | Ensure | Put] = []
    for change in changes:
        if isinstance(change, Delete):
            if len(change.prefix) == len(change.space.key):
                single.setdefault(change.space, []).append(change.prefix)
            else:
                prefixes.append((change.space, change.prefix))
        elif isinstance(change, Create | Ensure | Put):
            written.append(change)
    rows = size = 0
    gone = {(space, prefix) for space, prefix in prefixes}
    for space, prefix in gone:
        async for row in rows_below(backend, space, prefix):
            rows, size = rows + 1, size + row_bytes(row)
    for each in written:
        rows, size = rows - 1, size - row_bytes(each.row)
        # What is written over goes, unless it goes anyway.
        key = each.row.key
        if not any((each.space, key[:width]) in gone for width in range(len(key))):
            single.setdefault(each.space, []).append(key)
    for space, keys in single.items():
        async for row in found_rows(backend, space, list(dict.fromkeys(keys))):
            rows, size = rows + 1, size + row_bytes(row)
    return SizeBalance(rows, size)
