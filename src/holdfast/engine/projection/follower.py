"""Writes readable rows in the background: those of steps that were just saved, and those that others left.

A save has a mark for each of its steps (`BEHIND`), which is removed in the batch that writes their rows. So what a
process that died has left is known exactly, and whoever writes to the store next makes up for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence, Set

from holdfast.backends.interface import BlockingCall, Change, Delete, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.runtime.metric_families import READABLE_BEHIND, READABLE_LAG
from holdfast.backends.runtime.metrics import Sample
from holdfast.backends.runtime.threads import Ticker
from holdfast.backends.tables import BEHIND
from holdfast.engine.context import EngineContext
from holdfast.engine.lines import LineIndex
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.projection.projector import Projector, StepFollower
from holdfast.engine.projection.rows import ProjectedStep, RowChanges, is_shown
from holdfast.engine.row_format import Line
from holdfast.errors import HoldfastError

_log = logging.getLogger("holdfast.readable")

_SECONDS = 0.6
"""How long rows wait for others."""
_IDLE = 20
"""After so many pauses without new steps the thread ends."""
_LOOK_SECONDS = 60
"""How often it looks for what others have left, while it runs."""
_LEFT_SECONDS = 5
"""After how long a step counts as left: whoever saved it should have written its rows by then."""
_LINES_AT_ONCE = 16
_CHANGES_AT_ONCE = 1_000

_MAX_STEPS = 512
_MAX_BYTES = 4 << 20
"""More steps and stored bytes than this are not kept in memory, but read from the log again."""


class RowFollower(StepFollower):
    """Writes rows in a thread of its own, for the whole store."""

    def __init__(self, context: EngineContext, lines: LineIndex, projector: Projector) -> None:
        self._context = context
        self._backend = context.backend
        self._lines = lines
        self._projector = projector
        self._closed = False
        self.reinit_locks()
        reinit_after_fork(self)
        context.metrics.add_collector(self._samples)

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child. What the parent saved is the parent's to write."""
        self._lock = threading.Lock()
        self._steps: dict[Line, list[ProjectedStep] | None] = {}
        """The steps whose rows are missing, by line; None if they are read from the log."""
        self._since: dict[Line, int] = {}
        """When the first of them was saved."""
        self._kept = self._bytes = 0
        self._ticker: Ticker | None = None
        self._idle = 0
        self._look_at: dict[str, int] = {}
        """When to look next for what others left, by tenant."""
        self._failed: set[Line] = set()
        """Lines whose log cannot be read. Their rows are made with their next step, as far as that goes."""

    def marks(self, line: Line, steps: Sequence[ProjectedStep]) -> list[Change]:
        if not is_shown(line):
            return []
        return [Put(BEHIND, Row((*line, each.point.id), (each.point.time,))) for each in steps]

    def add(self, line: Line, steps: Sequence[ProjectedStep]) -> None:
        if not is_shown(line):
            return
        weight = sum(each.point.size - (each.parent.size if each.parent is not None else 0) for each in steps)
        with self._lock:
            self._since.setdefault(line, steps[0].point.time)
            self._look_at.setdefault(line.tenant, 0)
            kept = self._steps.setdefault(line, [])
            if kept is not None:
                if self._kept + len(steps) > _MAX_STEPS or self._bytes + weight > _MAX_BYTES:
                    self._steps[line] = None
                else:
                    kept += steps
                    self._kept += len(steps)
                    self._bytes += max(0, weight)
            self._idle = 0
            if self._ticker is None and not self._closed:
                self._ticker = Ticker("holdfast-readable", _SECONDS, self._tick)

    async def close(self) -> None:
        """Write what is missing, and end."""
        with self._lock:
            self._closed = True
            ticker, self._ticker = self._ticker, None
        if ticker is not None:
            await BlockingCall(ticker.stop)
            try:
                await self.write()
            except HoldfastError as error:
                _log.warning("readable rows are written when the store is used again: %s", error)

    # In the background ----------------------------------------------------------------------------------------

    def _tick(self) -> bool:
        try:
            run(self.write())
        except HoldfastError as error:
            _log.info("readable rows are written later: %s", error)
        except Exception:  # noqa: BLE001 - logged; the thread goes on
            _log.exception("readable rows could not be written")
        with self._lock:
            self._idle += 1
            if self._closed or (self._idle > _IDLE and not self._steps):
                self._ticker = None
                return False
        return True

    async def write(self) -> None:
        """Write the rows that are missing now."""
        with self._lock:
            steps, since = self._steps, self._since
            self._steps, self._since = {}, {}
            self._kept = self._bytes = 0
        now = self._context.clock()
        for tenant, at in list(self._look_at.items()):
            if now >= at:
                for line in await self._left(tenant, now, steps.keys()):
                    steps.setdefault(line, None)
        try:
            while steps:
                chunk = dict(list(steps.items())[:_LINES_AT_ONCE])
                await self._write_lines(chunk)
                for line in chunk:
                    del steps[line]
        finally:
            with self._lock:
                for line in steps:  # they are read from the log, with what was saved meanwhile
                    self._steps[line] = None
                    self._since[line] = since.get(line, now)

    async def _left(self, tenant: str, now: int, own: Set[Line]) -> set[Line]:
        """Return the lines with steps whose rows somebody has left, and decide when to look again."""
        (rows,) = await self._backend.read([Scan(BEHIND, (tenant,))])
        left: set[Line] = set()
        wait = _LOOK_SECONDS
        for row in rows:
            line = Line(str(row.key[0]), str(row.key[1]))
            if int(row.columns[0]) < now - _LEFT_SECONDS * 10**9:
                left.add(line)
            elif line not in own:
                wait = _LEFT_SECONDS  # whoever saved it may have died since
        self._look_at[tenant] = now + wait * 10**9
        return left - self._failed

    async def _write_lines(self, chunk: dict[Line, list[ProjectedStep] | None]) -> None:
        """Write the rows of some lines together, or one by one if others changed one of them."""
        prepared: list[RowChanges] = []
        total = 0
        for line, steps in chunk.items():
            rows = await self._prepare(line, steps)
            if rows is None:
                await self._rebuild(line)
            elif rows.changes:
                prepared.append(rows)
                total += len(rows.changes)
        together = len(prepared) > 1 and total <= _CHANGES_AT_ONCE
        if together and await self._apply(prepared):
            return
        for rows in prepared:
            if not await self._apply([rows]):
                again = await self._prepare(rows.line, chunk[rows.line])
                if again is None or not await self._apply([again]):
                    await self._rebuild(rows.line)

    async def _prepare(self, line: Line, steps: list[ProjectedStep] | None) -> RowChanges | None:
        """Return the changes that write the rows of some steps; None if the log has to be read."""
        if not steps or len({each.info.version for each in steps}) > 1:
            return None
        try:
            rows = await self._projector.rows(line, steps)
        except MissingNode:
            return None  # the line was rewritten meanwhile
        rows.changes.insert(0, self._lines.line_unchanged(line, steps[-1].info))
        rows.changes += (Delete(BEHIND, (*line, each.point.id)) for each in steps)
        return rows

    async def _apply(self, prepared: Sequence[RowChanges]) -> bool:
        """Apply the changes of lines. False if one of them was changed by others."""
        if await self._backend.apply([change for rows in prepared for change in rows.changes]) is not None:
            for rows in prepared:
                self._projector.forget(rows.line)
            return False
        for rows in prepared:
            self._projector.remember(rows)
        return True

    async def _rebuild(self, line: Line) -> None:
        """Make the rows of a line from its log."""
        try:
            await self._projector.build(line)
        except (HoldfastError, MissingNode) as error:
            self._failed.add(line)
            _log.info("the readable rows of %r are not written: %s", line.name, error)

    # Metrics

    def _samples(self) -> Iterator[Sample]:
        with self._lock:
            oldest = min(self._since.values(), default=0)
            count = sum(1 if steps is None else len(steps) for steps in self._steps.values())
        yield Sample(READABLE_BEHIND, (), count)
        yield Sample(READABLE_LAG, (), max(0.0, (self._context.clock() - oldest) / 1e9) if oldest else 0.0)
