"""The row of a line that has lost it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.interface import Backend
from holdfast.backends.paging import UnreadableRange, scan_readable_rows
from holdfast.backends.tables import BRANCHES, FOLDS, STEPS
from holdfast.engine.row_format import Branch, Line, LineInfo, StepRef
from holdfast.maintenance.repair.sources import RepairSource, first_of


async def new_info(backend: Backend, line: Line, fresh: LineInfo, sources: Sequence[RepairSource]) -> LineInfo:
    """What a source says of a line; or else what follows from its other rows, and is as in a fresh one for the rest."""
    found = await first_of(sources, lambda source: source.info(line))
    if found is not None:
        return found[0]
    form = 1
    holes: list[UnreadableRange] = []
    async for row in scan_readable_rows(backend, FOLDS, tuple(line), holes, bodies=False):
        form = max(form, int(row.columns[0]))
    times = [Branch.of(row).created async for row in scan_readable_rows(backend, BRANCHES, tuple(line), holes)]
    async for row in scan_readable_rows(backend, STEPS, tuple(line), holes, bodies=False):
        times.append(StepRef.of(row).time)
        break
    return fresh._replace(form=form, created=min(times, default=fresh.created))
