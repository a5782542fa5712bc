"""The rows of a line as a stream: what leaves a store, whatever it goes into.

A line that is copied to another store, exported to a file or backed up is read here, under the same rules: which tables
it has rows in and in which order, which rows belong to some of its steps, and which of them the other side lacks or has
no more. What becomes of the rows is up to the sinks: `engine/copy/row_writer.py` writes them into a store,
`maintenance/archive/format.py` into a file, `maintenance/backup/creator.py` into packs.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from holdfast.backends.interface import Backend, Get, Row, Scan
from holdfast.backends.paging import RowReader, next_page, scan_rows
from holdfast.backends.tables import (
    BRANCHES,
    EVENTS,
    FOLDS,
    LINES,
    LINKS,
    NODES,
    OBJECTS,
    REFS,
    STEPS,
    WRITES,
    Key,
    Scalar,
    Table,
)
from holdfast.engine.checked_rows import storage_of
from holdfast.engine.line_head import end_query
from holdfast.engine.optimistic import ConcurrentChange
from holdfast.engine.row_format import HOLD, LEASE, OWNER, PIN, STATUS, SUBJECT, TTL, Line

LINE_TABLES = (NODES, OBJECTS, FOLDS, WRITES, BRANCHES, REFS, EVENTS, LINKS, STEPS)
"""The tables with rows of a line, besides its own row, in the order in which they are written: what steps need comes
before them."""

Listing: TypeAlias = Mapping[Key, tuple[Scalar, ...]]
"""The keys and columns of rows."""

_FEW = 64
"""Fewer rows of a table are listed together with those of others."""

_FIRST_PAGE = 8
"""How many rows are read at first: then more of small ones, and fewer of large ones."""

OF_LINE = (HOLD, OWNER, SUBJECT, TTL, STATUS)
"""Kinds of references to a line and not to a step."""


class RemovedKey(NamedTuple):
    """The key of a row that is not there any more."""

    key: Key


async def every_line(backend: RowReader, tenant: str | None) -> AsyncIterator[Line]:
    """Yield the lines of a tenant, or of all."""
    async for row in scan_rows(backend, LINES, () if tenant is None else (tenant,), bodies=False):
        yield Line(str(row.key[0]), str(row.key[1]))


async def every_tenant(backend: RowReader) -> list[str]:
    """Return the tenants that have lines."""
    found: list[str] = []
    while True:
        start = (found[-1] + "\0",) if found else ()
        (rows,) = await backend.read([Scan(LINES, (), start, limit=1, bodies=False)])
        if not rows:
            return found
        found.append(str(rows[0].key[0]))


async def stream_line(
    backend: RowReader, line: Line, tables: Sequence[Table] = LINE_TABLES
) -> AsyncIterator[tuple[Table, Row]]:
    """Yield all rows of a line that does not change, table by table."""
    for table in tables:
        async for row in scan_rows(backend, table, tuple(line)):
            yield table, row


async def stream_changes(
    backend: RowReader, table: Table, wanted: Listing, known: Listing, replaced: Callable[[Key], bool] = lambda _: False
) -> AsyncIterator[Row | RemovedKey]:
    """Yield the rows of a table that the other side lacks or has otherwise, or that were `replaced` all the same; then
    the keys of those that it has and that are not wanted. `ConcurrentChange` if one is not as it was listed."""
    missing = [key for key, columns in wanted.items() if known.get(key) != columns or replaced(key)]
    start, page = 0, _FIRST_PAGE
    while start < len(missing):
        keys = missing[start : start + page]
        start += len(keys)
        (found,) = await backend.read([Get(table, keys)])
        if len(found) < len(keys) or any(row.columns != wanted[row.key] for row in found):
            raise ConcurrentChange
        for row in found:
            yield row
        page = next_page(page, found)
    for key in known:
        if key not in wanted:
            yield RemovedKey(key)


async def outline(backend: Backend, line: Line) -> list[list[Row]]:
    """Return a line's row, branches, refs, pending writes, and the last step of each branch."""
    found = await backend.read(
        [
            Get(LINES, [tuple(line)]),
            Scan(BRANCHES, tuple(line)),
            Scan(REFS, tuple(line)),
            Scan(WRITES, tuple(line), bodies=False),
        ]
    )
    lines, branches, refs, writes = found
    marks = [row.key for row in writes if is_mark(WRITES, row.key)]
    heads = await branch_heads(backend, line)
    (marked,) = await backend.read([Get(WRITES, marks)]) if marks else ([],)
    plain = [[row._replace(body=b"") for row in each] for each in (lines, branches, copied_refs(refs), writes, *heads)]
    return [*plain, sorted(marked)]


async def branch_heads(backend: Backend, line: Line) -> list[list[Row]]:
    """Return the last step of each branch, if it has one."""
    (branches,) = await backend.read([Scan(BRANCHES, tuple(line))])
    numbers = [0, *(row.key[2] for row in branches)]
    return await backend.read([end_query(line, int(number)) for number in numbers])


def copied_refs(refs: Sequence[Row]) -> list[Row]:
    """Return references without leases, which are about work in progress in one store, and without pins and holds."""
    return [row for row in refs if row.key[2] != LEASE and not protects(REFS, row.key)]


def protects(table: Table, key: Key) -> bool:
    """Return whether a row is a pin or a hold. They are copied, but never removed from the target."""
    return table is REFS and key[2] in (PIN, HOLD)


def is_mark(table: Table, key: Key) -> bool:
    """Return whether a row is a write that may replace another."""
    return table is WRITES and int(key[4]) < 0


async def listing(backend: Backend, table: Table, line: Line) -> dict[Key, tuple[Scalar, ...]]:
    """Return the keys and columns of a line's rows."""
    return _list(table, [row async for row in scan_rows(backend, table, line, bodies=False)])


async def listings(backend: Backend, tables: Sequence[Table], line: Line) -> dict[Table, dict[Key, tuple[Scalar, ...]]]:
    """Return the keys and columns of a line's rows in some tables. Where there are few, they are read at once."""
    found = await backend.read([Scan(table, tuple(line), limit=_FEW, bodies=False) for table in tables])
    return {
        table: _list(table, rows) if len(rows) < _FEW else await listing(backend, table, line)
        for table, rows in zip(tables, found, strict=True)
    }


def _list(table: Table, rows: Sequence[Row]) -> dict[Key, tuple[Scalar, ...]]:
    return {row.key: row.columns for row in rows if table is not REFS or row.key[2] != LEASE}


def of_steps(table: Table, listing: Listing, steps: Listing) -> Listing:
    """Return the rows that belong to some steps. Others are newer."""
    if table is FOLDS:
        return {key: columns for key, columns in listing.items() if key in steps}
    if table is REFS:
        ids = {columns[0] for columns in steps.values()}
        return {key: columns for key, columns in listing.items() if columns[0] in ids or key[2] in OF_LINE}
    if table is EVENTS:
        # They stay when their steps are pruned; and ids increase.
        last = max((str(columns[0]) for columns in steps.values()), default="")
        return {key: columns for key, columns in listing.items() if str(key[2]) <= last}
    return listing


async def digest(backend: Backend, line: Line) -> list[tuple[int, str]]:
    """Return the number of rows of a line in each table, and a digest of them, whichever way they are stored."""
    digests = []
    backend, codec = storage_of(backend)
    for table in (LINES, *LINE_TABLES):
        digest, count, unordered = hashlib.sha256(), 0, list[bytes]()
        async for stored in scan_rows(backend, table, line):
            row = codec.salvage(table, stored)
            if table is not REFS or copied_refs([row]):
                count += 1
                key = repr((row.key, row.columns)).encode(errors="surrogatepass")
                if table in (REFS, LINKS):  # an encrypted store has them in another order
                    unordered.append(key + hashlib.sha256(row.body).digest())
                    continue
                digest.update(key)
                digest.update(hashlib.sha256(row.body).digest())
        digest.update(b"".join(sorted(unordered)))
        digests.append((count, digest.hexdigest()))
    return digests
