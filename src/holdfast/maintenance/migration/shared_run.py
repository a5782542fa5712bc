"""A run that several processes share: who takes part, which pages are done, and what a run that was killed left.

The row of the run says where it leads. A process that begins a run prepares it, which is a registration, before others
join. Each page is worked on under a lease, and marked when it is done. A process that has the lease of a page looks
whether its run is still the one that is under way: whoever begins another one gets that page only after it.
"""

from __future__ import annotations

import os
from typing import Final

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.runtime.drivers import Pause
from holdfast.backends.runtime.process_identity import has_ended, process_identity
from holdfast.backends.tables import REFS, Key
from holdfast.engine.engine import Engine
from holdfast.engine.leases import Lease
from holdfast.engine.row_format import LEASE, Line
from holdfast.errors import ConflictError

LIFE: Final = 30.0
"""The seconds after which a process that did not report is presumed dead."""

PAUSE_SECONDS: Final = 0.2

_RUN, _DONE, _MEMBER = "migrate", "migrated", "migrating"
_PREPARING = "preparing"


class RunEnded(Exception):
    """The run was ended, or another one with the same target replaced it."""


class LeaseLost(Exception):
    """Another process has the page now."""


class SharedRun:
    """A run of one or more processes."""

    def __init__(self, engine: Engine, line: Line, reference: str, selection: str, life: float) -> None:
        self._context = engine.context
        self._backend = engine.context.backend
        self._line = line
        self._reference = reference
        self._work = f"{reference} {selection}"
        self._life = life
        self._id = ""
        self._token = os.urandom(4).hex()

    # Beginning and ending --------------------------------------------------------------------------------------------

    async def join(self) -> bool:
        """Join the run of other processes with the same target, or begin one. Returns whether it begins: then it is to
        be prepared. Raises `ConflictError` if a run with another target is under way."""
        while True:
            row = await self._row()
            if row is not None and not self._has_expired(row):
                if not all(has_ended(str(each.columns[0])) for each in await self._members(row)):
                    if _work(row) != self._work:
                        raise self._under_way(_target(row))
                    if _is_preparing(row):
                        await Pause(PAUSE_SECONDS)
                        continue
                    self._id = _run(row)
                    if await self._backend.apply([_unchanged(row), Put(REFS, self._member)]) is None:
                        return False
                    continue
            self._id = os.urandom(8).hex()
            begin = [Put(REFS, self._run_row(preparing=True)), Put(REFS, self._member)]
            unchanged = Expect(REFS, self._run_key, None) if row is None else _unchanged(row)
            if await self._backend.apply([unchanged, *await self._remains(row), *begin]) is None:
                return True

    async def begin(self) -> None:
        """Let others join: the run is prepared."""
        row = await self._current()
        if await self._backend.apply([_unchanged(row), Put(REFS, self._run_row())]) is not None:
            await self._current()
            raise RunEnded

    async def under_way(self, again: bool) -> list[Change]:  # noqa: ARG002 - the row is read each time
        """Return the conditions that the run is the one under way, before others joined it."""
        return [_unchanged(await self._current())]

    async def end(self) -> None:
        """End the run for all: everything is done."""
        while (row := await self._row()) is not None and _run(row) == self._id:
            marks = [Delete(REFS, (*self._line, LEASE, each)) for each in (_DONE, _MEMBER)]
            if await self._backend.apply([_unchanged(row), Delete(REFS, self._run_key), *marks]) is None:
                return

    async def leave(self) -> None:
        """Leave the run to the other processes, and to whoever begins it again."""
        while (row := await self._row()) is not None and _run(row) == self._id:
            others = [each for each in await self._members(row) if each.key != self._member.key]
            if not others:
                await self.end()
            elif await self._backend.apply([_unchanged(row), Delete(REFS, self._member.key)]) is None:
                return

    async def _remains(self, row: Row | None) -> list[Change]:
        """Return the changes that remove what a run left whose processes are dead."""
        if row is None:
            return []
        scan = Scan(REFS, (*self._line, LEASE), (f"{_RUN} ",), (f"{_RUN}!",))
        (leases,) = await self._backend.read([scan])
        dead: list[Change] = [] if self._has_expired(row) else [Delete(REFS, each.key) for each in leases]
        return [*dead, *(Delete(REFS, (*self._line, LEASE, each)) for each in (_DONE, _MEMBER))]

    # Pages -----------------------------------------------------------------------------------------------------------

    async def is_done(self, start: str, end: str) -> bool:
        """Return whether a page was marked as done by this run."""
        (rows,) = await self._backend.read([Get(REFS, [self._mark_key(start)])])
        return bool(rows) and str(rows[0].columns[0]) >= end

    async def acquire(self, start: str) -> Lease | None:
        """Return the lease of a page; None if another process has it. Raises `RunEnded` if the run was ended, and
        `ConflictError` if one with another target is under way."""
        lease = Lease(self._context, self._line, f"{_RUN} {start}", self._life)
        try:
            await lease.acquire()
        except ConflictError:
            return None
        try:
            await self._current()
        except (RunEnded, ConflictError):
            await lease.release()
            raise
        return lease

    async def mark(self, start: str, end: str, lease: Lease) -> bool:
        """Mark a page as done, and release its lease. False if the lease is not valid any more."""
        mark = Put(REFS, Row(self._mark_key(start), (end, self._context.clock())))
        while True:
            row = await self._current()
            changes = [_unchanged(row), lease.condition(), mark, Put(REFS, self._run_row()), lease.end()]
            if await self._backend.apply(changes) is None:
                return True
            if not await lease.is_valid():
                return False

    # Rows ------------------------------------------------------------------------------------------------------------

    async def _current(self) -> Row:
        """Return the row of the run, which is still under way."""
        row = await self._row()
        if row is not None and _run(row) == self._id:
            return row
        if row is None or _work(row) == self._work:
            raise RunEnded
        raise self._under_way(_target(row))

    async def _row(self) -> Row | None:
        (rows,) = await self._backend.read([Get(REFS, [self._run_key])])
        return rows[0] if rows else None

    async def _members(self, row: Row) -> list[Row]:
        (rows,) = await self._backend.read([Scan(REFS, (*self._line, LEASE, _MEMBER))])
        return [each for each in rows if str(each.key[-1]).startswith(_run(row))]

    def _has_expired(self, row: Row) -> bool:
        return abs(self._context.clock() - int(row.columns[1])) >= self._life * 1e9

    @property
    def _run_key(self) -> Key:
        return (*self._line, LEASE, _RUN, "")

    def _run_row(self, *, preparing: bool = False) -> Row:
        text = f"{self._id} {self._work}" + (f" {_PREPARING}" if preparing else "")
        return Row(self._run_key, (text, self._context.clock()))

    @property
    def _member(self) -> Row:
        key = (*self._line, LEASE, _MEMBER, f"{self._id} {self._token}")
        return Row(key, (process_identity(), self._context.clock()))

    def _mark_key(self, start: str) -> Key:
        return (*self._line, LEASE, _DONE, f"{self._id} {start}")

    def _under_way(self, reference: str) -> ConflictError:
        return ConflictError(
            f"a migration to {reference} is under way",
            where=self._reference,
            hint=f"Wait for it to end; if its process was killed on another machine, start again in {self._life:g} s",
            code="under-way",
        )


def _run(row: Row) -> str:
    return str(row.columns[0]).split(" ")[0]


def _target(row: Row) -> str:
    return str(row.columns[0]).split(" ")[1]


def _work(row: Row) -> str:
    return " ".join(str(row.columns[0]).split(" ")[1:3])


def _is_preparing(row: Row) -> bool:
    return str(row.columns[0]).endswith(f" {_PREPARING}")


def _unchanged(row: Row) -> Change:
    return Expect(REFS, row.key, row.columns)
