"""Writing one line of a copy: as far as possible unseen, and then the row by which it is found."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.interface import Change, Create, Delete, Expect, Put, Row
from holdfast.backends.tables import LINES, NODES, OBJECTS, REFS, Scalar
from holdfast.engine.context import Apply, EngineContext
from holdfast.engine.copy.line_rows import OF_LINE
from holdfast.engine.copy.row_writer import BATCH_ROWS, JointBatch, RowWriter
from holdfast.engine.copy_mark import copy_key, copy_mark, remove_remains, start_copy
from holdfast.engine.row_format import Line

_UNSEEN = (NODES, OBJECTS)
"""Tables whose rows nobody sees without the steps that need them."""


class LineWriter(RowWriter):
    """Writes rows of one line into a store, as long as the line's row there does not change.

    A line that does not exist is marked as one that is copied. `collects` says that all changes that somebody would see
    of a line that exists are applied by the last batch.
    """

    def __init__(
        self,
        context: EngineContext,
        line: Line,
        columns: tuple[Scalar, ...] | None,
        source: str,
        *,
        collects: bool = False,
        joint: JointBatch | None = None,
    ) -> None:
        """With `joint`, batches are applied together with those of other lines."""
        super().__init__(context, self._unchanged)
        self.line = line
        self._columns = columns
        self._source = source
        self._joint = joint
        self._collects = collects and columns is not None
        self._last: list[Change] = []
        self.deletions: list[Change] = []
        """Deletions that are applied last."""

    def _unchanged(self) -> list[Change]:
        same: list[Change] = [Expect(LINES, tuple(self.line), self._columns)]
        if self._columns is None:
            mark = copy_mark(self.line, self._source)
            same.append(Expect(REFS, mark.key, mark.columns))
        return same

    async def begin(self) -> None:
        """Mark a line that does not exist as one that is copied."""
        if self._columns is None and (changes := await start_copy(self._context, self.line, self._source)):
            await self.require([Expect(LINES, tuple(self.line), None), *changes])

    async def put(self, change: Create | Put) -> None:
        if self._collects:
            is_late = change.space not in _UNSEEN
        else:
            is_late = self._columns is None and change.space is REFS and change.row.key[2] in OF_LINE
        if is_late:
            self._last.append(change)
        else:
            await super().put(change)

    async def write(self, changes: Sequence[Change], apply: Apply | None = None) -> None:
        if self._collects and not any(isinstance(each, Create | Put) for each in changes):
            self._last += changes
        else:
            await super().write(changes, apply or (None if self._joint is None else self._joint.apply))

    async def finish(self, row: Row, apply: Apply | None) -> None:
        """Write the line's row, which makes it visible or current, and apply the deletions."""
        is_new = self._columns is None
        if is_new or self._collects:
            await self._remove()  # it is not visible yet
        if self._columns != row.columns or self._last:
            bodies = [each.row.body for each in self._last if isinstance(each, Create | Put)]
            own: list[Change] = []
            if is_new:
                own = [Create(LINES, row), Delete(REFS, copy_key(self.line))]
            elif self._columns != row.columns:
                own = [Put(LINES, row)]
            await self.require([*self._conditions(), *self._last, *own], apply)
            self._columns, self._last = row.columns, []
            self.rows += 1 + len(bodies)
            self.bytes += len(row.body) + sum(map(len, bodies))
        await self._remove()

    async def clear(self) -> None:
        """Remove what was written of a line that does not exist."""
        mark = Delete(REFS, copy_key(self.line))
        await super().write([*await remove_remains(self._context, self.line), mark])

    async def _remove(self) -> None:
        for start in range(0, len(self.deletions), BATCH_ROWS):
            await self.write(self.deletions[start : start + BATCH_ROWS])
        self.deletions = []
