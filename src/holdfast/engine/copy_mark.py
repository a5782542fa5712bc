"""The mark of a copy under way: rows of a line that does not exist yet.

A copy writes rows under the name of the new line before its own row, by which it is found. If it is killed, these stay.
The mark tells whoever creates a line of that name instead: what was left is removed in the batch that creates the line,
and a copy that was only slow cannot end any more. A copy from the same source resumes with what is there.
"""

from __future__ import annotations

import hashlib

from holdfast.backends.interface import Change, Create, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import (
    BEHIND,
    BRANCHES,
    EVENTS,
    FIELDS,
    FOLDS,
    LINKS,
    NODES,
    OBJECTS,
    READABLE,
    REFS,
    STEPS,
    WORDS,
    WRITES,
    Key,
)
from holdfast.engine.context import EngineContext
from holdfast.engine.fields import removed_rows, value_of
from holdfast.engine.row_format import LEASE, OWNER, Line

COPY = "copy"
"""The purpose of the lease of a line that is copied, and of the mark."""


_TABLES = (BRANCHES, STEPS, FOLDS, NODES, OBJECTS, WRITES, EVENTS, LINKS, WORDS, BEHIND, *READABLE)
"""The tables with rows that a copy writes, besides references: the owner of a thread may be known before it exists."""


def copy_key(line: Line) -> Key:
    """Return the key of the mark of a line."""
    return (*line, LEASE, COPY, "")


def copy_mark(line: Line, source: str) -> Row:
    """Return the mark of a copy from a source. As a lease, it has expired: nobody waits for it."""
    return Row(copy_key(line), (hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()[:32], 0))


def is_copy_mark(ref: Row) -> bool:
    """Return whether a ref is the mark of a copy, also of one within the store."""
    return ref.key[2:4] == (LEASE, COPY)


async def creation_conditions(context: EngineContext, line: Line, *, check: bool) -> list[Change]:
    """Return what precedes the row of a new line: the condition that no copy has left rows of it; or, if one has, which
    is looked up with `check`, their deletion."""
    mark = await _read(context, line) if check else None
    if mark is None:
        return [Expect(REFS, copy_key(line), None)]
    return [Expect(REFS, mark.key, mark.columns), *await remove_remains(context, line), Delete(REFS, mark.key)]


async def start_copy(context: EngineContext, line: Line, source: str, found: Row | None) -> list[Change]:
    """Return the changes that mark a line that does not exist, given the mark that was found, and remove what a copy
    from another source has left; none if the mark is that of this source."""
    mark = copy_mark(line, source)
    if found is None:
        return [Create(REFS, mark)]
    if found.columns == mark.columns:
        return []
    return [Expect(REFS, found.key, found.columns), *await remove_remains(context, line), Put(REFS, mark)]


async def remove_remains(context: EngineContext, line: Line) -> list[Change]:
    """Return the changes that remove the rows that a copy wrote, except its mark."""
    refs, fields = await context.backend.read([Scan(REFS, tuple(line)), Scan(FIELDS, tuple(line))])
    return [
        *removed_rows(line, map(value_of, fields)),
        *(Delete(table, tuple(line)) for table in _TABLES),
        *(Delete(REFS, row.key) for row in refs if row.key[2] != OWNER and not is_copy_mark(row)),
    ]


async def _read(context: EngineContext, line: Line) -> Row | None:
    (rows,) = await context.backend.read([Get(REFS, [copy_key(line)])])
    return rows[0] if rows else None
