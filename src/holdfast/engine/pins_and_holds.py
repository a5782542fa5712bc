"""Pins and holds.

A pinned step is not pruned. A thread with a hold is neither pruned nor deleted, nor are the lines of its namespaces.
Each has a reason, and there may be several: a thread may go when its last hold is released.

Setting one changes the line's version. Code that removes something reads pins and holds, and removes on condition that
the line has not changed since: one that was set in between counts.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.backends.interface import Delete, Get, Put, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import REFS
from holdfast.engine.context import Apply, EngineContext
from holdfast.engine.lines import LineIndex
from holdfast.engine.row_format import HOLD, PIN, Line

_LINES = 256
"""How many lines are read at a time."""


class Pin(NamedTuple):
    """A step that is not pruned, and why. `time` is when it was pinned, in nanoseconds since 1970."""

    step: str
    reason: str
    time: int

    @classmethod
    def of(cls, row: Row) -> Pin:
        """Return the pin in a row of `refs`."""
        return cls(str(row.columns[0]), str(row.key[3]), int(row.columns[1]))


class Hold(NamedTuple):
    """A thread that is neither pruned nor deleted, and why."""

    line: Line
    reason: str
    time: int

    @classmethod
    def of(cls, row: Row) -> Hold:
        """Return the hold in a row of `refs`."""
        return cls(Line(str(row.key[0]), str(row.key[1])), str(row.key[3]), int(row.columns[1]))


class PinsAndHolds:
    """Sets, removes and lists pins and holds."""

    def __init__(self, context: EngineContext, lines: LineIndex) -> None:
        self._context = context
        self._backend = context.backend
        self._lines = lines

    async def pin(self, line: Line, id: str, reason: str, apply: Apply | None = None) -> None:
        """Pin a step: it is not pruned."""
        while True:
            info = await self._lines.info(line)
            point = await self._lines.find(line, id)
            row = Row((*line, PIN, reason, point.id), (point.id, self._context.clock()))
            changes = [*self._lines.new_version(line, info), self._lines.step_exists(line, point), Put(REFS, row)]
            if await (apply or self._backend.apply)(changes) is None:
                return

    async def unpin(self, line: Line, id: str, reason: str | None, apply: Apply | None = None) -> bool:
        """Remove a pin, or all pins of a step. False if there was none."""
        matches = [pin for pin in await self.pins(line) if pin.step == id and reason in (None, pin.reason)]
        if matches:
            await (apply or self._backend.apply)([Delete(REFS, (*line, PIN, pin.reason, id)) for pin in matches])
        return bool(matches)

    async def pins(self, line: Line) -> list[Pin]:
        """Return the pins in a line."""
        (rows,) = await self._backend.read([Scan(REFS, (*line, PIN))])
        return [Pin.of(row) for row in rows]

    async def hold(self, line: Line, reason: str, apply: Apply | None = None) -> None:
        """Put a hold on a thread: it is neither pruned nor deleted. It can still be saved to."""
        row = Row((*line, HOLD, reason, ""), ("", self._context.clock()))
        while True:
            info = await self._lines.info(line)
            if await (apply or self._backend.apply)([*self._lines.new_version(line, info), Put(REFS, row)]) is None:
                return

    async def release(self, line: Line, reason: str | None, apply: Apply | None = None) -> bool:
        """Remove a hold, or all holds of a thread. False if there was none."""
        matches = [hold for hold in await self.holds(line) if reason in (None, hold.reason)]
        if matches:
            await (apply or self._backend.apply)([Delete(REFS, (*line, HOLD, hold.reason)) for hold in matches])
        return bool(matches)

    async def holds(self, line: Line) -> list[Hold]:
        """Return the holds of a thread."""
        (rows,) = await self._backend.read([Scan(REFS, (*line, HOLD))])
        return [Hold.of(row) for row in rows]

    async def all_holds(self, tenant: str) -> list[Hold]:
        """Return all holds on a tenant's threads."""
        keys = [row.key async for row in scan_rows(self._backend, REFS, (tenant,), bodies=False) if row.key[2] == HOLD]
        (rows,) = await self._backend.read([Get(REFS, keys)])
        return sorted(map(Hold.of, rows))
