"""Pending writes: values that the tasks of a step produced before the next step exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.backends.interface import Change, Ensure, Put, Query, Row, Scan
from holdfast.backends.tables import LINES, WRITES
from holdfast.codec.envelope import wrap
from holdfast.engine.context import EngineContext
from holdfast.engine.guard import current_authority
from holdfast.engine.lines import LineIndex
from holdfast.engine.row_format import Line, info_row, open_body


class PendingWriteRow(NamedTuple):
    """A packed value that a task wrote to a channel. A negative number is for marks that replace each other."""

    path: str
    task: str
    place: int
    channel: str
    packed: bytes


class PendingWrites:
    """Stores pending writes by the id of the step that they follow, which need not exist yet."""

    def __init__(self, context: EngineContext, lines: LineIndex) -> None:
        self._context = context
        self._lines = lines

    async def put(self, line: Line, step: str, writes: Sequence[PendingWriteRow]) -> None:
        """Store writes. An existing one is not replaced, unless its place is negative."""
        rows: list[Change] = []
        for write in writes:
            row = write_row(line, step, write)
            rows.append(Put(WRITES, row) if write.place < 0 else Ensure(WRITES, row))
        again, preconditions = False, current_authority().preconditions
        while True:
            conditions = [] if preconditions is None else await preconditions(again)
            tip = await self._lines.tip(line)
            if tip is None:
                first: Change = Ensure(LINES, info_row(line, self._lines.new_info()))
            else:
                first = self._lines.line_unchanged(line, tip.info)
            if await self._context.apply([*conditions, first, *rows]) is None:
                return
            again = True
            await self._lines.load_tip(line)

    async def of(self, line: Line, step: str) -> list[PendingWriteRow]:
        """Return the writes that follow a step, by path, task and number."""
        return (await self.of_many(line, [step]))[0]

    async def of_many(self, line: Line, steps: Sequence[str]) -> list[list[PendingWriteRow]]:
        """Return the writes that follow several steps."""
        pages = await self._context.backend.read([self.query(line, step) for step in steps])
        return [self.decode(rows) for rows in pages]

    def query(self, line: Line, step: str) -> Query:
        """Return the query for the writes that follow a step."""
        return Scan(WRITES, (*line, step))

    def decode(self, rows: Sequence[Row]) -> list[PendingWriteRow]:
        """Return the writes in rows, by path, task and number."""
        return sorted(map(self._open, rows))

    def _open(self, row: Row) -> PendingWriteRow:
        _, _, _, task, place = row.key
        path, channel = map(str, row.columns)
        packed = open_body(row, self._context.max_bytes)
        return PendingWriteRow(path, str(task), int(place), channel, packed)


def write_row(line: Line, step: str, write: PendingWriteRow) -> Row:
    """Return the row of a write."""
    return Row((*line, step, write.task, write.place), (write.path, write.channel), wrap(write.packed))
