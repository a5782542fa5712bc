"""Reading all lines of a store in order: many of them in one read, and few of them in memory.

A first backup reads everything, and one after the feed of changes was cut compares everything. Lines are taken in
groups, with scans over all lines of a group, and rows are read in pages. So a store of many small lines costs few
reads, and one of large lines little memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from holdfast.backends.interface import Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import LINES, Key, Table
from holdfast.engine.row_format import Line
from holdfast.errors import CorruptError
from holdfast.maintenance.backup.capture import LARGE, LineReader, Outline, filter_of, line_of

GROUP = 256
"""How many lines are read together."""
_ROWS = 2048
"""The most rows of one table that the outlines of a group are made from."""


class _LineScan:
    """A scan of a table over lines, of which the rows are taken line by line."""

    def __init__(self, reader: LineReader, table: Table, scan: AsyncIterator[Row]) -> None:
        self.table = table
        self._reader = reader
        self._scan = scan
        self._head: Row | None = None
        self._has_begun = False

    async def rows(self, line: Line, outline: Outline) -> AsyncIterator[Row]:
        """Yield the rows of the next line."""
        if not self._has_begun:
            self._has_begun, self._head = True, await anext(self._scan, None)
        includes = filter_of(self.table, outline)
        while (head := self._head) is not None and (place := line_of(head)) <= line:
            if place == line and includes(head.key):
                await self._reader.check(self.table, [head])
                yield head
            self._head = await anext(self._scan, None)


class StoreWalk:
    """Reads groups of lines."""

    def __init__(self, reader: LineReader, tenant: str | None) -> None:
        self._reader = reader
        self._tenant = tenant

    async def outlines(self, lines: Sequence[Line]) -> AsyncIterator[dict[Line, Outline | CorruptError]]:
        """Yield the outlines of lines, which are all that there are from the first to the last, in order and in parts,
        each as of one moment."""
        left = [*lines]
        while left:
            found: dict[Line, Outline | CorruptError] = {}
            cut: Line | None = left[0]
            with suppress(CorruptError):  # and then line by line
                found, cut = await self._reader.outlines_between(self._tenant, left[0], left[-1], _ROWS)
            whole = [line for line in left if cut is None or line < cut]
            if not whole:  # the first one has many rows, or cannot be read
                whole = left[:1]
                found = await self._reader.outlines(whole)
            yield {line: found.get(line, Outline(None, (), (), "")) for line in whole}
            del left[: len(whole)]

    async def rows(
        self, outlines: Mapping[Line, Outline]
    ) -> AsyncIterator[tuple[Line, AsyncIterator[tuple[Table, Row]]]]:
        """Yield lines in order, each with its rows of large tables at the moment of its outline, which have to be taken
        before the next. What is between the first and the last line is read, too. `CorruptError` if that is damaged."""
        lines = sorted(outlines)
        bounds = self._bounds(lines)
        scans = [
            _LineScan(self._reader, table, scan_rows(self._reader.stored, table, *bounds))
            for table in LARGE
            if await self._has_any(table, bounds)
        ]
        for line in lines:
            yield line, self._line_rows(scans, line, outlines[line])

    async def _line_rows(
        self, scans: Sequence[_LineScan], line: Line, outline: Outline
    ) -> AsyncIterator[tuple[Table, Row]]:
        for scan in scans:
            async for row in scan.rows(line, outline):
                yield scan.table, row

    async def changed(self, outlines: Mapping[Line, Outline]) -> set[Line]:
        """Return the lines whose own rows are not what they were: they were rewritten or deleted since."""
        if not outlines:
            return set()
        (rows,) = await self._reader.stored.read([Scan(LINES, *self._bounds(sorted(outlines)), bodies=False)])
        now = {line_of(row): row.columns for row in rows}
        return {line for line, each in outlines.items() if each.row is None or now.get(line) != each.row.columns}

    async def _has_any(self, table: Table, bounds: tuple[Key, Key, Key]) -> bool:
        (rows,) = await self._reader.stored.read([Scan(table, *bounds, limit=1, bodies=False)])
        return bool(rows)

    def _bounds(self, lines: Sequence[Line]) -> tuple[Key, Key, Key]:
        skipped = 0 if self._tenant is None else 1
        first, last = lines[0], lines[-1]
        return first[:skipped], first[skipped:], (*last[skipped:-1], last.name + "\0")
