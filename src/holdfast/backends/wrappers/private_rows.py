"""Rows of a wrapper's own, in the same store as those of its caller, who sees nothing of them.

They lie in the space `JOURNAL`. The caller's own rows there, of which there are any only where wrappers are nested, get
a letter before their tenant; what has not that letter is the wrapper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.backends.interface import Backend, Batch, Change, Delete, Expect, Get, Query, Row, Scan
from holdfast.backends.tables import JOURNAL, TABLES, Key, Table

_THEIRS = "a"
_AFTER_THEIRS = "b"


class InnerBatch(NamedTuple):
    """A batch as the store inside gets it, and for each of its changes the place in the caller's batch."""

    changes: list[Change]
    places: Sequence[int]


async def read_theirs(backend: Backend, queries: Sequence[Query]) -> list[list[Row]]:
    """What the caller's queries find."""
    moved = [_query(query) if query.space is JOURNAL else query for query in queries]
    found = await backend.read(moved)
    return [
        [_back(row) for row in rows] if query.space is JOURNAL else rows
        for query, rows in zip(queries, found, strict=True)
    ]


async def move_theirs(backend: Backend, batch: Batch) -> InnerBatch:
    """The caller's batch for the store inside."""
    if not any(change.space is JOURNAL for change in batch):
        return InnerBatch(list(batch), range(len(batch)))
    tenants: set[str] = set()
    if any(isinstance(change, Delete) and change.space is JOURNAL and not change.prefix for change in batch):
        # There is no saying "all that start with this letter" but by naming them.
        tenants = await _tenants(backend)
        tenants |= {_tenant_of(change) for change in batch if change.space is JOURNAL}
    moved = InnerBatch([], places := [])
    for place, change in enumerate(batch):
        made = [_change(change)] if change.space is JOURNAL and _tenant_of(change) else [change]
        if change.space is JOURNAL and not _tenant_of(change):
            made = [Delete(JOURNAL, (tenant,)) for tenant in sorted(tenants - {""})]
        moved.changes.extend(made)
        places.extend([place] * len(made))
    return moved


def page_of_theirs(space: Table, after: Key, limit: int) -> Scan:
    """A page of all rows of a space that are not a wrapper's own, as they lie inside: those from a key on."""
    if space is JOURNAL:
        return Scan(space, (), start=after or (_THEIRS,), stop=(_AFTER_THEIRS,), limit=limit)
    return Scan(space, (), start=after, limit=limit)


async def is_empty(backend: Backend) -> bool:
    """Whether a store holds nothing but a wrapper's own rows."""
    return not any(await backend.read([page_of_theirs(space, (), 1)._replace(bodies=False) for space in TABLES]))


async def is_blank(backend: Backend) -> bool:
    """Whether a store holds nothing at all."""
    return not any(await backend.read([Scan(space, (), limit=1, bodies=False) for space in TABLES]))


async def _tenants(backend: Backend) -> set[str]:
    tenants: set[str] = set()
    start: Key = (_THEIRS,)
    while True:
        ((*rows,),) = await backend.read([Scan(JOURNAL, (), start=start, stop=(_AFTER_THEIRS,), limit=1, bodies=False)])
        if not rows:
            return tenants
        tenant = str(rows[0].key[0])
        tenants.add(tenant)
        start = (tenant + "\0",)


def _tenant_of(change: Change) -> str:
    """The tenant inside that a change is about; nothing, if it is about all of them."""
    key = change.prefix if isinstance(change, Delete) else change.key if isinstance(change, Expect) else change.row.key
    return str(_key(key)[0]) if key else ""


def _query(query: Query) -> Query:
    if isinstance(query, Get):
        return Get(JOURNAL, [_key(key) for key in query.keys])
    if query.prefix:
        return query._replace(prefix=_key(query.prefix))
    start = _key(query.start) if query.start else (_THEIRS,)
    stop = _key(query.stop) if query.stop else (_AFTER_THEIRS,)
    return query._replace(start=start, stop=stop)


def _change(change: Change) -> Change:
    if isinstance(change, Delete):
        return Delete(JOURNAL, _key(change.prefix))
    if isinstance(change, Expect):
        return change._replace(key=_key(change.key))
    return change._replace(row=change.row._replace(key=_key(change.row.key)))


def _key(key: Key) -> Key:
    return (_THEIRS + str(key[0]), *key[1:])


def _back(row: Row) -> Row:
    return row._replace(key=(str(row.key[0]).removeprefix(_THEIRS), *row.key[1:]))
