"""Pending writes: what tasks of a step have produced before the step that takes it in exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.backends.port import Change, Ensure, Put, Row, Scan
from holdfast.backends.spaces import LINES, WRITES
from holdfast.engine.ground import Ground
from holdfast.engine.lines import Lines
from holdfast.engine.records import Line, info_row, open_write, write_body


class Write(NamedTuple):
    """A value that a task wrote to a channel, packed. A negative place is for marks that replace each other."""

    path: str
    task: str
    place: int
    channel: str
    packed: bytes


class Writes:
    """Keeps pending writes by the id of the step that they follow, which may not be there yet."""

    def __init__(self, ground: Ground, lines: Lines) -> None:
        self._ground = ground
        self._lines = lines

    async def put(self, line: Line, step: str, writes: Sequence[Write]) -> None:
        """Store writes. One that is there already stays as it is, unless its place is negative."""
        rows: list[Change] = []
        for write in writes:
            key = (*line, step, write.path, write.task, write.place)
            row = Row(key, (write.channel,), write_body(line, step, write.channel, write.packed))
            rows.append(Put(WRITES, row) if write.place < 0 else Ensure(WRITES, row))
        while True:
            memo = await self._lines.memo(line)
            if memo is None:
                first: Change = Ensure(LINES, info_row(line, self._lines.new_info()))
            else:
                first = self._lines.unchanged(line, memo.info)
            if await self._ground.backend.apply([first, *rows]) is None:
                return
            await self._lines.look(line)

    async def of(self, line: Line, step: str) -> list[Write]:
        """The writes that follow a step, by path, task and place."""
        (rows,) = await self._ground.backend.read([Scan(WRITES, (*line, step))])
        writes = []
        for row in rows:
            _, _, _, path, task, place = row.key
            channel = str(row.columns[0])
            packed = open_write(line, step, channel, row.body, self._ground.max_bytes)
            writes.append(Write(str(path), str(task), int(place), channel, packed))
        return writes
