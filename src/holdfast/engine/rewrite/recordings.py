"""Removing recordings from a line whose steps stay: they are pending writes, which the hash of no step covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from holdfast.backends.interface import Change, Delete, Get, Put
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import STEPS, WRITES
from holdfast.engine.context import EngineContext
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.leases import Lease
from holdfast.engine.lines import LineIndex
from holdfast.engine.model.steps import RECORDED
from holdfast.engine.rewrite.row_sizes import SizeBalance, balance
from holdfast.engine.row_format import Line, StepRef, drop_recordings, open_writes
from holdfast.errors import ConflictError

Select: TypeAlias = Callable[[Sequence[StepRef]], Sequence[StepRef]]
"""Selects the steps whose recordings are removed, of those that have one."""

_PAGE = 64
"""How many steps are rewritten at a time."""


async def remove_recordings(
    context: EngineContext, lines: LineIndex, line: Line, select: Select, *, dry_run: bool
) -> tuple[int, SizeBalance]:
    """Remove the recordings of selected steps. Returns of how many steps, and what that frees.

    `ConflictError` if the line is being rewritten, `DeniedError` if there is a hold on it.
    """
    lease = Lease(context, line, "rewrite")
    if not dry_run:
        await lease.acquire()
    try:
        points = [StepRef.of(row) async for row in scan_rows(context.backend, STEPS, tuple(line), bodies=False)]
        by_position = {point[:2]: point for point in points if not point.pruned}
        recorded = await _recorded_steps(context, line, by_position)
        selected = {point.id: point for point in select([point for point in points if point.id in recorded])}
        freed = SizeBalance()
        chosen = list(selected.values())
        for start in range(0, len(chosen), _PAGE):
            changes = await _changes(context, line, chosen[start : start + _PAGE])
            freed = freed.plus(await balance(context, changes))
            if dry_run:
                continue
            info = await lines.info(line)
            held = await require_no_hold(context.backend, [line])
            await lease.renew_if_due()
            # With another version: who knows a pending recording would store it with the next step again.
            conditions = [lease.condition(), *held, *lines.new_version(line, info)]
            if await context.backend.apply([*conditions, *changes]) is not None:
                raise ConflictError(
                    "the thread was changed by another process", where=f"thread {line}", hint="Try again"
                )
            context.cache.drop_all(line)
        return len(selected), freed
    finally:
        if not dry_run:
            await lease.release()


async def _recorded_steps(
    context: EngineContext, line: Line, by_position: Mapping[tuple[int, int], StepRef]
) -> set[str]:
    """Return the ids of the steps that recordings follow."""
    found = set[str]()
    async for row in scan_rows(context.backend, WRITES, tuple(line), bodies=False):
        if row.columns[1] == RECORDED:
            found.add(str(row.key[2]))
    async for row in scan_rows(context.backend, STEPS, tuple(line)):
        branch, seq = StepRef.of(row)[:2]
        before = by_position.get((branch, seq - 1))
        if before is not None and any(write.channel == RECORDED for write in open_writes(row, context.max_bytes)):
            found.add(before.id)
    return found


async def _changes(context: EngineContext, line: Line, points: Sequence[StepRef]) -> list[Change]:
    """Return the changes that remove the recordings which follow steps: rows of their own, and those that the next step
    took over."""
    ids = {point.id for point in points}
    changes: list[Change] = []
    for id in sorted(ids):
        rows = [row async for row in scan_rows(context.backend, WRITES, (*line, id), bodies=False)]
        changes += [Delete(WRITES, row.key) for row in rows if row.columns[1] == RECORDED]
    keys = [(*line, point.branch, point.seq + 1) for point in points]
    (rows,) = await context.backend.read([Get(STEPS, keys)])
    for row in rows:
        new = drop_recordings(row, context.max_bytes)
        if new is not row:
            point = StepRef.of(row)
            # Another size, so that a copy of the line notices it.
            size = point.size + len(new.body) - len(row.body)
            changes.append(Put(STEPS, point._replace(size=size).row(line, new.body)))
    return changes
