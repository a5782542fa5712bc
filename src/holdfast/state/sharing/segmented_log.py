"""Chains: what would be one line without an end, in links that can be dropped one by one.

A link is a line of at most `LENGTH` steps; the next one is begun when it is full, on condition that its last step is
still there. Links are dropped from the first on, and never the last one: so one that is missing was either dropped, and
then so were all before it, or is not begun yet. The first link is begun together with the chain's own line, which is
begun once: nobody who has slept meanwhile can begin it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from holdfast.backends.interface import Backend, Change, Get, Query, Scan
from holdfast.backends.interface import Row as StoredRow
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine.guard import UNCONDITIONAL, Permit
from holdfast.engine.model.scopes import Scope, ScopePart
from holdfast.engine.row_format import Line, StepRef
from holdfast.errors import ConflictError, DeniedError
from holdfast.security.audit.retain import remove_lines
from holdfast.security.handle import StoreHandle
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, read_line_at
from holdfast.state.writer import KeyWrite, WrittenKey, commit

T = TypeVar("T")

LENGTH = 1024
"""How many steps a link has at most. The number of a step says in which link it is: this is part of the format."""

SEGMENT = "link"
_DIGITS = 12
_BEGUN = "begun"
"""The one key of the chain's own line."""

_WEIGHT = 200
"""About how many bytes of memory it takes to remember which link is the last."""

_ATTEMPTS = 100
"""How often one looks for the link to append to, where others begin and drop links meanwhile."""

MakeWrites: TypeAlias = Callable[[ScopeView], Awaitable[Sequence[KeyWrite]]]
"""Works out what a step changes, given the state after the chain's last step."""


class _Full(ConflictError):
    """The link has no room left."""


class _OtherSegment(ConflictError):
    """This is not the link to append to."""


class AppendedEntry(NamedTuple):
    """A step that was appended: its number in the chain, from 0 on, and its id."""

    number: int
    id: str


class LogPage(NamedTuple):
    """Steps that follow each other, and the number of the first; of those that were dropped, none are in it."""

    first: int
    line: Line
    rows: list[StoredRow]


class SegmentedLog:
    """A chain of lines below a name that no scope has."""

    def __init__(self, handle: StoreHandle, own: Scope) -> None:
        self._handle = handle
        self._name = own
        self._cache_key = ("chain", handle.line(own))

    def segment(self, number: int) -> Scope:
        """How a link is named."""
        return Scope((*self._name.parts, ScopePart(SEGMENT, f"{number:0{_DIGITS}d}")))

    def line(self, number: int) -> Line:
        """The line of a link."""
        return self._handle.line(self.segment(number))

    # Appending --------------------------------------------------------------------------------------------------

    async def append(self, handle: StoreHandle, make: MakeWrites) -> AppendedEntry:
        """Append a step, by whoever the handle is for."""
        number = await self._cached_last()
        for _ in range(_ATTEMPTS):
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
        raise ConflictError(f"others were first {_ATTEMPTS} times", where=str(self._name), hint="Try again")

    async def _start(self, handle: StoreHandle, make: MakeWrites) -> list[WrittenKey]:
        """Begin the chain."""

        async def begin(view: ScopeView) -> list[KeyWrite]:
            if await view.version(_BEGUN):
                raise _OtherSegment("the chain is begun already")
            return [KeyWrite(_BEGUN, "begin", packed=pack_value(handle, _BEGUN, view.now))]

        written, _ = await commit(handle, {self._name: begin, self.segment(0): make})
        return written

    async def _append(self, handle: StoreHandle, number: int, make: MakeWrites) -> list[WrittenKey]:
        """Append to a link, and begin it if the one before is full."""
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

        written, _ = await commit(handle, {self.segment(number): writes}, guards=guards)
        return written

    async def _last_step(self, number: int) -> StepRef | None:
        """The last step of a full link; None if there is no such link."""
        (rows,) = await self._backend.read([Get(STEPS, [(*self.line(number), 0, LENGTH - 1)])])
        return StepRef.of(rows[0]) if rows else None

    # Reading ----------------------------------------------------------------------------------------------------

    async def length(self) -> int:
        """How many steps there are, with those that were dropped."""
        latest = await self._latest()
        return 0 if latest is None else latest[0] * LENGTH + latest[1].seq + 1

    async def read_latest(self, look: Callable[[ScopeView], Awaitable[T]]) -> T:
        """What one sees who looks at the state after the last step."""
        latest = await self._latest()
        line, point = (self.line(0), None) if latest is None else (self.line(latest[0]), latest[1])
        return await read_line_at(self._handle, line, point, look)

    async def read(self, start: int, limit: int) -> LogPage:
        """Steps from a number on; none, if there are none yet. If those were dropped, from the first one that is there
        on. What follows them in the next link takes another read."""
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
        """The last link, and its last step."""
        number = await self._cached_last()
        while number is not None:
            memo = await self._handle.engine.lines.revalidate_tip(self.line(number))
            if memo is None or memo.point is None:
                number = await self._last_segment()
                continue
            if memo.point.seq + 1 < LENGTH or await self._handle.engine.lines.load_tip(self.line(number + 1)) is None:
                self._cache_last(number)
                return number, memo.point
            number += 1
        return None

    # Dropping ---------------------------------------------------------------------------------------------------

    async def first(self) -> int:
        """The number of the first step that is there."""
        return LENGTH * (await self._outermost(reverse=False) or 0)

    async def drop(self, goes: Callable[[int, StepRef], bool], permit: Permit = UNCONDITIONAL) -> int:
        """Drop links from the first on, as long as that is wanted of the number and the last step of each; but not the
        last link, nor one that is held. Returns how many steps went. What the audit says of them stays."""
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
        """Remove all of it. False if there was nothing. What the audit says of it stays."""
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
        """The last link there is."""
        number = await self._outermost(reverse=True)
        if number is not None:
            self._cache_last(number)
        return number

    async def _outermost(self, *, reverse: bool) -> int | None:
        """The first or the last link there is."""
        tenant, prefix = self._handle.tenant, Scope((*self._name.parts, ScopePart(SEGMENT, ""))).line
        # A colon is what comes after the digits.
        query = Scan(LINES, (tenant,), (prefix,), (f"{prefix}:",), reverse=reverse, limit=1, bodies=False)
        (rows,) = await self._backend.read([query])
        return int(str(rows[0].key[1])[len(prefix) :]) if rows else None

    def _cache_last(self, number: int) -> None:
        self._handle.engine.context.cache.put(self._cache_key, number, _WEIGHT)
