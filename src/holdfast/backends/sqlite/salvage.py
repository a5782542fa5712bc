"""Salvaging a SQLite file: what can be read of a damaged one, in a new one in its place.

Where a page is damaged its rows can be neither read nor removed. So all that reads is copied into a new file beside it,
row by row around the damage; rows that only a page's checksum speaks against are taken over if they are sound by
themselves. The damaged file stays, under another name. At every moment one of the two, whole, has the file's name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import apsw

from holdfast.backends.fsutil import flush_folder
from holdfast.backends.interface import Ensure, Query, Row, RowCheck
from holdfast.backends.paging import UnreadableRange, rows, sturdy_rows
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite import database_file, errors
from holdfast.backends.sqlite.backend import SQLiteBackend, answers
from holdfast.backends.sqlite.database_file import FileOptions
from holdfast.backends.sqlite.header_repair import with_beginning
from holdfast.backends.tables import LATER, TABLES, Table
from holdfast.errors import ConflictError, CorruptError, UnavailableError

_BATCH = 256
_PAGE = 1000
_MOST_NUMBER = 1 << 62
_STRIDE = 1 << 16
"""Rows are numbered from 1 on as they come. A stretch of so many is looked into at most when it does not read."""


_MOST_FAILED = 20_000
"""After so many stretches in which nothing was read, nothing more is expected."""


class Salvaged(NamedTuple):
    """What was saved of a file: how many rows were read; how many were not taken, since they are damaged themselves;
    and where rows could not be read. `damaged` is where the damaged file is now."""

    rows: int
    refused: int
    holes: list[UnreadableRange]
    damaged: str


def salvage(path: str, sound: RowCheck, into: str | None = None) -> Salvaged:
    """Put a new file in the place of a damaged one, with all that can be read of that; or only make the new file, under
    another name.

    `ConflictError` while another process has the file open. `CorruptError` if nothing can be read of it. Begun again
    after an interruption, it starts anew; nothing was changed before the new file was complete.
    """
    new = Path(into or f"{path}.salvage")
    copy = Path(f"{new}-copy")
    _remove(new)
    _remove(copy)
    run(run(SQLiteBackend.open(f"sqlite:///{quote(str(new))}")).close())
    connection, readable = _connect(path, alone=into is None), True
    try:
        source = _Source(connection)
        try:
            tables = source.tables()
        except CorruptError as error:
            source, tables = _from_copy(Path(path), new, copy, error)
            connection.close(force=True)
            connection, readable = source.connection, False
        target = run(SQLiteBackend.open(f"sqlite:///{quote(str(new))}"))
        try:
            copied = _Copy(source, target, sound)
            for space in TABLES:
                if space.name in tables:
                    run(copied.space(space))
            wrong = run(target.check())
        finally:
            run(target.close())
        kept = _count(str(new))
        if not readable and not kept:
            _remove(new)
            raise _nothing(path, "no row was found in it")
        if wrong:
            raise CorruptError(f"the salvaged file is not sound: {wrong[0]}", where=str(new), hint="Look at the disk")
        damaged = "" if into is not None else str(_swap(connection if readable else None, Path(path), new))
    finally:
        connection.close(force=True)
        _remove(copy)
    return Salvaged(kept, copied.refused, copied.holes, damaged)


def _from_copy(path: Path, new: Path, copy: Path, error: CorruptError) -> tuple[_Source, set[str]]:
    """A file that cannot be read at all, in a copy with another beginning."""
    _check_alone(path)
    for tables in (False, True):
        if not with_beginning(path, new, copy, tables=tables):
            break
        connection = _connect(str(copy), alone=True)
        _trust(connection)
        source = _Source(connection)
        try:
            found = source.tables()
            if {space.name for space in TABLES} - {space.name for space in LATER} <= found:
                return source, found
        except CorruptError:
            pass  # with another list of tables, perhaps
        connection.close(force=True)
        _remove(copy)
    _remove(new)
    raise error


def _check_alone(path: Path) -> None:
    """`ConflictError` while another process has a file open of which SQLite itself cannot tell, since it cannot read
    it."""
    if os.name == "posix":
        import fcntl

        with path.open("r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # where readers have their locks
            except OSError as error:
                raise _in_use(str(path)) from error


def _nothing(path: str, why: str) -> CorruptError:
    return CorruptError(
        f"nothing can be read of the file: {why}",
        where=path,
        hint="Check that it is the right one. If it is, put it aside, and restore it from a backup, or make it anew "
        "from a mirror or a copy: holdfast copy",
    )


def _in_use(path: str) -> ConflictError:
    hint = "Stop what uses the store, and repair it again"
    return ConflictError("another process has the file open", where=path, hint=hint)


def _count(path: str) -> int:
    """How many rows there are."""
    connection = database_file.connect(
        FileOptions(path, path, "full", 1.0, None, exclusive=False, read_only=True, frozen=True)
    )
    try:
        counts = [connection.execute(f"SELECT count(*) FROM {space.name}").get for space in TABLES]  # noqa: S608
        return sum(map(int, counts))
    finally:
        connection.close(force=True)


def _connect(path: str, *, alone: bool) -> apsw.Connection:
    """A connection to the file; one that keeps others out, if it is to be alone."""
    connection = database_file.connect(FileOptions(path, path, "full", 1.0, None, exclusive=alone))
    try:
        if alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        else:
            connection.execute("PRAGMA query_only = 1")
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").get  # noqa: B018 - takes the lock
        except errors.BUSY as error:
            raise _in_use(path) from error
        except apsw.Error as error:
            if not errors.is_damage(error):
                raise errors.translate(error, path) from error
            _trust(connection)
    except BaseException:
        connection.close(force=True)
        raise
    return connection


def _trust(connection: apsw.Connection) -> None:
    """Read pages whatever their checksums say."""
    connection.execute("PRAGMA checksum_verification = 0")


class _Source:
    """The damaged file."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def tables(self) -> set[str]:
        """The tables that it has."""
        try:
            return {name for (name,) in self.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        except apsw.Error as error:
            raise _nothing(self.connection.filename, str(error)) from error

    def trust(self, trusting: bool) -> None:
        """Whether to read pages whose checksums are wrong."""
        self.connection.execute(f"PRAGMA checksum_verification = {int(not trusting)}")
        self.connection.execute("PRAGMA shrink_memory")

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        """As a backend reads."""
        cursor = self.connection.cursor()
        try:
            found = answers(cursor, queries)
            if not all(_fits(query.space, row) for query, each in zip(queries, found, strict=True) for row in each):
                raise CorruptError(
                    "a row is none of this table", where=self.connection.filename
                )  # pages changed places
            return found
        except apsw.Error as error:
            raise errors.translate(error, self.connection.filename) from error
        except UnicodeDecodeError as error:
            raise CorruptError(f"a name is no text: {error}", where=self.connection.filename) from error
        finally:
            if self.connection.in_transaction:
                cursor.execute("ROLLBACK")

    def numbered(self, space: Table) -> Iterator[Row]:
        """The rows of a table in the order in which they were written, which takes no index, as far as they can be
        read; none of a table that has no such order."""
        columns = ", ".join(space.all_columns)
        sql = f"SELECT {columns}, body, rowid FROM {space.name} NOT INDEXED WHERE rowid >= ? AND rowid < ? LIMIT ?"  # noqa: S608
        todo = [(0, _MOST_NUMBER)]
        failed = 0
        while todo and failed < _MOST_FAILED:
            low, high = todo.pop()
            try:
                found = list(self.connection.execute(sql, (low, high, _PAGE)))
            except apsw.SQLError:
                return
            except (apsw.Error, UnicodeDecodeError):
                failed += 1
                if high - low > 1:
                    middle = min((low + high) // 2, low + _STRIDE)
                    todo += [(middle, high), (low, middle)]
                continue
            failed = 0 if found else failed
            for row in found:
                yield Row(row[: len(space.key)], row[len(space.key) : -2], row[-2])
            if len(found) == _PAGE:
                todo.append((int(found[-1][-1]) + 1, high))


class _Copy:
    """Copies rows of one file to another."""

    def __init__(self, source: _Source, target: SQLiteBackend, sound: RowCheck) -> None:
        self._source = source
        self._target = target
        self._sound = sound
        self._batch: list[Ensure] = []
        self.refused = 0
        self.holes: list[UnreadableRange] = []

    async def space(self, space: Table) -> None:
        """Copy a table: if its pages have the right checksums, as it is; else what is sound by itself."""
        self._source.trust(False)
        try:
            async for row in rows(self._source, space, ()):
                await self._take(space, row)
        except CorruptError:
            await self._flush()
            await self._doubtful(space)
        await self._flush()

    async def _doubtful(self, space: Table) -> None:
        """What can be read of a table whatever the checksums say; what was copied before stays."""
        self._source.trust(True)
        holes: list[UnreadableRange] = []
        async for row in sturdy_rows(self._source, space, (), holes):
            await self._judge(space, row)
        if holes:
            # Perhaps only the index by which they are found is damaged.
            for row in self._source.numbered(space):
                await self._judge(space, row)
        self.holes += holes

    async def _judge(self, space: Table, row: Row) -> None:
        if _fits(space, row) and self._sound(space, row):
            await self._take(space, row)
        else:
            self.refused += 1

    async def _take(self, space: Table, row: Row) -> None:
        self._batch.append(Ensure(space, row))
        if len(self._batch) >= _BATCH:
            await self._flush()

    async def _flush(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            await self._target.apply(batch)


def _fits(space: Table, row: Row) -> bool:
    """Whether a row can be one of a table."""
    typed = zip(space.all_columns.values(), (*row.key, *row.columns), strict=True)
    return all(type(value) is kind for kind, value in typed) and type(row.body) is bytes


def _swap(connection: apsw.Connection | None, path: Path, new: Path) -> Path:
    """Put the new file in the place of the old one, which gets another name. Without a connection, that of a file that
    cannot be read, its log goes with it."""
    damaged = _free_name(path)
    log = Path(f"{path}-wal")
    try:
        if connection is not None:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.Error as error:
        raise UnavailableError(
            f"the log of the damaged file cannot be written back: {error}",
            where=str(path),
            hint=f"What could be read is in {new}: stop all that uses the store, and put it in the file's place",
        ) from error
    os.link(path, damaged)
    if connection is None and log.exists():
        log.rename(f"{damaged}-wal")
    Path(f"{path}-shm").unlink(missing_ok=True)
    flush_folder(path.parent)
    new.replace(path)
    flush_folder(path.parent)
    return damaged


def _free_name(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    number = 0
    while True:
        name = path.with_name(f"{path.name}.damaged-{stamp}{f'-{number}' if number else ''}")
        if not name.exists():
            return name
        number += 1


def _remove(path: Path) -> None:
    for name in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        name.unlink(missing_ok=True)
