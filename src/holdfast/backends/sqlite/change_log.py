"""The table `changes` of a SQLite file, from which `Backend.changes` answers.

Each transaction inserts a row for each line that it changes, with a number that increases. A process deletes the rows
that it inserted for the same line before, some at a time, so that the table stays small; a few thousand rows are kept.

A row without a line is a gap: a token of a number between `gap` and `number` is not answered completely. It stands for
rows that were removed, or for numbers that nobody has used: each process starts with a number far ahead. So a token
from a file that was later replaced by an older copy is recognised: in the copy its number is in a gap, or ahead.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import apsw

from holdfast.backends.feed import MAX_LINES, Line, build_token, changed_lines, parse_number, parse_token
from holdfast.backends.interface import Batch, Changes

_INSERT = "INSERT INTO changes (tenant, line) VALUES (?, ?)"  # the number is one more than the largest
_DELETE = "DELETE FROM changes WHERE number = ? AND line IS NOT NULL"  # another process may have made it a gap
_LAST = "SELECT coalesce(max(number), 0) FROM changes"
_INSERT_GAP = "INSERT INTO changes (number, gap) VALUES (?, ?)"
_OLDEST = "SELECT number FROM changes ORDER BY number DESC LIMIT 1 OFFSET ?"
_TRIM = "DELETE FROM changes WHERE number <= ?"
_FORGET_DELETED = """UPDATE changes SET tenant = NULL, line = NULL, gap = -1 WHERE line IS NOT NULL AND NOT EXISTS
  (SELECT 1 FROM lines WHERE lines.tenant = changes.tenant AND lines.line = changes.line)"""

# The last row comes in any case: it says whether the token is from the future.
_SINCE = """SELECT number, tenant, line, gap FROM changes
WHERE number > min(?, (SELECT max(number) FROM changes) - 1) ORDER BY number"""

_STRIDE = 1 << 32
"""How far ahead a process starts at most. The numbers last for four billion processes."""

_TRIM_EVERY = 4096
"""After how many rows that it inserted a process trims the table."""

_DELETE_AT_ONCE = 64

_random = random.SystemRandom()
"""Not the generator that a program may seed."""


class ChangeLog:
    """Records changes in the transactions of one process. After a transaction that was not committed, and after the
    file was opened again, a new one replaces it: the file may not have what it remembers."""

    def __init__(self) -> None:
        self._numbers: dict[Line, int] = {}
        self._replaced: list[tuple[int]] = []
        """The numbers of rows to delete: there are later ones of their lines."""
        self._started = False
        self._inserted = 0
        """How many rows this process inserted since it trimmed the table."""

    def record(self, cursor: apsw.Cursor, batches: Iterable[Batch]) -> None:
        """Record the lines that batches change."""
        lines = changed_lines(batches)
        if not lines and lines is not None:
            return
        if not self._started or self._inserted >= _TRIM_EVERY:
            self._start_or_trim(cursor)
        if lines is None:
            cursor.execute(_INSERT_GAP, (_last_number(cursor) + 1, -1))
            return
        numbers = self._numbers
        for line in lines:
            cursor.execute(_INSERT, line)
            if (before := numbers.get(line)) is not None:
                self._replaced.append((before,))
            numbers[line] = cursor.connection.last_insert_rowid()
            self._inserted += 1
        if len(self._replaced) >= _DELETE_AT_ONCE:
            cursor.executemany(_DELETE, self._replaced)
            self._replaced.clear()

    def _start_or_trim(self, cursor: apsw.Cursor) -> None:
        for (oldest,) in cursor.execute(_OLDEST, (MAX_LINES,)).fetchall():
            cursor.execute(_TRIM, (oldest,))
            cursor.execute(_INSERT_GAP, (oldest, -1))
        if not self._started:
            last = _last_number(cursor)
            cursor.execute(_INSERT_GAP, (last + _random.randint(2, _STRIDE), last))
            self._started = True
        # What was trimmed need not be remembered. A row that is forgotten here is trimmed later.
        self._numbers.clear()
        self._inserted = 0


def forget_deleted(cursor: apsw.Cursor) -> bool:
    """Remove the names of lines that do not exist any more. Tokens from before their last change become incomplete."""
    cursor.execute(_FORGET_DELETED)
    return False


def _last_number(cursor: apsw.Cursor) -> int:
    rows: list[tuple[Any, ...]] = cursor.execute(_LAST).fetchall()
    return int(rows[0][0])


def parse_since(since: str | None, where: str) -> int | None:
    """Return the number of a token."""
    if since is None:
        return None
    (number,) = parse_token(since, "sqlite", 1, where)
    return parse_number(number, since, where)


def read_changes(cursor: apsw.Cursor, since: int | None) -> Changes:
    """Return the lines that changed since a number."""
    if since is None:
        return Changes([], build_token("sqlite", _last_number(cursor)), complete=True)
    rows: list[tuple[Any, ...]] = cursor.execute(_SINCE, (since,)).fetchall()
    last: int = rows[-1][0] if rows else 0
    lines = [(tenant, line) for number, tenant, line, _ in rows if number > since and line is not None]
    in_gap = any(number > since > gap for number, _, line, gap in rows if line is None)
    return Changes(list(dict.fromkeys(lines)), build_token("sqlite", last), complete=since <= last and not in_gap)
