"""Copying lines under other names.

Every row is put into an envelope of its new line; ids and commit hashes stay the same. What steps need is copied first,
and the steps last, all in one batch: a copy is complete or does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from holdfast.backends.interface import Change, Create, Expect, Get, Put, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import BRANCHES, FIELDS, FOLDS, LINES, LINKS, NODES, OBJECTS, REFS, STEPS, WRITES, Key
from holdfast.engine.context import Apply
from holdfast.engine.copy.line_stream import stream_line
from holdfast.engine.copy.row_writer import RowWriter, rename_row
from holdfast.engine.copy_mark import COPY, remove_remains
from holdfast.engine.engine import Engine
from holdfast.engine.fields import added_rows, is_metadata, value_of
from holdfast.engine.leases import Lease
from holdfast.engine.optimistic import Attempts, ConcurrentChange
from holdfast.engine.row_format import (
    OWNER,
    RUNNING,
    STATUS,
    SUBJECT,
    TTL,
    Line,
    StepRef,
    info_row,
    is_about_step,
    origin_mark,
)
from holdfast.errors import ConflictError, QuotaError

_DEPENDENT = (FOLDS, NODES, OBJECTS, WRITES)
"""Tables whose rows are only read after a step was found."""


class LineCopier:
    """Copies lines within a store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lines = engine.lines
        self._backend = engine.context.backend
        self._owned = True
        self._until = ""

    async def copy(
        self, names: Mapping[Line, Line], apply: Apply | None = None, *, owned: bool = True, until: str = ""
    ) -> None:
        """Copy lines under new names, all or none. `ConflictError` if a line has such a name already. `apply` applies
        the last batch. If `owned`, a copied thread has the same owner. With the id of a step, what was saved later is
        left out, and what its thread does now."""
        self._owned, self._until = owned, until
        leases = {new: Lease(self._engine.context, new, COPY) for new in names.values()}
        async with AsyncExitStack() as stack:  # releases all of them, even if one fails
            for lease in leases.values():
                stack.push_async_callback(lease.release)
                await lease.acquire()
            attempts = Attempts("copying threads", "", self._engine.context.metrics)
            while True:
                await attempts.begin()
                try:
                    copied = await self._copy_all(names, leases, apply or self._engine.context.apply)
                except QuotaError:
                    for new, lease in leases.items():
                        await self._backend.apply(
                            [*_conditions(new, lease), *await remove_remains(self._engine.context, new)]
                        )
                    raise
                if copied:
                    for new in names.values():
                        await self._engine.projector.follow(new)
                        await self._engine.indexer.follow(new)
                    return

    async def _copy_all(self, names: Mapping[Line, Line], leases: Mapping[Line, Lease], apply: Apply) -> bool:
        conditions: list[Change] = []
        changes: list[Change] = [lease.end() for lease in leases.values()]
        for old, new in names.items():
            info = await self._lines.info(old)
            conditions.append(self._lines.line_unchanged(old, info))
            new_info = self._lines.new_info()._replace(
                form=info.form, pruned=info.pruned, switched_from=info.switched_from, salt=info.salt
            )
            try:
                changes += [Create(LINES, info_row(new, new_info)), *await self._copy(old, new, leases[new])]
            except ConcurrentChange:
                raise ConflictError(
                    "a thread with that name already exists", where=f"thread {new}", hint="Choose another name"
                ) from None
        valid = (lease.condition() for lease in leases.values())  # only now: copying may have renewed them
        return await apply([*valid, *conditions, *changes]) is None

    async def _copy(self, old: Line, new: Line, lease: Lease) -> list[Change]:
        """Copy all rows that are not visible without steps; returns the changes that make the copy visible."""
        writer = RowWriter(self._engine.context, lambda: _conditions(new, lease))
        await writer.write(await remove_remains(self._engine.context, new))  # left by a copy that failed
        # Pending writes before the steps, which may take them over meanwhile; and after them, those that others stored.
        async for table, row in stream_line(self._backend, old, (WRITES,)):
            if self._until and str(row.key[2]) > self._until:
                continue
            await writer.put(Put(table, rename_row(row, new)))
            await lease.renew_if_due()
        last: list[Change] = []
        positions: set[Key] = set()
        ids: set[str] = set()
        points = list[StepRef]()
        async for row in scan_rows(self._backend, STEPS, tuple(old)):
            point = StepRef.of(row)
            if self._until and point.id > self._until:
                continue
            points.append(point)
            positions.add(row.key[2:])
            ids.add(point.id)
            last.append(Create(STEPS, rename_row(row, new)))
        branches = {point.branch for point in points}
        last += [
            Create(BRANCHES, rename_row(row, new))
            async for row in scan_rows(self._backend, BRANCHES, old)
            if not self._until or int(row.key[2]) in branches
        ]
        # Refs and folds that were added after the steps were read are left out.
        last += [
            Create(REFS, rename_row(row, new))
            async for row in scan_rows(self._backend, REFS, old)
            if (is_about_step(row) and row.columns[0] in ids)
            or (row.key[2] == OWNER and self._owned)
            or row.key[2] in (SUBJECT, TTL)
            or (row.key[2] == STATUS and not self._until)
        ]
        running = [] if self._until else [Scan(LINKS, (*old, RUNNING))]
        links = await self._backend.read([Get(LINKS, [origin_mark(old)]), *running])
        last += [Put(LINKS, rename_row(row, new)) for rows in links for row in rows]
        if self._until:
            last += await self._engine.fields.rows_of(new, points)
        else:
            (fields,) = await self._backend.read([Scan(FIELDS, tuple(old))])
            last += added_rows(new, filter(is_metadata, map(value_of, fields)))
        async for table, row in stream_line(self._backend, old, _DEPENDENT):
            if table is not FOLDS or row.key[2:] in positions:
                await writer.put(Put(table, rename_row(row, new)))
                await lease.renew_if_due()
        await writer.flush()
        return last


def _conditions(new: Line, lease: Lease) -> list[Change]:
    """Return the conditions that nobody else writes a line."""
    return [lease.condition(), Expect(LINES, tuple(new), None)]
