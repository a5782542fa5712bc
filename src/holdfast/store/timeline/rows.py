"""Reading the rows of the timeline in the order of time: by the store's index, or by reading those of some lines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from heapq import nlargest, nsmallest
from typing import NamedTuple

from holdfast.backends.interface import Backend, ColumnHint, Scan
from holdfast.backends.paging import following
from holdfast.backends.tables import EVENTS, TIME, Key, Table
from holdfast.engine.ids import time_of
from holdfast.engine.namespaces import is_thread
from holdfast.store.timeline.position import RowTest, TimedRow, TimelinePosition

_FIRST, _MOST = 128, 2048
"""How many rows are read at a time: at first, and at most."""

SKEW = 3600 * 10**9
"""How much later than the time in the id of its step an event can have happened, in nanoseconds: clocks differ."""

MAX_TIME = 2**63 - 1


class TimeInterval(NamedTuple):
    """The times that are asked for: from one, inclusive, to another, exclusive, in nanoseconds since 1970."""

    since: int = 0
    until: int = MAX_TIME


class RowChunk(NamedTuple):
    """Rows in order; the position up to which all were read, None if that is the end; and how many were read."""

    rows: list[TimedRow]
    end: TimelinePosition | None
    examined: int


class TimelineReader(ABC):
    """Reads rows of steps and events in order, the newest first unless it is to read `forward`."""

    def __init__(self, backend: Backend, interval: TimeInterval, tables: Sequence[Table], *, forward: bool) -> None:
        self._backend = backend
        self._interval = interval
        self._tables = tables
        self._forward = forward

    @abstractmethod
    async def read(self, after: TimelinePosition | None, count: int, test: RowTest, most: int) -> RowChunk:
        """Return so many rows after a position that pass a test. Ends early after reading `most` rows."""

    def _bounds(self, table: Table, after: TimelinePosition | None) -> tuple[Key, Key]:
        """Return where a scan by time starts and where it stops."""
        start, stop = (self._interval.since,), (self._interval.until,)
        if after is None:
            return start, stop
        bound = after.bound(table, after=self._forward)
        return (max(start, bound), stop) if self._forward else (start, min(stop, bound))


def is_shown(row: TimedRow) -> bool:
    """Return whether a row is one of the timeline: a step of a thread that was not pruned, or any event. Those of other
    lines have events that describe them."""
    return row.table is EVENTS or (is_thread(row.position.line) and bool(row.row.columns[0]))


class IndexedRows(TimelineReader):
    """Reads all rows of a tenant by the store's index of times."""

    def __init__(
        self,
        backend: Backend,
        tenant: str,
        interval: TimeInterval,
        hints: Mapping[Table, tuple[ColumnHint, ...]],
        *,
        forward: bool,
    ) -> None:
        super().__init__(backend, interval, tuple(hints), forward=forward)
        self._tenant = tenant
        self._hints = hints

    async def read(self, after: TimelinePosition | None, count: int, test: RowTest, most: int) -> RowChunk:
        streams = [
            _TimeStream(self._backend, self._scan(table, after), min(max(count, 8), _FIRST)) for table in self._tables
        ]
        found: list[TimedRow] = []
        examined, position = 0, after
        while len(found) < count and examined < most:
            heads = [stream for stream in streams if await stream.fill()]
            if not heads:
                return RowChunk(found, None, examined)
            choose = min if self._forward else max
            row = choose(heads, key=lambda stream: stream.rows[0].position).rows.popleft()
            examined, position = examined + 1, row.position
            if is_shown(row) and test(row):
                found.append(row)
        return RowChunk(found, position, examined)

    def _scan(self, table: Table, after: TimelinePosition | None) -> Scan:
        start, stop = self._bounds(table, after)
        return Scan(
            table, (self._tenant,), start, stop, not self._forward, None, TIME, bodies=False, hints=self._hints[table]
        )


class _TimeStream:
    """The rows of a scan by time."""

    def __init__(self, backend: Backend, scan: Scan, size: int) -> None:
        self._backend = backend
        self._scan = scan
        self._size = size
        self._has_more = True
        self.rows: deque[TimedRow] = deque()

    async def fill(self) -> bool:
        """Read more rows if there are none left. Returns whether there are any."""
        if not self.rows and self._has_more:
            (found,) = await self._backend.read([self._scan._replace(limit=self._size)])
            self._has_more = len(found) == self._size
            self._size = min(2 * self._size, _MOST)
            self.rows.extend(TimedRow.of(self._scan.space, row) for row in found)
            if self.rows:
                time, line, _, first, second = self.rows[-1].position
                last: Key = (time, line, first, second)
                self._scan = self._scan._replace(
                    **{"stop": last} if self._scan.reverse else {"start": following(last)}  # type: ignore[arg-type]
                )
        return bool(self.rows)


class ScannedRows(TimelineReader):
    """Reads the rows of some lines, or of a whole tenant, and sorts them: for single lines, and for stores without an
    index of times. What it keeps is no more than what it returns."""

    def __init__(
        self,
        backend: Backend,
        prefixes: Mapping[Key, tuple[ColumnHint, ...]],
        interval: TimeInterval,
        tables: Sequence[Table],
        *,
        forward: bool,
    ) -> None:
        super().__init__(backend, interval, tables, forward=forward)
        self._prefixes = prefixes
        """The lines, each with hints about their events; or the tenant."""

    async def read(self, after: TimelinePosition | None, count: int, test: RowTest, most: int) -> RowChunk:  # noqa: ARG002
        pick = nsmallest if self._forward else nlargest
        found: list[TimedRow] = []
        examined = 0

        def is_in(row: TimedRow) -> bool:
            if not (self._interval.since <= row.position.time < self._interval.until and is_shown(row)):
                return False
            ahead = after is None or (row.position > after if self._forward else row.position < after)
            return ahead and test(row)

        for prefix, hints in self._prefixes.items():
            for table in self._tables:
                hinted = hints if table is EVENTS else ()
                scan = Scan(table, prefix, (), (), not self._forward, _MOST, bodies=False, hints=hinted)
                while True:
                    (rows,) = await self._backend.read([scan])
                    timed = [TimedRow.of(table, row) for row in rows]
                    examined += len(rows)
                    found = pick(count, [*found, *filter(is_in, timed)], key=lambda row: row.position)
                    if len(rows) < _MOST or self._is_past(timed[-1], found, count, prefix):
                        break
                    last = rows[-1].key[len(prefix) :]
                    scan = scan._replace(**{"start": following(last)} if self._forward else {"stop": last})  # type: ignore[arg-type]
        return RowChunk(found, found[-1].position if len(found) == count else None, examined)

    def _is_past(self, last: TimedRow, found: Sequence[TimedRow], count: int, prefix: Key) -> bool:
        """Return whether no row of a line that follows can be in the answer. Its events are ordered by the ids of their
        steps, and none happened after the time in the id; how long before does not matter, nor a clock that was set
        back."""
        recorded = time_of(str(last.row.key[2])) if last.table is EVENTS else 0
        if not recorded or len(prefix) < 2 or self._forward:
            return False
        worst = found[-1].position.time if len(found) >= count else self._interval.since
        return recorded < worst - SKEW
