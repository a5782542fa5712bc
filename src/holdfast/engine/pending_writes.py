"""Pending writes: values that the tasks of a step produced before the next step exists.

They are rows until the next step is stored after theirs. It takes over those that this process wrote: they have mostly
the same content as its changes, and compress to little more in one record. Writes of other processes, and those that
come later, stay rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Create, Ensure, Expect, Get, Put, Query, Row, Scan
from holdfast.backends.tables import LINES, STEPS, WRITES, Key
from holdfast.codec import Codec
from holdfast.engine.context import EngineContext
from holdfast.engine.guard import OWNER, current_authority
from holdfast.engine.lines import LineIndex
from holdfast.engine.model.steps import ANSWERED, RECORDED, PendingWriteRow
from holdfast.engine.row_format import Line, StepRef, info_row, open_write, open_writes, write_row
from holdfast.engine.thread_status import ThreadState, concurrent_status, forget_status, with_writes
from holdfast.engine.types import PendingWrite

if TYPE_CHECKING:
    from holdfast.engine.protection import Protection

_MAX_TAKEN = 1 << 18
"""The weight of writes up to which a step takes them over. Larger ones, and very many, are rows of their own."""

ROOM = 2 * _MAX_TAKEN
"""How far a step must be below the limit of its size to take over writes, so that they do not make it too large."""

_WEIGHT = 400
"""About how many bytes of memory a write takes besides its value."""


class _KnownWrites(NamedTuple):
    """The writes after a step that this process stored as rows while its line had a version, and their weight."""

    version: int
    writes: list[PendingWriteRow]
    weight: int


def known_writes(context: EngineContext, line: Line, version: int, step: str) -> Sequence[PendingWriteRow]:
    """Return the writes after a step that this process stored as rows while the line had this version, for the next
    step to take over. Under another version, they may have been removed since."""
    known: _KnownWrites | None = context.cache.get(("writes", line, step))
    return sorted(known.writes) if known is not None and known.version == version else ()


def forget_writes(context: EngineContext, line: Line, step: str) -> None:
    """Forget the writes after a step: the next step took them over."""
    context.cache.drop(("writes", line, step))


def _next(line: Line, point: StepRef) -> Key:
    """Return the key of the step that may have taken over the writes after a step."""
    return (*line, point.branch, point.seq + 1)


def decode_writes(codec: Codec, rows: Sequence[PendingWriteRow]) -> list[PendingWrite]:
    """Return the values of writes, without the calls that were recorded."""
    rows = [row for row in rows if row.task and row.channel not in (RECORDED, ANSWERED)]
    values = codec.unpack_items(row.packed for row in rows)
    return [PendingWrite(row.task, row.channel, value) for row, value in zip(rows, values, strict=True)]


class PendingWrites:
    """Stores pending writes by the id of the step that they follow, which need not exist yet."""

    def __init__(self, context: EngineContext, lines: LineIndex) -> None:
        self._context = context
        self._lines = lines
        self.protection: Protection | None = None
        """Replaces sensitive data; set when the first policy is added."""

    async def put(
        self, line: Line, step: str, writes: Sequence[PendingWriteRow], status: ThreadState | None = None
    ) -> None:
        """Store writes. An existing one is not replaced, unless its place is negative. They may change the status of
        the thread."""
        if self.protection is not None:
            writes = await self.protection.protect_writes(line, writes)
        rows = [(write_row(line, step, write), write.place < 0) for write in writes]
        # If all are new, it is known afterwards what is stored.
        ordinary: type[Create | Ensure] = Create
        authority = current_authority()
        again, preconditions = False, None if authority is OWNER else authority.conditions(self._context, line)
        marks: Sequence[Change] | None = None
        try:
            while True:
                conditions = [] if preconditions is None else await preconditions(again)
                tip = await self._lines.tip(line)
                if tip is None:
                    first: Change = Ensure(LINES, info_row(line, self._lines.new_info()))
                else:
                    first = self._lines.line_unchanged(line, tip.info)
                changes = [Put(WRITES, row) if is_mark else ordinary(WRITES, row) for row, is_mark in rows]
                head = None if tip is None else tip.point
                if marks is None and writes:
                    marks = with_writes(self._context, line, head, step, status, writes[0].task)
                elif marks and head is not None and step < head.id:
                    marks = ()  # the run went on meanwhile, and its status is a later one
                # A status that arrives late must not replace that of a later step.
                last = [Expect(STEPS, (*line, 0, 0) if head is None else _next(line, head), None)] if marks else []
                failed = await self._context.apply([*conditions, first, *last, *changes, *(marks or ())])
                if failed is None:
                    if marks and status is not None:
                        marks = concurrent_status(self._context, line, step, status, writes[0].task)
                        if marks:  # refused where a later step has a status of its own
                            await self._context.apply([*conditions, first, *last, *marks])
                    break
                if failed > len(conditions) + len(last):
                    ordinary = Ensure
                    continue
                again = True
                await self._lines.load_tip(line)
        except BaseException:
            if marks:
                forget_status(self._context, line)
            raise
        if ordinary is Create and tip is not None:
            self._remember(line, tip.info.version, step, [write for write in writes if write.place >= 0])

    def _remember(self, line: Line, version: int, step: str, writes: Sequence[PendingWriteRow]) -> None:
        """Remember writes that were stored as rows, as long as it is not too much for one step to take over."""
        known: _KnownWrites | None = self._context.cache.get(("writes", line, step))
        before, weight = (known.writes, known.weight) if known is not None and known.version == version else ([], 0)
        weight += sum(len(write.packed) + _WEIGHT for write in writes)
        if weight <= _MAX_TAKEN:
            self._context.cache.put(("writes", line, step), _KnownWrites(version, [*before, *writes], weight), weight)
        else:
            forget_writes(self._context, line, step)

    async def of_many(self, line: Line, points: Sequence[StepRef]) -> list[list[PendingWriteRow]]:
        """Return the writes that follow several steps, by path, task and number."""
        return self.decode(line, points, await self._context.backend.read(self.queries(line, points)))

    def queries(self, line: Line, points: Sequence[StepRef]) -> list[Query]:
        """Return the queries for the writes that follow several steps: for their rows, and for the next steps."""
        rows = (Scan(WRITES, (*line, point.id)) for point in points)
        return [*rows, Get(STEPS, [_next(line, point) for point in points])]

    def decode(
        self, line: Line, points: Sequence[StepRef], answers: Sequence[Sequence[Row]]
    ) -> list[list[PendingWriteRow]]:
        """Return the writes that follow several steps, given the answers to those queries."""
        *pages, following = answers
        taken = {row.key: open_writes(row, self._context.max_bytes) for row in following}
        found = []
        for point, rows in zip(points, pages, strict=True):
            # One that was repeated after it was taken over is a row, and the first one counts.
            writes = [*(open_write(row, self._context.max_bytes) for row in rows), *taken.get(_next(line, point), ())]
            found.append(sorted({(write.task, write.place): write for write in writes}.values()))
        return found
