"""Copying lines under other names.

Every row is put into an envelope of its new line; ids and commit hashes stay the same. What steps need is copied first,
and the steps last, all in one batch: a copy is complete or does not exist.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack

from holdfast.backends.interface import Change, Create, Delete, Expect, Put, Row, Scan
from holdfast.backends.tables import BRANCHES, FOLDS, LINES, NODES, OBJECTS, REFS, STEPS, WRITES, Key, Table
from holdfast.codec.envelope import RecordContext, unwrap, wrap
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import Line, StepRef, context_of, info_row, is_about_step
from holdfast.errors import ConflictError

_PAGE = 256
"""How many rows are copied at a time."""

_DEPENDENT = (FOLDS, NODES, OBJECTS, WRITES)
"""Tables whose rows are only read after a step was found."""

_ATTEMPTS = 100
"""How often a copy is restarted because a line was rewritten meanwhile."""


class LineCopier:
    """Copies lines within a store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lines = engine.lines
        self._backend = engine.context.backend

    async def copy(self, names: Mapping[Line, Line]) -> None:
        """Copy lines under new names, all or none. `ConflictError` if there is a line of such a name already."""
        leases = {new: Lease(self._engine.context, new, "copy") for new in names.values()}
        async with AsyncExitStack() as stack:  # releases all of them, even if one fails
            for lease in leases.values():
                stack.push_async_callback(lease.release)
                await lease.acquire()
            for _ in range(_ATTEMPTS):
                if await self._copy_all(names, leases):
                    for new in names.values():
                        await self._engine.projector.follow(new)
                        await self._engine.indexer.follow(new)
                    return
            raise ConflictError("the threads kept changing while they were copied", hint="Try again")

    async def _copy_all(self, names: Mapping[Line, Line], leases: Mapping[Line, Lease]) -> bool:
        conditions: list[Change] = [lease.condition() for lease in leases.values()]
        changes: list[Change] = [lease.end() for lease in leases.values()]
        for old, new in names.items():
            info = await self._lines.info(old)
            conditions.append(self._lines.line_unchanged(old, info))
            new_info = self._lines.new_info()._replace(form=info.form, pruned=info.pruned)
            changes += [Create(LINES, info_row(new, new_info)), *await self._copy(old, new, leases[new])]
        return await self._backend.apply([*conditions, *changes]) is None

    async def _copy(self, old: Line, new: Line, lease: Lease) -> list[Change]:
        """Copy all rows that are not visible without steps; returns the changes that make the copy visible."""
        await self._apply(new, lease, [Delete(space, tuple(new)) for space in _DEPENDENT])  # left by a copy that failed
        last: list[Change] = []
        positions: set[Key] = set()
        ids: set[str] = set()
        async for page in self._pages(STEPS, old):
            positions.update(row.key[2:] for row in page)
            ids.update(StepRef.of(row).id for row in page)
            last += (Create(STEPS, self._rename(STEPS, row, new)) for row in page)
        async for page in self._pages(BRANCHES, old):
            last += (Create(BRANCHES, self._rename(BRANCHES, row, new)) for row in page)
        async for page in self._pages(REFS, old):
            # Names and folds that were added after the steps were read are left out.
            last += (
                Create(REFS, self._rename(REFS, row, new))
                for row in page
                if is_about_step(row) and row.columns[0] in ids
            )
        for space in _DEPENDENT:
            async for page in self._pages(space, old):
                rows = [row for row in page if space is not FOLDS or row.key[2:] in positions]
                await self._apply(new, lease, [Put(space, self._rename(space, row, new)) for row in rows])
        return last

    async def _apply(self, new: Line, lease: Lease, changes: Sequence[Change]) -> None:
        conditions = [lease.condition(), Expect(LINES, tuple(new), None)]
        if await self._backend.apply([*conditions, *changes]) is not None:
            raise ConflictError(
                "there is a thread of that name already", where=f"thread {new}", hint="Choose another name"
            )
        await lease.renew_if_due()

    async def _pages(self, space: Table, line: Line) -> AsyncIterator[list[Row]]:
        start: Key = ()
        while True:
            (rows,) = await self._backend.read([Scan(space, tuple(line), start=start, limit=_PAGE + bool(start))])
            page = rows[1:] if start else rows  # a page starts with the last row of the one before
            if not page:
                return
            yield page
            start = rows[-1].key[2:]

    def _rename(self, space: Table, row: Row, new: Line) -> Row:
        return renamed(space, row, new, self._engine.context.max_bytes)


def renamed(space: Table, row: Row, new: Line, max_bytes: int) -> Row:
    """Return a row as one of another line, in an envelope of that. `CorruptError` if it is damaged."""
    old = Line(str(row.key[0]), str(row.key[1]))
    body = row.body
    if body:
        kind, name = context_of(space, row)
        record = unwrap(body, RecordContext(*old, kind, name), max_bytes=max_bytes)
        body = wrap(record.content, RecordContext(*new, kind, name), codec=record.codec, schema=record.schema)
    return Row((*new, *row.key[2:]), row.columns, body)
