"""The rows of a small store as bytes, to be opened in memory in another process, without a file."""

from __future__ import annotations

from typing import Any

from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.runtime.drivers import arun
from holdfast.backends.runtime.drivers import run as drive
from holdfast.backends.tables import TABLES
from holdfast.codec import Codec
from holdfast.store.opener import aopen
from holdfast.store.opener import open as open_store
from holdfast.store.store import AsyncStore, Store, StoreOperations

_TABLES = {table.name: table for table in TABLES}


def pack_rows(store: Store) -> bytes:
    """Return all rows of a store in memory."""
    found = drive(store._handle.engine.context.backend.read([Scan(table, ()) for table in TABLES]))
    rows = [
        [table.name, list(row.key), list(row.columns), row.body]
        for table, rows in zip(TABLES, found, strict=True)
        for row in rows
    ]
    return Codec().pack([store.tenant, rows])


def open_rows(data: bytes) -> Store:
    """Open rows that were packed, in memory."""
    tenant, rows = Codec().unpack(data)
    store = open_store("memory://", tenant=tenant)
    drive(_add(store, rows))
    return store


async def aopen_rows(data: bytes) -> AsyncStore:
    """Open rows that were packed, in memory, for asyncio."""
    tenant, rows = Codec().unpack(data)
    store = await aopen("memory://", tenant=tenant)
    await arun(_add(store, rows))
    return store


def add_rows(store: Store, data: bytes) -> None:
    """Add rows that were packed to a store in memory, which did not read their lines yet."""
    drive(_add(store, Codec().unpack(data)[1]))


async def _add(store: StoreOperations, rows: list[list[Any]]) -> None:
    changes = [Put(_TABLES[name], Row(tuple(key), tuple(columns), body)) for name, key, columns, body in rows]
    await store._handle.engine.context.backend.apply(changes)
