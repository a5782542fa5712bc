"""Threads in order of their last update, the latest first: by the time of their steps, where the store has that order,
and otherwise by reading all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.backends.interface import ColumnHint, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import STEPS, TIME
from holdfast.engine.context import EngineContext
from holdfast.engine.line_head import newest_query
from holdfast.engine.line_walk import lines_of_kinds, pages_of
from holdfast.engine.row_format import LineSummary, StepRef
from holdfast.engine.thread_sizes import ThreadPosition, ThreadSizes

_MAX_EXCLUDED = 500
"""How many threads a scan is told to leave out."""

_PAGE = 500


class UpdateOrder:
    """Lists the threads of a tenant by their last update."""

    def __init__(self, context: EngineContext, sizes: ThreadSizes, tenant: str) -> None:
        self._context = context
        self._sizes = sizes
        self._tenant = tenant

    async def pages(self, after: ThreadPosition | None, size: int) -> AsyncIterator[list[ThreadPosition]]:
        """Yield the positions of threads after another one, some at a time. A thread that was changed after that comes
        again: see `is_last`."""
        if not self._context.backend.capabilities.times or self._context.rows.hides_names:
            async for page in self._sizes.pages(self._tenant, "updated", after):
                yield page
            return
        if after is None or after.number >= 0:
            async for page in self._by_time(after, size):
                yield page
            after = None
        async for page in self._without_steps("" if after is None else after.thread):
            yield page

    async def is_last(self, position: ThreadPosition, summary: LineSummary) -> bool:
        """Return whether a thread was not changed after a position of it."""
        if position.number < 0 or summary.updated <= position.number:
            return True
        if summary.latest is not None and summary.latest.time > position.number:
            return False
        # Its last step was pruned, or it is damaged.
        rows = scan_rows(self._context.stored, STEPS, tuple(summary.line), bodies=False)
        return max([point.time async for row in rows if (point := StepRef.of(row)).id], default=0) <= position.number

    async def _by_time(self, after: ThreadPosition | None, size: int) -> AsyncIterator[list[ThreadPosition]]:
        seen: dict[str, None] = {}
        stop: tuple[int | str, ...] = () if after is None else tuple(after)
        page = min(4 * size, 1000)
        while True:
            excluded = (ColumnHint("line", tuple(seen)[:_MAX_EXCLUDED], excluded=True),) if seen else ()
            scan = Scan(STEPS, (self._tenant,), (), stop, True, page, TIME, bodies=False, hints=excluded)
            (rows,) = await self._context.stored.read([scan])  # names and times are as they are, also when encrypted
            found: dict[str, ThreadPosition] = {}
            for row in rows:
                name = str(row.key[1])
                if name not in seen and name not in found:
                    found[name] = ThreadPosition(StepRef.of(row).time, name)
            seen |= dict.fromkeys(found)
            yield list(found.values())
            if len(rows) < page:
                return
            last = StepRef.of(rows[-1])
            stop = (last.time, str(rows[-1].key[1]), last.branch, last.seq)

    async def _without_steps(self, after: str) -> AsyncIterator[list[ThreadPosition]]:
        lines = lines_of_kinds(self._context.backend, self._tenant, frozenset({"thread"}), after=after)
        async for some in pages_of(lines, _PAGE):
            newest = await self._context.stored.read([newest_query(line) for line in some])
            yield [ThreadPosition(-1, line.name) for line, rows in zip(some, newest, strict=True) if not rows]
