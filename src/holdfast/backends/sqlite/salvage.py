"""Salvages a damaged SQLite file: copies what can be read to a new file, which replaces it.

Rows on a damaged page can be neither read nor removed. So all readable rows are copied into a new file beside it, row
by row around the damage, if they pass the row check; then those of all pages, also below damaged interior pages. What
may be missing is stored in the new file. The damaged file is renamed. At every moment one of the two complete files has
the name of the store.

Without its header and its schema nothing of a file can be read, though all rows may be there. Both are the same in
every file of this release: so they are copied from a new one.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import apsw
import msgspec

from holdfast.backends.fsutil import flush_folder
from holdfast.backends.interface import Ensure, Get, Put, Query, Row, RowCheck
from holdfast.backends.paging import UnreadableRange, scan_readable_rows, scan_rows
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite import database_file, errors
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.sqlite.database_file import FileOptions
from holdfast.backends.sqlite.queries import read_rows
from holdfast.backends.sqlite.schema import STATEMENTS, WITH_ROWID
from holdfast.backends.tables import LINES, REFS, STEPS, TABLES, Key, Table
from holdfast.byte_reader import ByteReader
from holdfast.errors import ConflictError, CorruptError, UnavailableError

_HEADER_BYTES = 100
_PAGE_SIZE = 16
_PAGES = slice(28, 32)
_FREE_PAGES = slice(32, 40)
_INTERIOR = 5
_TREE_PAGE = struct.Struct(">BHHHBI")

_BATCH = 256
_PAGE = 1000
_MAX_ROWID = 1 << 62
_STRIDE = 1 << 16
"""Row ids start at 1. After an unreadable range, at most so many of them are tried at a time."""


_OF_WORDS = ("fts5: ", "malformed inverted index", "unable to validate the inverted index")
"""How SQLite begins what it says about the index of words, from which no row is read."""

_MAX_FAILED = 20_000
"""After so many ranges without a readable row, the search ends."""


class LostRows(msgspec.Struct, frozen=True):
    """The number of rows of a line that are gone from a table."""

    tenant: str
    line: str
    table: str
    rows: int


MarkLoss: TypeAlias = Callable[[str, list[str]], Row]
"""Returns the row of `refs` that says to a tenant from which tables rows may be missing."""


class SalvageReport(NamedTuple):
    """How many rows were copied; how many were not, as they are damaged themselves; and where rows could not be read.
    `damaged` is the new path of the damaged file."""

    rows: int
    refused: int
    holes: list[UnreadableRange]
    damaged: str
    lost: list[LostRows]
    """Rows that indexes name, and that are gone."""
    tables: list[str]
    """The tables from which rows may be missing."""


def salvage(path: str, row_check: RowCheck, into: str | None = None, mark: MarkLoss | None = None) -> SalvageReport:
    """Replace a damaged file by a new one with all readable rows; or only create the new file, at the path `into`.

    Raises `ConflictError` while another process has the file open, and `CorruptError` if nothing can be read. It may be
    repeated after an interruption: nothing changes before the new file is complete.
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
            copied = _Copy(source, target, row_check)
            for space in TABLES:
                if space.name in tables:
                    run(copied.space(space))
            is_incomplete = bool(copied.holes or copied.refused) or source.has_damaged_trees()
            if is_incomplete:
                if readable and into is None:
                    with suppress(apsw.Error):  # so that the pages in the file are the latest ones
                        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                run(copied.from_pages(str(copy) if not readable else path, source.page_size()))
                if mark is not None and copied.added:
                    run(copied.mark(mark))
            wrong = run(target.check())
        finally:
            run(target.close())
        count = _count(str(new))
        if not readable and not count:
            _remove(new)
            raise _unreadable_error(path, "no row was found in it")
        if wrong:
            raise CorruptError(f"the salvaged file is damaged: {wrong[0]}", where=str(new), hint="Check the disk")
        damaged = "" if into is not None else str(_replace_file(connection if readable else None, Path(path), new))
    finally:
        connection.close(force=True)
        _remove(copy)
    affected = copied.tables if is_incomplete else []
    return SalvageReport(count, copied.refused, copied.holes, damaged, copied.lost, affected)


def _from_copy(path: Path, new: Path, copy: Path, error: CorruptError) -> tuple[_Source, set[str]]:
    """Open a copy of a file that cannot be read, with a new header and, if needed, a new schema."""
    _check_unused(path)
    for tables in (False, True):
        if not _copy_with_header(path, new, copy, tables=tables):
            break
        connection = _connect(str(copy), alone=True)
        source = _Source(connection)
        try:
            found = source.tables()
            if {space.name for space in TABLES} <= found:
                return source, found
        except CorruptError:
            pass  # perhaps with a new schema
        connection.close(force=True)
        _remove(copy)
    _remove(new)
    raise error


def _copy_with_header(path: Path, new: Path, copy: Path, *, tables: bool) -> bool:
    """Copy a file and its log, and replace the header of the copy; with `tables`, its schema too. Returns False if the
    file has no more than one page."""
    template = new.read_bytes()
    size = ByteReader(template, at=_PAGE_SIZE).number(2)
    shutil.copyfile(path, copy)
    log = Path(f"{path}-wal")
    if log.exists():
        shutil.copyfile(log, f"{copy}-wal")
    pages = -(-copy.stat().st_size // size)
    if pages < 2:
        return False
    lists = _schema_pages(template, size) if tables else []
    pages = max(pages, *lists) if lists else pages
    with copy.open("r+b") as file:
        file.truncate(pages * size)
        header = bytearray(template[:_HEADER_BYTES])
        header[_PAGES] = pages.to_bytes(4, "big")
        header[_FREE_PAGES] = bytes(8)
        for number in lists:
            file.seek((number - 1) * size)
            file.write(template[(number - 1) * size : number * size])
        file.seek(0)
        file.write(header)
    return True


def _schema_pages(data: bytes, size: int) -> list[int]:
    """Return the pages of the tree of the schema."""
    found = [1]
    for number in found:
        page = data[(number - 1) * size : number * size]
        reader = ByteReader(page, "the schema of a file", at=_HEADER_BYTES if number == 1 else 0)
        kind, _, count, _, _, last = reader.fields(_TREE_PAGE)
        if kind == _INTERIOR:
            cells = (reader.number(2) for _ in range(count))
            below = [last, *(ByteReader(page, reader.what, at=at).number(4) for at in cells)]
            if 0 in below or not set(below).isdisjoint(found):
                raise reader.error("is not a tree")
            found += below
    return found


def _check_unused(path: Path) -> None:
    """Raise `ConflictError` if another process has a file open that SQLite itself cannot read."""
    if os.name == "posix":
        import fcntl

        with path.open("r+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)  # the locks of readers
            except OSError as error:
                raise _in_use_error(str(path)) from error


def _unreadable_error(path: str, why: str) -> CorruptError:
    return CorruptError(
        f"nothing in the file can be read: {why}",
        where=path,
        hint="Check that it is the right one. If it is, move it away, and restore it from a backup, or from a mirror "
        "or a copy: holdfast copy",
    )


def _in_use_error(path: str) -> ConflictError:
    hint = "Stop what uses the store, and repair it again"
    return ConflictError("another process has the file open", where=path, hint=hint)


def _count(path: str) -> int:
    connection = database_file.connect(
        FileOptions(path, path, "full", 1.0, None, exclusive=False, read_only=True, frozen=True)
    )
    try:
        counts = [connection.execute(f"SELECT count(*) FROM {space.name}").get for space in TABLES]  # noqa: S608
        return sum(map(int, counts))
    finally:
        connection.close(force=True)


def _connect(path: str, *, alone: bool) -> apsw.Connection:
    """Return a connection to the file; with `alone`, one that locks others out."""
    connection = database_file.connect(FileOptions(path, path, "full", 1.0, None, exclusive=alone))
    try:
        if alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        else:
            connection.execute("PRAGMA query_only = 1")
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").get  # noqa: B018 - takes the lock
        except errors.BUSY as error:
            raise _in_use_error(path) from error
        except apsw.Error as error:
            if not errors.is_damage(error):
                raise errors.translate(error, path) from error
    except BaseException:
        connection.close(force=True)
        raise
    return connection


class _Source:
    """The damaged file."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def tables(self) -> set[str]:
        try:
            return {name for (name,) in self.connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        except apsw.Error as error:
            raise _unreadable_error(self.connection.filename, str(error)) from error

    def page_size(self) -> int:
        return int(self.connection.pragma("page_size"))

    def has_damaged_trees(self) -> bool:
        """Return whether more than indexes is damaged, so that rows may be missing that nothing names."""
        try:
            found = [str(text) for (text,) in self.connection.execute("PRAGMA integrity_check")]
        except (apsw.Error, UnicodeDecodeError):
            return True
        return any(
            not text.startswith(("ok", "row ", "wrong # of entries", "non-unique", *_OF_WORDS)) for text in found
        )

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        cursor = self.connection.cursor()
        try:
            return read_rows(cursor, queries)
        except apsw.Error as error:
            raise errors.translate(error, self.connection.filename) from error
        except UnicodeDecodeError as error:
            raise CorruptError(f"a string is not UTF-8: {error}", where=self.connection.filename) from error
        finally:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")  # the cursor of a statement that failed fails again

    def rows_by_rowid(self, space: Table) -> Iterator[Row]:
        """Yield the readable rows of a table by row id, without an index; none of a table without row ids."""
        columns = ", ".join(space.all_columns)
        sql = f"SELECT {columns}, body, rowid FROM {space.name} NOT INDEXED WHERE rowid >= ? AND rowid < ? LIMIT ?"  # noqa: S608
        todo = [(0, _MAX_ROWID)]
        failed = 0
        while todo and failed < _MAX_FAILED:
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

    def __init__(self, source: _Source, target: SQLiteBackend, row_check: RowCheck) -> None:
        self._source = source
        self._target = target
        self._check = row_check
        self._batch: list[Ensure] = []
        self.added = self.refused = 0
        self.holes: list[UnreadableRange] = []
        self.lost: list[LostRows] = []
        # Rows without content have an empty record: a row without one passes only where there is no check.
        self._checked = [space for space in TABLES if not row_check(space, _empty_row(space))]

    @property
    def tables(self) -> list[str]:
        """The tables from which rows may be missing: of those without a second index, nothing tells."""
        named = {each.table for each in self.lost} | {hole.space.name for hole in self.holes}
        return sorted(named | {space.name for space in self._checked if space not in WITH_ROWID})

    async def from_pages(self, path: str, size: int) -> None:
        """Copy the rows of all pages, also those that no tree leads to, and find out which rows are gone."""
        rows: dict[tuple[type, ...], list[Table]] = {}
        for space in self._checked:
            rows.setdefault(STATEMENTS[space.name].kinds, []).append(space)
        keys = {(*space.key.values(), int): space for space in self._checked if space in WITH_ROWID}
        named: dict[Table, set[Key]] = {space: set() for space in keys.values()}
        pages = PageReader(path, size)
        try:
            for values in pages.records():
                kinds = tuple(map(type, values))
                for space in rows.get(kinds, ()):
                    width = len(space.key)
                    row = Row(values[:width], values[width:-1], values[-1])
                    if self._check(space, row):
                        await self._add(space, row)
                if kinds in keys:
                    named[keys[kinds]].add(values[:-1])
                elif kinds == _STEPS_BY_ID:
                    named[STEPS].add((*values[:2], *values[4:6]))
        finally:
            pages.close()
        await self._flush()
        for space, all_keys in named.items():
            await self._find_lost(space, sorted(all_keys))

    async def _find_lost(self, space: Table, keys: list[Key]) -> None:
        lost: Counter[tuple[str, str]] = Counter()
        for start in range(0, len(keys), _PAGE):
            some = keys[start : start + _PAGE]
            (found,) = await self._target.read([Get(space, some)])
            there = {row.key for row in found}
            lost.update((str(key[0]), str(key[1])) for key in some if key not in there)
        self.lost += (LostRows(*line, space.name, count) for line, count in sorted(lost.items()))

    async def mark(self, mark: MarkLoss) -> None:
        """Store in the new file, for each tenant, from which tables rows may be missing."""
        tenants = {"", *(each.tenant for each in self.lost)}
        for space in (LINES, STEPS, REFS):
            async for row in scan_rows(self._target, space, (), bodies=False):
                tenants.add(str(row.key[0]))
        await self._target.apply([Put(REFS, mark(tenant, self.tables)) for tenant in sorted(tenants)])

    async def space(self, space: Table) -> None:
        """Copy the readable rows of a table that pass the check."""
        holes: list[UnreadableRange] = []
        async for row in scan_readable_rows(self._source, space, (), holes):
            await self._copy_if_intact(space, row)
        if holes:
            # Perhaps only the index is damaged.
            for row in self._source.rows_by_rowid(space):
                await self._copy_if_intact(space, row)
        self.holes += holes
        await self._flush()

    async def _copy_if_intact(self, space: Table, row: Row) -> None:
        if _fits(space, row) and self._check(space, row):
            await self._add(space, row)
        else:
            self.refused += 1

    async def _add(self, space: Table, row: Row) -> None:
        self._batch.append(Ensure(space, row))
        self.added += 1
        if len(self._batch) >= _BATCH:
            await self._flush()

    async def _flush(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            await self._target.apply(batch)


def _fits(space: Table, row: Row) -> bool:
    """Return whether a row has the types of a table."""
    return (*map(type, row.key), *map(type, row.columns), type(row.body)) == STATEMENTS[space.name].kinds


def _empty_row(space: Table) -> Row:
    return Row(tuple(kind() for kind in space.key.values()), tuple(kind() for kind in space.columns.values()))


_STEPS_BY_ID = (str, str, str, int, int, int, int)
"""The types of the entries of the index of steps by id: with the row id at the end."""


def _replace_file(connection: apsw.Connection | None, path: Path, new: Path) -> Path:
    """Replace the old file, which is renamed. Without a connection, as it cannot be read, its log is renamed too."""
    damaged = _free_name(path)
    log = Path(f"{path}-wal")
    try:
        if connection is not None:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.Error as error:
        raise UnavailableError(
            f"the log of the damaged file cannot be written back: {error}",
            where=str(path),
            hint=f"What could be read is in {new}: stop every program that uses the store, and rename that file",
        ) from error
    os.link(path, damaged)
    shutil.copymode(path, new)
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


# Reads the rows of a SQLite file from its pages, without the trees above them ----------------------------------------
#
# If an interior page of a table is damaged, SQLite finds none of the pages below it, though they are intact. A row that
# carries a checksum needs no tree: the checksum tells to which table it belongs. Entries of indexes have none, but they
# name rows, and so also those that are lost. Free pages are left out: they may hold rows that were deleted.


_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = b"\x0d", b"\x0a", b"\x02"
_TREE_PAGES = (b"\1", b"\5")
"""The types in the map of pages of those that are part of a tree."""

_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class PageReader:
    """The pages of a file. Through SQLite's own VFS: to open and close the file would release SQLite's locks on it."""

    def __init__(self, path: str, size: int) -> None:
        self._file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
        self._size = size
        self._count = self._file.xFileSize() // size
        self._header = self._file.xRead(100, 0)

    def close(self) -> None:
        """Close the file."""
        self._file.xClose()

    def records(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of all entries of tables and indexes that can be read."""
        is_used = self._used_pages()
        for number in range(1, self._count + 1):
            if is_used(number):
                yield from self._entries(number)

    def _page(self, number: int) -> bytes:
        return self._file.xRead(self._size, (number - 1) * self._size) if 0 < number <= self._count else b""

    def _used_pages(self) -> Callable[[int], bool]:
        """Return whether a page is part of a tree: by the map of pages, or else by the list of free ones."""
        if ByteReader(self._header, at=52).number(4):
            width = self._size // 5 + 1

            def is_in_tree(number: int) -> bool:
                first = (number - 2) // width * width + 2
                at = (number - first - 1) * 5
                return number == 1 or (number != first and self._page(first)[at : at + 1] in _TREE_PAGES)

            return is_in_tree
        free: set[int] = set()
        trunk = ByteReader(self._header, at=32).number(4)
        while trunk and trunk not in free and (page := self._page(trunk)):
            reader = ByteReader(page)
            following, count = reader.number(4), min(reader.number(4), reader.left // 4)
            free |= {trunk, *(reader.number(4) for _ in range(count))}
            trunk = following
        return lambda number: number not in free

    def _entries(self, number: int) -> Iterator[tuple[Any, ...]]:
        page = self._page(number)
        start = 100 if number == 1 else 0
        kind = page[start : start + 1]
        if kind not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
            return
        cells = ByteReader(page, at=start + 3)
        count = cells.number(2)
        cells.at = start + (12 if kind == _INDEX_INTERIOR else 8)
        for _ in range(min(count, cells.left // 2)):
            at = cells.number(2) + (4 if kind == _INDEX_INTERIOR else 0)
            with suppress(CorruptError):  # damaged
                yield self._entry(ByteReader(page, "a row", at=at), is_table=kind == _TABLE_LEAF)

    def _entry(self, reader: ByteReader, *, is_table: bool) -> tuple[Any, ...]:
        length = _number(reader)
        if is_table:
            _number(reader)
        most = self._size - 35 if is_table else (self._size - 12) * 64 // 255 - 23
        if length <= most:
            return _values(ByteReader(reader.take(length), reader.what))
        if length > self._count * self._size:
            raise reader.error("claims more bytes than the file has")
        least = (self._size - 12) * 32 // 255 - 23
        local = least + (length - least) % (self._size - 4)
        local = local if local <= most else least
        parts, following, size = [reader.take(local)], reader.number(4), local
        while size < length and (more := self._page(following)):
            page = ByteReader(more)
            following = page.number(4)
            parts.append(page.take(min(length - size, page.left)))
            size += len(parts[-1])
        return _values(ByteReader(b"".join(parts), reader.what))


def _number(reader: ByteReader) -> int:
    """Return a number of variable length."""
    value = 0
    for _ in range(8):
        byte = reader.byte()
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value
    return value << 8 | reader.byte()


def _values(reader: ByteReader) -> tuple[Any, ...]:
    """Return the values of an entry."""
    end = _number(reader)
    kinds = []
    while reader.at < end:
        kinds.append(_number(reader))
    values: list[Any] = []
    for kind in kinds:
        if kind in _INTEGERS:
            values.append(reader.number(_INTEGERS[kind], signed=True))
        elif kind >= 12:
            data = reader.take((kind - 12) // 2)
            values.append(reader.text(data) if kind % 2 else data)
        else:
            reader.take(8 if kind == 7 else 0)
            values.append({8: 0, 9: 1}.get(kind))
    return tuple(values)
