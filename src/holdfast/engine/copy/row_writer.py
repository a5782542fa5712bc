"""Writing the rows of a copy: in batches, and under the name of another line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.backends.interface import Batch, Change, Create, Put, Row
from holdfast.engine.context import Apply, EngineContext
from holdfast.engine.optimistic import ConcurrentChange
from holdfast.engine.row_format import Line

BATCH_BYTES = 4 << 20
BATCH_ROWS = 256
_JOINT_BYTES = 4 << 20


class RowWriter:
    """Writes rows into a store in batches, each on some conditions, and within the quota of the tenant."""

    def __init__(self, context: EngineContext, conditions: Callable[[], Sequence[Change]] = tuple) -> None:
        self._context = context
        self._conditions = conditions
        self._limit = min(BATCH_BYTES, context.backend.capabilities.max_batch)
        self._changes: list[Change] = []
        self._size = 0
        self.rows = 0
        self.bytes = 0

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


def rename_row(row: Row, new: Line) -> Row:
    """Return a row as one of another line."""
    return Row((*new, *row.key[2:]), row.columns, row.body)
