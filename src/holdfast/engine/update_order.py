"""Threads in order of their last update, the latest first: by the time of their steps, where the store has that order,
and otherwise by reading all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Self

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import ColumnHint, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import STEPS, TIME
from holdfast.engine.context import EngineContext
from holdfast.engine.line_head import newest_query
from holdfast.engine.line_walk import lines_of_kinds, pages_of
from holdfast.engine.lines import LineIndex
from holdfast.engine.row_format import LineSummary, StepRef
from holdfast.engine.validation import cursor_error

_MAX_EXCLUDED = 500
"""How many threads a scan is told to leave out."""

_PAGE = 500
_LONGEST_TIME = 20


class UpdatePosition(NamedTuple):
    """The place of a thread in the order. Threads without checkpoints come last, by name, with the time -1."""

    time: int
    thread: str

    @classmethod
    def parse(cls, cursor: str) -> Self:
        """Return the position that a cursor is."""
        time, slash, thread = cursor.partition("/")
        if not slash or (time != "-1" and not (time.isascii() and time.isdecimal() and len(time) < _LONGEST_TIME)):
            raise cursor_error(cursor)
        return cls(int(time), thread)

    @classmethod
    def of(cls, summary: LineSummary) -> Self:
        """Return the position of a thread."""
        return cls(-1 if summary.latest is None else summary.updated, summary.line.name)

    def __str__(self) -> str:
        return f"{self.time}/{self.thread}"

    def follows(self, other: UpdatePosition | None) -> bool:
        """Return whether it comes after another position."""
        if other is None:
            return True
        if self.time == other.time == -1:
            return self.thread > other.thread
        return self < other


class UpdateOrder:
    """Lists the threads of a tenant by their last update."""

    def __init__(self, context: EngineContext, lines: LineIndex, tenant: str) -> None:
        self._context = context
        self._lines = lines
        self._tenant = tenant

    async def pages(self, after: UpdatePosition | None, size: int) -> AsyncIterator[list[UpdatePosition]]:
        """Yield the positions of threads after another one, some at a time. A thread that was changed after that comes
        again: see `is_last`."""
        if not self._context.backend.capabilities.times or self._context.rows.hides_names:
            async for page in self._sorted(after):
                yield page
            return
        if after is None or after.time >= 0:
            async for page in self._by_time(after, size):
                yield page
            after = None
        async for page in self._without_steps("" if after is None else after.thread):
            yield page

    async def is_last(self, position: UpdatePosition, summary: LineSummary) -> bool:
        """Return whether a thread was not changed after a position of it."""
        if position.time < 0 or summary.updated <= position.time:
            return True
        if summary.latest is not None and summary.latest.time > position.time:
            return False
        # Its last step was pruned, or it is damaged.
        rows = scan_rows(self._context.stored, STEPS, tuple(summary.line), bodies=False)
        return max([point.time async for row in rows if (point := StepRef.of(row)).id], default=0) <= position.time

    async def _by_time(self, after: UpdatePosition | None, size: int) -> AsyncIterator[list[UpdatePosition]]:
        seen: dict[str, None] = {}
        stop: tuple[int | str, ...] = () if after is None else tuple(after)
        page = min(4 * size, 1000)
        while True:
            excluded = (ColumnHint("line", tuple(seen)[:_MAX_EXCLUDED], excluded=True),) if seen else ()
            scan = Scan(STEPS, (self._tenant,), (), stop, True, page, TIME, bodies=False, hints=excluded)
            (rows,) = await self._context.stored.read([scan])  # names and times are as they are, also when encrypted
            found: dict[str, UpdatePosition] = {}
            for row in rows:
                name = str(row.key[1])
                if name not in seen and name not in found:
                    found[name] = UpdatePosition(StepRef.of(row).time, name)
            seen |= dict.fromkeys(found)
            yield list(found.values())
            if len(rows) < page:
                return
            last = StepRef.of(rows[-1])
            stop = (last.time, str(rows[-1].key[1]), last.branch, last.seq)

    async def _without_steps(self, after: str) -> AsyncIterator[list[UpdatePosition]]:
        lines = lines_of_kinds(self._context.backend, self._tenant, frozenset({"thread"}), after=after)
        async for some in pages_of(lines, _PAGE):
            newest = await self._context.stored.read([newest_query(line) for line in some])
            yield [UpdatePosition(-1, line.name) for line, rows in zip(some, newest, strict=True) if not rows]

    async def _sorted(self, after: UpdatePosition | None) -> AsyncIterator[list[UpdatePosition]]:
        found: list[LineSummary] = []
        name = ""
        while some := await self._lines.list_threads(self._tenant, "", name, _PAGE):
            found += some
            name = some[-1].line.name
        ordered = [UpdatePosition.of(each) for each in in_order(found, after)]
        for start in range(0, len(ordered), _PAGE):
            yield ordered[start : start + _PAGE]


def in_order(found: list[LineSummary], after: UpdatePosition | None) -> list[LineSummary]:
    """Return threads in order of their last update, those after a position."""
    left = [each for each in found if UpdatePosition.of(each).follows(after)]
    changed = sorted((each for each in left if each.latest is not None), key=UpdatePosition.of, reverse=True)
    return changed + sorted((each for each in left if each.latest is None), key=UpdatePosition.of)
