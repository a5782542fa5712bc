"""Quarantine: damaged rows that a repair removed, stored unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import msgspec
from msgspec.msgpack import encode

from holdfast.backends.interface import Backend, Change, Put, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import QUARANTINE, Key, Scalar, Table
from holdfast.codec.envelope import BodyKind, wrap
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import Line, open_quarantined
from holdfast.engine.types import to_datetime
from holdfast.errors import HoldfastError


class QuarantinedRow(msgspec.Struct, frozen=True):
    """A row in quarantine: where it was, when and why it was taken out, and what it held.

    `key` is what followed tenant and thread.
    """

    thread: str
    number: int
    space: str
    time: datetime
    reason: str
    key: Key
    columns: tuple[Scalar, ...]
    body: bytes


class QuarantineWriter:
    """Makes the changes that put rows of a line into quarantine."""

    def __init__(self, backend: Backend, line: Line, now: int) -> None:
        self._backend = backend
        self._line = line
        self._now = now
        self._next: int | None = None
        self.count: int = 0

    async def keep(self, space: Table, row: Row, reason: str) -> Change:
        """Return the change that stores a row unchanged."""
        if self._next is None:
            (last,) = await self._backend.read(
                [Scan(QUARANTINE, tuple(self._line), reverse=True, limit=1, bodies=False)]
            )
            self._next = int(last[0].key[2]) + 1 if last else 1
        number, self._next = self._next, self._next + 1
        self.count += 1
        body = wrap(encode([row.key[2:], row.columns, row.body]), codec=BodyKind.RAW)
        return Put(QUARANTINE, Row((*self._line, number), (space.name, self._now, reason), body))


async def quarantined(
    engine: Engine, tenant: str, threads: Sequence[str] | None = None
) -> AsyncIterator[QuarantinedRow]:
    """Yield the rows in quarantine."""
    prefixes: list[Key] = [(tenant,)] if threads is None else [(tenant, name) for name in threads]
    for prefix in prefixes:
        async for row in scan_rows(engine.context.stored, QUARANTINE, prefix):  # also those that are damaged again
            space, time, reason = engine.context.rows.salvage(QUARANTINE, row).columns
            try:
                key, columns, body = open_quarantined(engine.context.rows.decode(QUARANTINE, row))
            except HoldfastError:
                key, columns, body = (), (), row.body
            yield QuarantinedRow(
                str(row.key[1]),
                int(row.key[2]),
                str(space),
                to_datetime(int(time)),
                str(reason),
                key,
                columns,
                body,
            )
