"""Private rows of a wrapper, in the same store as the rows of its caller, which does not see them.

They are in the table `JOURNAL`. Rows of the caller in that table, which exist only where wrappers are nested, get a
letter before their tenant; rows without that letter are the wrapper's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from holdfast.backends.interface import Backend, Batch, Change, Delete, Expect, Get, Query, Row, Scan, key_of
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import JOURNAL, TABLES, Key, Table

_CALLER = "a"
_AFTER_CALLER = "b"


class InnerBatch(NamedTuple):
    """A batch for the store inside, and for each of its changes the position in the caller's batch."""

    changes: list[Change]
    positions: Sequence[int]


async def read_caller_rows(backend: Backend, queries: Sequence[Query]) -> list[list[Row]]:
    """Answer queries of the caller."""
    inner = [_query(query) if query.space is JOURNAL else query for query in queries]
    answers = await backend.read(inner)
    return [
        [_caller_row(row) for row in rows] if query.space is JOURNAL else rows
        for query, rows in zip(queries, answers, strict=True)
    ]


async def translate_batch(backend: Backend, batch: Batch) -> InnerBatch:
    """Translate a batch of the caller for the store inside."""
    if not any(change.space is JOURNAL for change in batch):
        return InnerBatch(list(batch), range(len(batch)))
    tenants: set[str] = set()
    if any(isinstance(change, Delete) and change.space is JOURNAL and not change.prefix for change in batch):
        # A deletion by the first letter of a tenant is not possible: each tenant has to be named.
        tenants = await _tenants(backend)
        tenants |= {_tenant_of(change) for change in batch if change.space is JOURNAL}
    inner = InnerBatch([], positions := [])
    for position, change in enumerate(batch):
        if change.space is not JOURNAL:
            changes = [change]
        elif _tenant_of(change):
            changes = [_change(change)]
        else:
            changes = [Delete(JOURNAL, (tenant,)) for tenant in sorted(tenants - {""})]
        inner.changes.extend(changes)
        positions.extend([position] * len(changes))
    return inner


def caller_page(space: Table, after: Key, limit: int) -> Scan:
    """Return the query for a page of the caller's rows of a table, in the form of the store inside, from a key on."""
    if space is JOURNAL:
        return Scan(space, (), start=after or (_CALLER,), stop=(_AFTER_CALLER,), limit=limit)
    return Scan(space, (), start=after, limit=limit)


def caller_rows(backend: Backend, space: Table) -> AsyncIterator[Row]:
    """Yield the caller's rows of a table, in the form of the store inside."""
    return scan_rows(backend, *caller_page(space, (), 0)[:4])


async def is_empty(backend: Backend) -> bool:
    """Return whether a store has no rows but private ones."""
    return not any(await backend.read([caller_page(space, (), 1)._replace(bodies=False) for space in TABLES]))


async def is_blank(backend: Backend) -> bool:
    """Return whether a store has no rows at all."""
    return not any(await backend.read([Scan(space, (), limit=1, bodies=False) for space in TABLES]))


async def _tenants(backend: Backend) -> set[str]:
    tenants: set[str] = set()
    start: Key = (_CALLER,)
    while True:
        ((*rows,),) = await backend.read([Scan(JOURNAL, (), start=start, stop=(_AFTER_CALLER,), limit=1, bodies=False)])
        if not rows:
            return tenants
        tenant = str(rows[0].key[0])
        tenants.add(tenant)
        start = (tenant + "\0",)


def _tenant_of(change: Change) -> str:
    """Return the tenant of a change, in the form of the store inside; empty for a change of all tenants."""
    key = key_of(change)
    return str(_key(key)[0]) if key else ""


def _query(query: Query) -> Query:
    if isinstance(query, Get):
        return query._replace(keys=[_key(key) for key in query.keys])
    if query.prefix:
        return query._replace(prefix=_key(query.prefix))
    start = _key(query.start) if query.start else (_CALLER,)
    stop = _key(query.stop) if query.stop else (_AFTER_CALLER,)
    return query._replace(start=start, stop=stop)


def _change(change: Change) -> Change:
    if isinstance(change, Delete):
        return Delete(JOURNAL, _key(change.prefix))
    if isinstance(change, Expect):
        return change._replace(key=_key(change.key))
    return change._replace(row=change.row._replace(key=_key(change.row.key)))


def _key(key: Key) -> Key:
    return (_CALLER + str(key[0]), *key[1:])


def _caller_row(row: Row) -> Row:
    return row._replace(key=(str(row.key[0]).removeprefix(_CALLER), *row.key[1:]))
