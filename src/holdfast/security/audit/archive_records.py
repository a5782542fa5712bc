"""The record of what was archived of the audit: a system line, with the steps whose records are in a segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.backends.interface import Change, Delete
from holdfast.backends.tables import EVENTS
from holdfast.engine.engine import Engine
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.model.scopes import MARK
from holdfast.engine.record_table import RecordTable
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import LineChange, SystemLine, SystemLineEntries
from holdfast.errors import ConflictError

LINE = f"{MARK}archives"
"""The name of the system line."""

_SEGMENT = "segment/"


class ArchivedRange(NamedTuple):
    """Steps of a line, from one id to another, whose records are in a segment, except those that stayed."""

    segment: int
    line: str
    first: str
    last: str
    retained: frozenset[str]
    rows: int

    def has(self, id: str) -> bool:
        """Return whether the records of a step are in the segment alone."""
        return self.first <= id <= self.last and id not in self.retained

    def to_list(self) -> list[Any]:
        """Return the stored form."""
        return list(self._replace(retained=sorted(self.retained)))  # type: ignore[arg-type]

    @classmethod
    def of(cls, stored: Sequence[Any], _version: int = 0) -> ArchivedRange:
        """Build a range from its stored form."""
        range_ = cls(*stored)
        return range_._replace(retained=frozenset(range_.retained))


class ArchiveRecords:
    """The record of a tenant of what was archived."""

    def __init__(self, engine: Engine, tenant: str, actor: str = "") -> None:
        self._engine = engine
        self._line = SystemLine(engine, Line(tenant, LINE), actor)
        self._ranges = RecordTable(self._line, "range", ArchivedRange.of, ArchivedRange.to_list, prefix=_SEGMENT)

    async def ranges(self) -> list[ArchivedRange]:
        """Return the archived ranges, in the order in which they were archived."""
        found = (await self._ranges.all()).values()
        return sorted(found, key=lambda each: (each.segment, each.line, each.first))

    async def move(self, range_: ArchivedRange, steps: Sequence[str]) -> None:
        """Remove the records of steps, and record where they are, in one batch."""
        engine, line = self._engine, Line(self._line.line.tenant, range_.line)

        async def edit(entries: SystemLineEntries) -> LineChange:
            name = f"{range_.segment:08}/{range_.first}/{range_.line}"
            if await self._ranges.find(name, entries) is not None:
                raise ConflictError("another process is archiving the audit", where=engine.context.backend.url)
            return LineChange(self._ranges.pack({name: range_}))

        async def conditions(_: bool) -> list[Change]:
            held: Sequence[Change] = await require_no_hold(engine.context.backend, [line])
            # With a new version, so that copies and backups compare all rows.
            changed = engine.lines.new_version(line, await engine.lines.info(line))
            return [*held, *changed, *(Delete(EVENTS, (*line, id)) for id in steps)]

        await engine.writer.save(self._line.request("archive", edit, conditions))
        engine.context.cache.drop(("line", line))


def segment_of(ranges: Sequence[ArchivedRange], id: str) -> int:
    """Return the segment that has the records of a step of the line of these ranges; 0 if none has."""
    return next((each.segment for each in ranges if id and each.has(id)), 0)


async def archived_segments(engine: Engine, tenant: str) -> list[str]:
    """Return which segments of the audit were archived: an erasure or a redaction does not reach them."""
    segments = {each.segment for each in await ArchiveRecords(engine, tenant).ranges()}
    return [f"{len(segments)} archived segments of the audit, files outside of the store"] if segments else []
