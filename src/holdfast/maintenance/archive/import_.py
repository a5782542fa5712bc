"""Bringing threads back from a file that they were exported to.

Everything is read into a store beside first: only when the checksum of the file and all hashes in it are as they should
be is anything written here, and then as `copy_to` writes it. A thread is there as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.backends.interface import Change, Create, Ensure, Put, Row
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import BRANCHES, LINES, REFS, WRITES, Table
from holdfast.engine.copy.between_stores import CopyProgress as Moved
from holdfast.engine.copy.between_stores import StoreCopier, Tell
from holdfast.engine.copy.within_store import renamed
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.verify import raise_problems, verify
from holdfast.engine.namespaces import is_thread, rename_line, root_of
from holdfast.engine.row_format import LEASE, Branch, Line, check_name, is_intact
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, NotFoundError
from holdfast.maintenance.archive.export import passing
from holdfast.maintenance.archive.format import (
    ArchivedRow,
    ArchiveHeader,
    ArchiveReader,
    Lines,
    Place,
    Progress,
    ThreadBegin,
    ThreadEnd,
    row_of,
)

_BATCH_ROWS = 256
_BATCH_BYTES = 4 << 20


class ImportReport(NamedTuple):
    """What an import did: the threads that it brought, and those that were there already; and how many rows, with how
    many bytes of bodies, it wrote."""

    threads: tuple[str, ...]
    skipped: tuple[str, ...]
    rows: int
    bytes: int


class ImportSelection(NamedTuple):
    """What is taken from a file: all threads or some, for a tenant; one perhaps under another name."""

    tenant: str
    threads: frozenset[str] | None
    as_thread: str | None


def wanted(tenant: str, threads: Iterable[str] | None, as_thread: str | None) -> ImportSelection:
    """What a caller wants."""
    named = None if threads is None else frozenset(threads)
    if as_thread is not None and named is not None and len(named) != 1:
        raise InvalidError("one thread can be given another name, not several", hint="Import them one by one")
    return ImportSelection(tenant, named, as_thread)


async def import_threads(
    engine: Engine, place: Place, want: ImportSelection, dry_run: bool, tell: Progress | None
) -> ImportReport:
    """Bring threads from a file. With `dry_run`, only see whether that would succeed, and what it would bring."""
    source = ArchiveReader(place, engine.context.max_bytes)
    try:
        async with passing(engine) as between:
            reader = _Reader(between, source, want, tell)
            lines = await reader.read()
            for number, line in enumerate(lines, 1):
                raise_problems(line, await verify(between.context, line), source.name)
                if tell is not None:
                    tell(number, len(lines), f"verified {line.name}")
            mover = StoreCopier(between, engine, None if tell is None else _told(tell))
            lacking = [line for line in lines if await mover.lacks(line)]
            for line in lacking:
                await _add_theirs(between, engine, line, source.name)
            there = tuple(line.name for line in lines if line not in lacking)
            brought = tuple(line.name for line in lacking)
            if dry_run or not lacking:
                return ImportReport(brought, there, 0, 0)
            copied = await mover.copy(want.tenant, lacking)
            return ImportReport(brought, there, copied.rows, copied.bytes)
    finally:
        source.close()


async def _add_theirs(between: Engine, engine: Engine, line: Line, file: str) -> None:
    """Add to a thread from a file what the store has given the same thread by itself: holds, pins, names, tags, pending
    writes, branches without steps. Where both have something of the same name, that of the store stays."""
    changes: list[Change] = []
    found = [Branch.of(row) async for row in scan_rows(between.context.backend, BRANCHES, tuple(line))]
    bases, named = {each.branch: each[1:3] for each in found}, {each.name: each.branch for each in found if each.name}
    async for row in scan_rows(engine.context.backend, BRANCHES, tuple(line)):
        theirs = Branch.of(row)
        same = bases.get(theirs.branch, theirs[1:3]) == theirs[1:3]
        if not same or named.get(theirs.name, theirs.branch) != theirs.branch:
            raise ConflictError(
                f"the file has another branch in the place of {theirs.name or theirs.branch!r}",
                where=f"thread {line} in {engine.context.backend.url}; {file}",
                hint="Import it under another name: as_thread, --as",
            )
        changes.append(Put(BRANCHES, row))
    refs = [row async for row in scan_rows(engine.context.backend, REFS, tuple(line))]
    changes += (Put(REFS, row) for row in refs if row.key[2] != LEASE)
    changes += [Ensure(WRITES, row) async for row in scan_rows(engine.context.backend, WRITES, tuple(line))]
    await between.context.backend.apply(changes)
    between.context.cache.drop_all(line)


def _told(tell: Progress) -> Tell:
    """Tells of a copy as of any other work."""

    def told(progress: Moved) -> None:
        if progress.phase == "copied":
            tell(progress.done, progress.total, progress.thread)

    return told


class _Reader:
    """Reads a file into a store."""

    def __init__(self, between: Engine, source: ArchiveReader, want: ImportSelection, tell: Progress | None) -> None:
        self._backend = between.context.backend
        self._max_bytes = between.context.max_bytes
        self._source = source
        self._want = want
        self._tell = tell
        self._old: Line | None = None
        self._new: Line | None = None
        """The line that is being read, as it is called in the file and here; the latter None if it is not wanted."""
        self._rows = 0
        self._changes: list[Change] = []
        self._size = 0
        self._lines: list[Line] = []
        self._roots: set[Line] = set()
        self._found: set[str] = set()
        """Names of threads and of namespaces that are in the file and wanted."""

    async def read(self) -> list[Line]:
        """Read all. Returns the lines, as they are called here."""
        first = True
        async for record in self._source.records():
            if first is not isinstance(record, ArchiveHeader):
                raise self._source.damaged("it begins in its middle")
            first = False
            await self._take(record)
        if self._old is not None:
            raise self._source.damaged("a thread in it does not end")
        await self._flush()
        missing = (self._want.threads or frozenset()) - self._found
        if missing:
            raise NotFoundError(f"there is no thread {min(missing)!r} in the file", where=self._source.name)
        return self._lines

    async def _take(self, record: Lines) -> None:
        match record:
            case ThreadBegin():
                if self._old is not None:
                    raise self._source.damaged("a thread begins in another")
                await self._begin(record)
            case ArchivedRow():
                if self._old is None:
                    raise self._source.damaged("a row is in no thread")
                self._rows += 1
                if self._new is not None:
                    await self._add(record, self._old, self._new)
            case ThreadEnd():
                if self._old is None or record.rows != self._rows:
                    raise self._source.damaged("rows of a thread are missing")
                if self._tell is not None and self._new is not None:
                    self._tell(len(self._lines), None, f"read {self._old.name}")
                self._old = self._new = None

    async def _begin(self, record: ThreadBegin) -> None:
        self._old, self._rows = Line(record.tenant, record.thread), 0
        root = root_of(self._old)
        named = self._want.threads
        if named is not None and root.name not in named and self._old.name not in named:
            return
        if self._want.as_thread is not None and not self._roots <= {root}:
            raise InvalidError(
                "one thread can be given another name, and the file has several",
                where=self._source.name,
                hint="Say which thread to import",
            )
        if self._want.as_thread is not None and not is_thread(root.name):
            raise InvalidError(
                "state is imported under its own name",
                where=f"{root.name} in {self._source.name}",
                hint="Import it as it is, and then copy it: state.copy_to(…)",
            )
        self._roots.add(root)
        self._found |= {root.name, self._old.name}
        target = root._replace(tenant=self._want.tenant, name=self._want.as_thread or root.name)
        self._new = rename_line(self._old, root, target)
        if len(record.columns) != len(LINES.columns):
            raise self._source.damaged("a thread in it has other columns")
        if not check_name(self._new.name, "name of a thread"):
            raise self._source.damaged("a thread in it has no name")  # such is what belongs to the whole store
        self._lines.append(self._new)
        await self._put(LINES, Row(tuple(self._new), record.columns))

    async def _add(self, record: ArchivedRow, old: Line, new: Line) -> None:
        try:
            space, row = row_of(record, old)
            sound = is_intact(space, row)
        except ValueError as error:
            raise self._source.damaged(f"a row of {record.space} cannot be read: {error}") from error
        if not sound:
            raise self._source.damaged(f"a row of {space.name} of thread {old} is not what was written")
        if space is REFS and row.key[2] == LEASE:
            return
        if new != old:
            row = renamed(space, row, new, self._max_bytes)
        await self._put(space, row)

    async def _put(self, space: Table, row: Row) -> None:
        self._changes.append(Create(space, row))
        self._size += len(row.body)
        if len(self._changes) >= _BATCH_ROWS or self._size >= _BATCH_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        changes, self._changes, self._size = self._changes, [], 0
        try:
            refused = await self._backend.apply(changes)
        except HoldfastError as error:
            if isinstance(error, InvalidError | CorruptError):
                raise self._source.damaged(f"a row of it cannot be stored: {error.what}") from error
            raise
        if refused is not None:
            raise self._source.damaged("a row is in it twice")
