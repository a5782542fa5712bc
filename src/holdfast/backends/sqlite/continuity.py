"""Checks of a file while a store has it open: it is the same file, with the same log, and it has what was
acknowledged last.

Commits are ordered: a file that has the last one has all before it.
"""

from __future__ import annotations

import os
import time

import apsw

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Batch, Create, Delete, Put
from holdfast.backends.sqlite.schema import STATEMENTS
from holdfast.backends.tables import Key, Scalar, Table
from holdfast.errors import CorruptError, UnavailableError

_INTERVAL = 0.01
"""How many seconds pass between two checks of the log, and of the file by readers. Writers check it with every commit:
what was written to a log without a name can still be saved, and what was written to such a file cannot."""


class FileIdentity:
    """Detects that the file or its log was deleted or replaced. Both continue to exist without names while they are
    open, and SQLite would write to them."""

    def __init__(self, path: str, where: str) -> None:
        self._path = path
        self._log_path = f"{path}-wal"
        self._where = where
        self._file: _Stamp | None = None
        self._log: _Stamp | None = None
        self._commits = 0
        self._check_at = 0.0

    def record(self) -> None:
        """Record the file that has just been opened. In a VFS with names of its own there is none to compare."""
        self._file, self._log = _stamp(self._path), None

    def forget_log(self) -> None:
        """Forget the log: SQLite may create a new one while this store has no connection."""
        self._log = None

    def is_replaced(self) -> bool:
        """Return whether the name refers to another file now, or to none."""
        if self._file is None:
            return False
        file = _stamp(self._path)
        return file is None or file.inode != self._file.inode

    def is_readable(self) -> bool:
        """Return whether the name does not refer to another file, as of a moment ago."""
        now = time.monotonic()
        if now < self._check_at:
            return True
        self._check_at = now + _INTERVAL
        return not self.is_replaced()

    def is_in_place(self, connection: apsw.Connection) -> bool:
        """Return whether what is written now will be in the file of that name, and in its log as of a moment ago."""
        if self._file is None:
            return True
        file = _stamp(self._path)
        if file is None or file.inode != self._file.inode:
            return False
        now = time.monotonic()
        if now >= self._check_at or self._log is None:
            log = _stamp(self._log_path)
            if self._log is not None and (log is None or log.inode != self._log.inode):
                return False
            # A new connection creates the log when it is first used.
            self._file, self._log, self._commits = file, log, connection.pragma("data_version")
            self._check_at = now + _INTERVAL
        return True

    def is_log_own(self, connection: apsw.Connection) -> bool:
        """Return whether the log can be written back to the file that is open, wherever that is now: nobody else has
        written to this log, or to what has the name of the file."""
        log = _stamp(self._log_path)
        if self._log is None or (log is not None and log.inode != self._log.inode):
            return False
        if not self.is_replaced() and _stamp(self._path) != self._file:
            return False
        return bool(connection.pragma("data_version") == self._commits)

    def error(self) -> UnavailableError:
        """Return the error to raise if the file or its log was replaced."""
        what = "the file" if self.is_replaced() else "the write-ahead log of the file"
        return UnavailableError(
            f"{what} was deleted or replaced while the store was open",
            where=self._where,
            hint="Move it back, or open the store again; what was being written may not be stored",
            code="file-replaced",
        )


class _Stamp(NamedTuple):
    inode: int
    written: int


def _stamp(path: str) -> _Stamp | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - twice as fast, and called for every commit
    except OSError:
        return None
    return _Stamp(status.st_ino, status.st_mtime_ns)


class LastRow(NamedTuple):
    """The last row that an acknowledged batch created. Such rows are rarely changed, as others are."""

    space: Table
    key: Key
    columns: tuple[Scalar, ...]

    def is_in(self, cursor: apsw.Cursor) -> bool:
        """Return whether a file has the row."""
        statements = STATEMENTS[self.space.name]
        return cursor.execute(statements.expect, self.key).fetchall() == [statements.expected(self.columns)]


def last_row(before: LastRow | None, batch: Batch) -> LastRow | None:
    """Return the last row that was created, after a batch has been committed; None if the batch removed it."""
    for change in reversed(batch):
        if isinstance(change, Create):  # what a batch writes, it neither writes again nor removes
            return LastRow(change.space, change.row.key, change.row.columns)
    for change in batch:
        if before is None or change.space is not before.space:
            continue
        if isinstance(change, Put) and change.row.key == before.key:
            before = LastRow(change.space, before.key, change.row.columns)
        elif isinstance(change, Delete) and before.key[: len(change.prefix)] == change.prefix:
            before = None
    return before


def lost_row(where: str) -> CorruptError:
    """Return the error to raise if a file lacks the last row that was acknowledged."""
    return CorruptError(
        "the file was reopened after a failure, and the last acknowledged changes are missing from it",
        where=where,
        hint="It was lost in the failure, unless another process removed it since. Verify the store, repair it from a "
        "copy if there is one, and open it again",
        code="lost-writes",
    )
