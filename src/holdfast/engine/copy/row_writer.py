"""Writing the rows of a copy: in batches, as far as possible unseen, and then the row by which the line is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.backends.interface import Batch, Change, Create, Delete, Expect, Put, Row
from holdfast.backends.tables import LINES, NODES, OBJECTS, REFS, Scalar
from holdfast.engine.context import Apply, EngineContext
from holdfast.engine.copy.line_stream import OF_LINE
from holdfast.engine.copy_mark import copy_key, copy_mark, remove_remains, start_copy
from holdfast.engine.optimistic import ConcurrentChange
from holdfast.engine.row_format import Line

BATCH_BYTES = 4 << 20
BATCH_ROWS = 256
_JOINT_BYTES = 4 << 20

_UNSEEN = (NODES, OBJECTS)
"""Tables whose rows nobody sees without the steps that need them."""


class RowWriter:
    """Writes rows into a store in batches, each on some conditions, and within the quota of the tenant."""

    def __init__(self, context: EngineContext, conditions: Callable[[], Sequence[Change]] = tuple) -> None:
        self._context = context
        self._conditions = conditions
        self._limit = min(BATCH_BYTES, context.backend.capabilities.max_batch)
        self._changes: list[Change] = []
        self._size = 0
        self.rows: int = 0
        self.bytes: int = 0

    async def put(self, change: Create | Put) -> None:
        """Write a row, together with others."""
        body = len(change.row.body)
        if self._changes and (self._size + body > self._limit or len(self._changes) >= BATCH_ROWS):
            await self.flush()
        self._changes.append(change)
        self._size += body

    async def flush(self) -> None:
        """Write the rows that were put and are not written yet."""
        changes, size = self._changes, self._size
        self._changes, self._size = [], 0
        if changes:
            await self.write(changes)
            self.rows += len(changes)
            self.bytes += size

    async def write(self, changes: Sequence[Change], apply: Apply | None = None) -> None:
        """Apply changes at once. `ConcurrentChange` if a condition does not hold, or a row to be created exists."""
        await self.require([*self._conditions(), *changes], apply)

    async def require(self, changes: Sequence[Change], apply: Apply | None = None) -> None:
        """Apply changes without the usual conditions. `ConcurrentChange` if one of their own does not hold."""
        if await (apply or self._context.apply)(changes) is not None:
            raise ConcurrentChange


class JointBatch:
    """Collects the batches of several lines, to be applied together."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._limit = min(_JOINT_BYTES, context.backend.capabilities.max_batch // 2)
        self._changes: list[Change] = []
        self._size = 0

    async def apply(self, batch: Batch) -> None:
        """Add a batch. `ConcurrentChange` if a condition of one of those before it does not hold."""
        size = sum(len(change.row.body) for change in batch if isinstance(change, Create | Put))
        if self._size + size > self._limit:
            await self.flush()
        self._changes += batch
        self._size += size

    async def flush(self) -> None:
        """Apply what was collected."""
        changes, self._changes, self._size = self._changes, [], 0
        if changes and await self._context.apply(changes) is not None:
            raise ConcurrentChange


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
        joint: JointBatch | None = None,
        *,
        collects: bool = False,
    ) -> None:
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

    async def begin(self, mark: Row | None) -> None:
        """Mark a line that does not exist as one that is copied, given the mark that is there."""
        if self._columns is None and (changes := await start_copy(self._context, self.line, self._source, mark)):
            # What is removed is listed next, so that it cannot wait for others.
            apply = None if mark is None else self._context.apply
            await self.require([Expect(LINES, tuple(self.line), None), *changes], apply)

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
            await super().write(changes, apply)

    async def require(self, changes: Sequence[Change], apply: Apply | None = None) -> None:
        """Apply changes at once, or together with those of other lines."""
        await super().require(changes, apply or (None if self._joint is None else self._joint.apply))

    async def finish(self, row: Row, apply: Apply | None) -> None:
        """Write the line's row, which makes it visible or current, and apply the deletions."""
        is_new = self._columns is None
        if is_new or self._collects:
            await self._remove()  # it is not visible yet
        # Steps that were appended do not change the row of a line, and there may be something to record about them.
        if self._columns != row.columns or self._last or (apply is not None and self.rows):
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
        await self.write([*await remove_remains(self._context, self.line), mark])

    async def _remove(self) -> None:
        for start in range(0, len(self.deletions), BATCH_ROWS):
            await self.write(self.deletions[start : start + BATCH_ROWS])
        self.deletions = []


def rename_row(row: Row, new: Line) -> Row:
    """Return a row as one of another line."""
    return Row((*new, *row.key[2:]), row.columns, row.body)
