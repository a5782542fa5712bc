"""Reading the rows of the timeline in the order of time: by the store's index, or by reading those of some lines."""

from __future__ import annotations

import base64
import binascii
import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest, nsmallest
from typing import NamedTuple

import msgspec

from holdfast.backends.interface import Backend, ColumnHint, Row, Scan
from holdfast.backends.paging import following
from holdfast.backends.tables import EVENTS, STEPS, TIME, Key, Table
from holdfast.engine.ids import time_of
from holdfast.engine.namespaces import is_thread
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.validation import cursor_error, cursor_text

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


_RANKS = {STEPS.name: 0, EVENTS.name: 1}
_TIME = {table.name: list(table.all_columns).index("time") - len(table.key) for table in (STEPS, EVENTS)}
_LARGEST = 2**63 - 2


class TimelinePosition(NamedTuple):
    """The position of a row: by time, then by its line, its table and its key."""

    time: int
    line: str
    rank: int
    first: str | int
    second: int

    def bound(self, table: Table, *, after: bool) -> Key:
        """Return where a scan of a table by time starts, or where it ends, to have all rows after this position, or all
        before it."""
        rank = _RANKS[table.name]
        if rank == self.rank:
            return (self.time, self.line, self.first, self.second + after)
        return (self.time, self.line + "\0") if rank < self.rank else (self.time, self.line)

    def cursor(self, question: str) -> str:
        """Return the position as a cursor of a question."""
        data = msgspec.json.encode([_digest(question), *self])
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    @classmethod
    def parse(cls, cursor: object, question: str) -> TimelinePosition | None:
        """Return the position of a cursor; None without one. `InvalidError` if it is another question's."""
        if cursor is None:
            return None
        text = cursor_text(cursor)
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            digest, time, line, rank, first, second = msgspec.json.decode(
                data, type=tuple[str, int, str, int, str | int, int]
            )
        except (binascii.Error, msgspec.MsgspecError, ValueError):
            raise cursor_error(cursor) from None
        numbers = (time, second, *([first] if isinstance(first, int) else []))
        fits = all(0 <= number <= _LARGEST for number in numbers) and isinstance(first, str if rank else int)
        if digest != _digest(question) or rank not in (0, 1) or not fits:
            raise cursor_error(cursor)
        return cls(time, line, rank, first, second)


def _digest(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:12]


class TimedRow(NamedTuple):
    """A row of the timeline: a step of a thread, or an event."""

    position: TimelinePosition
    table: Table
    row: Row

    @classmethod
    def of(cls, table: Table, row: Row) -> TimedRow:
        """Return the row with its position."""
        _, line, first, second = row.key
        time = int(row.columns[_TIME[table.name]])
        return cls(TimelinePosition(time, str(line), _RANKS[table.name], first, int(second)), table, row)  # type: ignore[arg-type]

    @property
    def line(self) -> Line:
        """The line that has the row."""
        return Line(str(self.row.key[0]), self.position.line)

    @property
    def point(self) -> StepRef:
        """The step, if it is one."""
        return StepRef.of(self.row)


RowTest = Callable[[TimedRow], bool]
"""Returns whether a row may be in the answer, by its columns."""
