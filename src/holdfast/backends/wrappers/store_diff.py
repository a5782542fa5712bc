"""The differences between a store and its copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from holdfast.backends.interface import Backend, Get, Row, Scan
from holdfast.backends.tables import TABLES, JsonText, Key, Scalar, Table, WordList
from holdfast.backends.wrappers import journal
from holdfast.backends.wrappers.private_rows import caller_page
from holdfast.backends.wrappers.replica_pair import read_cursor
from holdfast.errors import CorruptError

_PAGE = 64
_ATTEMPTS = 5


class RowDifference(NamedTuple):
    """A row that differs in the copy. None stands for a row that is missing or cannot be read."""

    space: Table
    key: Key
    local: Row | None
    remote: Row | None
    damaged: bool = False
    """The local row cannot be read."""

    def describe(self) -> str:
        how = (
            "cannot be read here"
            if self.damaged
            else "is missing here, and in the copy"
            if self.local is None
            else "is here, and missing in the copy"
            if self.remote is None
            else "differs in the copy"
        )
        return f"a row of {self.space.name} {how}: {self.key!r}"


async def compare_stores(
    local: Backend, remote: Backend, caught_up: Callable[[], Coroutine[Any, Any, bool]]
) -> list[RowDifference]:
    """Return the differences that remain once the copy has caught up. Reads both stores completely."""
    found: list[RowDifference] = []
    for space in TABLES:
        suspects = await _find_suspects(local, remote, space)
        for at in range(0, len(suspects), _PAGE):
            found += await _confirm(local, remote, space, suspects[at : at + _PAGE], caught_up)
    return found


async def _find_suspects(local: Backend, remote: Backend, space: Table) -> list[Key]:
    """Return the keys of a table whose rows differ when both stores are read page by page, one after the other."""
    suspects: list[Key] = []
    after: Key = ()
    while True:
        query = caller_page(space, after, _PAGE)
        (theirs,) = await remote.read([query])
        ours, complete = await _page(local, query, theirs)
        ends = [rows[-1].key for rows, full in ((ours, complete), (theirs, True)) if full and len(rows) == _PAGE]
        end = min(ends, default=None)
        mine = {row.key: row for row in ours if end is None or row.key <= end}
        copied = {row.key: row for row in theirs if end is None or row.key <= end}
        suspects += [
            key
            for key in sorted({*mine, *copied})
            if key != after and not same_row(space, mine.get(key), copied.get(key))
        ]
        if end is None or end == after:
            return suspects
        after = end


def same_row(space: Table, one: Row | None, other: Row | None) -> bool:
    """Return whether two stores have the same row. A store may write JSON and words in its own form."""
    if one is None or other is None or one == other:
        return one is other or one == other
    return (one.key, one.body) == (other.key, other.body) and all(
        left == right
        or (kind is JsonText and _json(left) == _json(right))
        or (kind is WordList and set(str(left).split(" ")) == set(str(right).split(" ")))
        for kind, left, right in zip(space.columns.values(), one.columns, other.columns, strict=True)
    )


def _json(text: Scalar) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


async def _page(local: Backend, query: Scan, theirs: list[Row]) -> tuple[list[Row], bool]:
    """Return a page of the local store, and True; of a damaged page the rows that can be read, and False."""
    try:
        (rows,) = await local.read([query])
    except CorruptError:
        found = [await read_row(local, query.space, row.key) for row in theirs]
        return [row for row, _ in found if row is not None], False
    return rows, True


async def read_row(backend: Backend, space: Table, key: Key) -> tuple[Row | None, bool]:
    """Return a row, or None; and whether it is damaged."""
    try:
        ((*rows,),) = await backend.read([Get(space, [key])])
    except CorruptError:
        return None, True
    return (rows[0] if rows else None), False


async def _confirm(
    local: Backend, remote: Backend, space: Table, keys: list[Key], caught_up: Callable[[], Coroutine[Any, Any, bool]]
) -> list[RowDifference]:
    """Return the differences in these keys at a moment at which the copy has caught up."""
    for _ in range(_ATTEMPTS):
        if not await caught_up():
            break
        ((before,),) = await local.read([journal.LAST])
        ours = [await read_row(local, space, key) for key in keys]
        ((*found,),) = await remote.read([Get(space, keys)])
        theirs = {row.key: row for row in found}
        ((last,),) = await local.read([journal.LAST])
        cursor = await read_cursor(remote)
        if cursor is not None and before == last and cursor.last == journal.parse_row(last):
            return [
                RowDifference(space, key, mine, theirs.get(key), damaged)
                for key, (mine, damaged) in zip(keys, ours, strict=True)
                if damaged or not same_row(space, mine, theirs.get(key))
            ]
    return []
