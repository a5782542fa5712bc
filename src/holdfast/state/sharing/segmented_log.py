"""Segmented logs: an endless line, as segments that can be deleted one by one.

A segment is a line of at most `LENGTH` steps; the next one starts when it is full, on condition that its last step
still exists. Segments are deleted from the first on, and never the last: so one that is missing was either deleted,
like all before it, or has not started. The first segment starts together with the log's own line, which starts once: a
process that was suspended cannot start it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from holdfast.backends.interface import Backend, Change, Get, Query, Scan
from holdfast.backends.interface import Row as StoredRow
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine.guard import UNCONDITIONAL, Permit
from holdfast.engine.model.scopes import Scope, ScopePart
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line, StepRef
from holdfast.errors import ConflictError, DeniedError
from holdfast.security.audit.retain import remove_lines
from holdfast.security.handle import StoreHandle
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, read_line_at
from holdfast.state.writer import KeyWrite, WrittenKey, commit

T = TypeVar("T")

LENGTH = 1024
"""The maximum number of steps in a segment. The number of a step says in which segment it is: this is part of the
format."""

SEGMENT = "link"
_DIGITS = 12
_BEGUN = "begun"
"""The only key of the log's own line."""

_WEIGHT = 200
"""About how many bytes of memory the cached number of the last segment takes."""


MakeWrites: TypeAlias = Callable[[ScopeView], Awaitable[Sequence[KeyWrite]]]
"""Computes the changes of a step, given the state after the log's last step."""


class _Full(ConflictError):
    """The segment is full."""


class _OtherSegment(ConflictError):
    """This is not the segment to append to."""


class AppendedEntry(NamedTuple):
    """A step that was appended: its number in the log, from 0 on, and its id."""

    number: int
    id: str


class LogPage(NamedTuple):
    """Consecutive steps that still exist, and the number of the first."""

    first: int
    line: Line
    rows: list[StoredRow]

    @property
    def next(self) -> int:
        """The number of the first step after the page."""
        return min(self.first + len(self.rows), self.first - self.first % LENGTH + LENGTH)


class SegmentedLog:
    """A log in lines below a name that no scope has."""

    def __init__(self, handle: StoreHandle, own: Scope) -> None:
        self._handle = handle
        self._name = own
        self._cache_key = ("chain", handle.line(own))

    def segment(self, number: int) -> Scope:
        """Return the name of a segment."""
        return Scope((*self._name.parts, ScopePart(SEGMENT, f"{number:0{_DIGITS}d}")))

    def line(self, number: int) -> Line:
        """Return the line of a segment."""
        return self._handle.line(self.segment(number))

    # Appending --------------------------------------------------------------------------------------------------

    async def append(self, handle: StoreHandle, make: MakeWrites) -> AppendedEntry:
        """Append a step, with the rights of the handle."""
        number = await self._cached_last()
        attempts = Attempts("appending to a shared log", str(self._name), handle.engine.context.metrics)
        while True:
            await attempts.begin()
            try:
                written = await (self._start(handle, make) if number is None else self._append(handle, number, make))
            except _Full:
                number = 0 if number is None else number + 1
                continue
            except _OtherSegment:
                number = await self._last_segment()
                continue
            number = number or 0
            self._cache_last(number)
            return AppendedEntry(number * LENGTH + written[-1].version - 1, written[-1].id)

    async def _start(self, handle: StoreHandle, make: MakeWrites) -> list[WrittenKey]:
        """Start the log."""

        async def begin(view: ScopeView) -> list[KeyWrite]:
            if await view.version(_BEGUN):
                raise _OtherSegment("the chain is begun already")
            return [KeyWrite(_BEGUN, "begin", packed=pack_value(handle, _BEGUN, view.now))]

        written, _ = await commit(handle, {self._name: begin, self.segment(0): make})
        return written

    async def _append(self, handle: StoreHandle, number: int, make: MakeWrites) -> list[WrittenKey]:
        """Append to a segment, and start it if the one before is full."""
        before: StepRef | None = None

        async def writes(view: ScopeView) -> Sequence[KeyWrite]:
            nonlocal before
            before = None
            if view.point is not None:
                if view.point.seq + 1 >= LENGTH:
                    raise _Full("the link is full")
                return await make(view)
            before = await self._last_step(number - 1) if number else None
            if before is None:
                raise _OtherSegment("the link was dropped")
            return await read_line_at(self._handle, self.line(number - 1), before, make, view.now)

        async def guards(again: bool) -> list[Change]:  # noqa: ARG001 - what it rests on was read at this attempt
            return [] if before is None else [self._handle.engine.lines.step_exists(self.line(number - 1), before)]

        written, _ = await commit(handle, {self.segment(number): writes}, preconditions=guards)
        return written

    async def _last_step(self, number: int) -> StepRef | None:
        """Return the last step of a full segment; None if there is no such segment."""
        # If that was erased, a step without content follows it.
        (rows,) = await self._backend.read([Scan(STEPS, (*self.line(number), 0), start=(LENGTH - 1,), limit=2)])
        return StepRef.of(rows[-1]) if rows else None

    # Reading ----------------------------------------------------------------------------------------------------

    async def length(self) -> int:
        """Return the number of steps, with those that were deleted."""
        latest = await self._latest()
        return 0 if latest is None else latest[0] * LENGTH + min(latest[1].seq + 1, LENGTH)

    async def read_latest(self, read: Callable[[ScopeView], Awaitable[T]]) -> T:
        """Read the state after the last step."""
        latest = await self._latest()
        line, point = (self.line(0), None) if latest is None else (self.line(latest[0]), latest[1])
        return await read_line_at(self._handle, line, point, read)

    async def read(self, start: int, limit: int) -> LogPage:
        """Return steps from a number on; if those were deleted, from the first that exists on. A page ends with its
        segment."""
        while True:
            number, seq = divmod(start, LENGTH)
            line = self.line(number)
            queries: list[Query] = [Get(LINES, [tuple(line)]), Scan(STEPS, (*line, 0), start=(seq,), limit=limit)]
            lines, rows = await self._backend.read(queries)
            if rows or lines:
                return LogPage(start, line, rows)
            first = await self._outermost(reverse=False)
            if first is None or first <= number:
                return LogPage(start, line, [])
            start = first * LENGTH

    async def _latest(self) -> tuple[int, StepRef] | None:
        """Return the last segment, and its last step."""
        number = await self._cached_last()
        while number is not None:
            tip = await self._handle.engine.lines.revalidate_tip(self.line(number))
            if tip is None or tip.point is None:
                number = await self._last_segment()
                continue
            if tip.point.seq + 1 < LENGTH or await self._handle.engine.lines.load_tip(self.line(number + 1)) is None:
                self._cache_last(number)
                return number, tip.point
            number += 1
        return None

    # Dropping ---------------------------------------------------------------------------------------------------

    async def first(self) -> int:
        """Return the number of the first step that exists."""
        return LENGTH * (await self._outermost(reverse=False) or 0)

    async def drop(self, goes: Callable[[int, StepRef], bool], permit: Permit = UNCONDITIONAL) -> int:
        """Delete segments from the first on, while `goes` is true for the number and the last step of each; but not
        the last segment, nor one that is held. Returns the number of deleted steps. Their audit is retained."""
        first, last, dropped = await self._outermost(reverse=False), await self._last_segment(), 0
        for number in range(first or 0, last or 0):
            end = await self._last_step(number)
            if end is None or not goes(number * LENGTH + LENGTH - 1, end):
                break
            try:
                await self._remove([self.line(number)], permit)
            except DeniedError:  # it is held: what follows it stays as well
                break
            dropped += LENGTH
        return dropped

    async def delete(self, permit: Permit = UNCONDITIONAL) -> bool:
        """Delete the log. False if there was none. Its audit is retained."""
        own = self._handle.line(self._name)
        if await self._handle.engine.lines.load_tip(own) is None:
            return False
        await self.drop(lambda *_: True, permit)  # by the link: what is to be kept of a long chain is no single batch
        first, last = await self._outermost(reverse=False), await self._last_segment()
        links = [] if last is None else [self.line(number) for number in range(first or 0, last + 1)]
        self._handle.engine.context.cache.drop(self._cache_key)
        await self._remove([own, *links], permit)
        return True

    # Inside -----------------------------------------------------------------------------------------------------

    async def _remove(self, lines: Sequence[Line], permit: Permit) -> None:
        await remove_lines(self._handle.engine, lines, self._handle.guard.actor, permit.guards)

    @property
    def _backend(self) -> Backend:
        return self._handle.engine.context.backend

    async def _cached_last(self) -> int | None:
        known: int | None = self._handle.engine.context.cache.get(self._cache_key)
        return await self._last_segment() if known is None else known

    async def _last_segment(self) -> int | None:
        """Return the number of the last segment."""
        number = await self._outermost(reverse=True)
        if number is not None:
            self._cache_last(number)
        return number

    async def _outermost(self, *, reverse: bool) -> int | None:
        """Return the number of the first or the last segment."""
        tenant, prefix = self._handle.tenant, Scope((*self._name.parts, ScopePart(SEGMENT, ""))).line
        # A colon is what comes after the digits.
        query = Scan(LINES, (tenant,), (prefix,), (f"{prefix}:",), reverse=reverse, limit=1, bodies=False)
        (rows,) = await self._backend.read([query])
        return int(str(rows[0].key[1])[len(prefix) :]) if rows else None

    def _cache_last(self, number: int) -> None:
        self._handle.engine.context.cache.put(self._cache_key, number, _WEIGHT)
