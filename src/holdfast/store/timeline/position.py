"""Positions on the timeline: the order of its rows, and cursors."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.backends.interface import Row
from holdfast.backends.tables import EVENTS, STEPS, Key, Table
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.validation import cursor_error, cursor_text

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
