"""Importing threads from a file that they were exported to.

The file is first read into a scratch store. Only if its checksum and all hashes in it are right, the threads are copied
into the store, as by `copy_to`: a thread is complete or does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.backends.interface import Change, Create, Delete, Ensure, Put, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import BRANCHES, LINES, REFS, STEPS, WRITES, Table
from holdfast.engine.context import Apply
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.copy.copy_report import CopyProgress, OnCopyProgress
from holdfast.engine.copy.row_writer import RowWriter, rename_row
from holdfast.engine.copy.short_lines import GROUP, read_short_lines, sound_lines
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.engine import Engine
from holdfast.engine.ids import is_reserved
from holdfast.engine.integrity.verify import raise_problems, verify
from holdfast.engine.line_walk import LineSet
from holdfast.engine.lines import MAIN, TAG
from holdfast.engine.model.packed_state import PackedMap, unpack, unpack_name, unpack_state
from holdfast.engine.namespaces import (
    AUDIT,
    CONTENT_KINDS,
    LineKind,
    agent_of,
    is_thread,
    line_kind,
    rename_line,
    root_of,
    short_name,
)
from holdfast.engine.optimistic import ConcurrentChange
from holdfast.engine.row_format import LEASE, Branch, Line, StepRef, check_name, owner_key, ttl_key
from holdfast.engine.schema_bindings import ASIDE
from holdfast.engine.types import Progress
from holdfast.engine.value_schemas import ValuePlace
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from holdfast.maintenance.archive.export import scratch_store
from holdfast.maintenance.archive.format import (
    ArchivedRow,
    ArchiveFile,
    ArchiveHeader,
    ArchiveReader,
    Lines,
    ThreadBegin,
    ThreadEnd,
    line_row,
    row_of,
)
from holdfast.maintenance.erasure.reapply import apply_ledger, read_ledger
from holdfast.maintenance.erasure.store_copy import add_digests, takes_ledger
from holdfast.maintenance.line_documents import Document, find_documents
from holdfast.schemas.attached_version import ExternalStates
from holdfast.schemas.graph_checkpoint import is_internal
from holdfast.schemas.registry import LINE
from holdfast.security.audit import thread_audit
from holdfast.security.audit.erasure_ledger import LINE as LEDGER
from holdfast.security.audit.removals import arrival_detail
from holdfast.security.encryption.file_key import master_keys


async def check_schemas(
    scratch: Engine, engine: Engine, tenant: str, lines: Sequence[Line], file: str
) -> ExternalStates:
    """Check the last states of the branches of some lines of a file, which is read into a scratch store, against the
    versions that the store has registered. Raises `InvalidError`."""
    incoming = ExternalStates(engine, tenant)
    if any(line.name == LINE for line in lines) or await engine.lines.load_tip(Line(tenant, LINE)) is None:
        return incoming
    for line in lines:
        newest = await scratch.lines.latest_step(line)
        others = [await scratch.lines.head(line, each.branch) for each in await scratch.lines.branches(line)]
        points = {(each.branch, each.seq): each for each in (newest, *others) if each is not None}
        for point in points.values():
            if not point.pruned:
                await _check_step(scratch, engine, incoming, line, point, file)
    return incoming


async def _check_step(
    scratch: Engine, engine: Engine, incoming: ExternalStates, line: Line, point: StepRef, file: str
) -> None:
    reference = (await scratch.step_info.head(line, point)).header.schema
    codec = scratch.context.codec
    if is_thread(line.name):
        if reference:
            state = await scratch.states.values(line, point)
            is_graph = any(unpack_name(key) == KEPT for key in state)
            values = unpack_state(codec, _own_channels(state, is_graph=is_graph))
            attached = None if engine.schemas is None else engine.schemas.find(line)
            where = f"thread {line}, checkpoint {point.id}, in {file}"
            await incoming.check(reference, values, where, attached, partial=is_graph)
        else:
            await incoming.add_unversioned(line.name)
        return
    for document in find_documents(codec, line, reference, await scratch.states.values(line, point)):
        if document.mark.reference:
            value = document.value
            whole = document.kind == "scope" and isinstance(value, dict)
            plain = unpack_state(codec, value) if whole and isinstance(value, dict) else unpack(codec, value)
            where = f"{document.kind} {document.name or document.owner!r}"
            where += f" of {document.owner}, in {file}" if document.kind == "key" else f", in {file}"
            await incoming.check(
                document.mark.reference, plain, where, _attached(engine, line, document), partial=whole
            )


def _own_channels(state: PackedMap, *, is_graph: bool) -> PackedMap:
    names = {key: unpack_name(key) for key in state}
    return {key: state[key] for key, name in names.items() if name != ASIDE and not (is_graph and is_internal(name))}


def _attached(engine: Engine, line: Line, document: Document) -> object:
    """Return the schema that this program attached to a state."""
    if document.kind == "scope":
        return None if engine.schemas is None else engine.schemas.find(line)
    values = engine.value_schemas
    name = document.name if document.kind == "key" else ""
    return None if values is None else values.find(ValuePlace(line.tenant, document.kind, document.owner, name))


class ArchiveEntry(msgspec.Struct, frozen=True):
    """A line in a file: its kind, the name that people know it by, the number of its rows, and whether it was selected
    to be imported."""

    kind: LineKind
    name: str
    rows: int
    selected: bool


class ImportReport(msgspec.Struct, frozen=True):
    """The result of an import: the imported threads, those that existed already; and the number of rows and of bytes of
    bodies that were written.

    `contents` lists everything in the file, first the lines that are not the content of threads, agents, scopes and
    sessions: rights, the audit and other records of the store.
    """

    threads: tuple[str, ...]
    skipped: tuple[str, ...]
    rows: int
    bytes: int
    contents: tuple[ArchiveEntry, ...] = ()

    @property
    def left_out(self) -> tuple[ArchiveEntry, ...]:
        """The names in the file that were not selected."""
        return tuple(each for each in self.contents if not each.selected)


class ImportSelection(NamedTuple):
    """The lines to import: some by name, or all of some kinds, for a tenant; one thread perhaps under another name."""

    tenant: str
    names: frozenset[str] | None
    kinds: frozenset[LineKind]
    as_thread: str | None

    @classmethod
    def of(
        cls, tenant: str, names: Sequence[str] | None, kinds: frozenset[LineKind], as_thread: str | None
    ) -> ImportSelection:
        """Return the selection of a caller. `InvalidError` if several threads are to have one name."""
        if as_thread is not None and names is not None and len(set(names)) != 1:
            raise InvalidError("only one thread can be renamed, not several", hint="Import them one by one")
        return cls(tenant, None if names is None else frozenset(names), kinds, as_thread)

    def includes(self, line: Line, root: Line) -> bool:
        """Return whether a line of a file, with the root of its thread, is selected. The durable steps of an agent are
        with the agent."""
        agent = agent_of(line)
        if agent is not None and self.includes(agent, agent):
            return True
        if self.names is None:
            return line_kind(root.name) in self.kinds
        return root.name in self.names or line.name in self.names


async def import_threads(
    engine: Engine, file: ArchiveFile, selection: ImportSelection, dry_run: bool, progress: Progress | None
) -> ImportReport:
    """Import threads from a file. With `dry_run`, only check whether that would succeed, and which it would import."""
    archive = ArchiveReader(file, engine.context.max_bytes, master_keys(engine))
    try:
        async with scratch_store(engine) as scratch:
            reader = _Reader(scratch, archive, selection, progress)
            lines = await reader.read()
            await _check_lines(scratch, engine, lines, archive, progress)
            lines = await _without_erased(scratch, engine, selection.tenant, lines)
            on_copy = None if progress is None else _copy_progress(progress)
            copier = StoreCopier(scratch, engine, on_copy)
            new = await _unknown(engine, lines)
            lacking = [line for line in lines if line in new or await copier.lacks(line)]
            lacked = frozenset(lacking)
            incoming = await check_schemas(scratch, engine, selection.tenant, lacking, archive.name)
            for line in lacking:
                if line not in new:
                    await _add_existing(scratch, engine, line, archive.name)
            refs = {line: await _missing_refs(scratch, engine, line) for line in lines if line not in lacked}
            imported = tuple(line.name for line in lines if refs.get(line, True))
            skipped = tuple(line.name for line in lines if not refs.get(line, True))
            if dry_run or not imported:
                return ImportReport(imported, skipped, 0, 0, reader.contents())
            await incoming.register()
            if Line(selection.tenant, LEDGER) not in lines:
                await add_digests(scratch, engine, selection.tenant, lacked)
            rows = size = 0
            if audit := [line for line in lacking if line.name == AUDIT]:  # first: the others add records to it
                report = await copier.copy(selection.tenant, audit)
                rows, size = report.rows, report.bytes
                await thread_audit.record(engine, audit, "import", {"file": archive.name})

            async def apply(*together: Line) -> Apply:
                arriving = [line for line in together if line in lacked]
                detail = {
                    "file": archive.name,
                    **(await arrival_detail(scratch, engine, *arriving) if arriving else {}),
                }
                return thread_audit.recorded(engine, together, "import", detail, is_limited=True)

            if others := [line for line in lacking if line.name != AUDIT]:
                report = await StoreCopier(scratch, engine, on_copy, apply).copy(selection.tenant, others)
                rows, size = rows + report.rows, size + report.bytes
            for line, missing in refs.items():
                rows += await _add_refs(engine, copier, line, missing, await apply(line))
            return ImportReport(imported, skipped, rows, size, reader.contents())
    finally:
        archive.close()


async def _without_erased(scratch: Engine, engine: Engine, tenant: str, lines: list[Line]) -> list[Line]:
    """Remove from a file what was erased since it was exported, and return the lines that are left."""
    if (ledger := Line(tenant, LEDGER)) in lines and not await takes_ledger(scratch, engine, tenant):
        lines = [line for line in lines if line != ledger]
    if entries := await read_ledger(engine, tenant):
        await apply_ledger(scratch, tenant, entries)
        lines = [line for line in lines if await scratch.lines.load_tip(line) is not None]
    return lines


async def _check_lines(
    scratch: Engine, engine: Engine, lines: Sequence[Line], archive: ArchiveReader, progress: Progress | None
) -> None:
    """Raise if a line of a file is not sound: short ones are checked together."""
    done = 0
    while done < len(lines):
        page = lines[done : done + GROUP]
        sound = await sound_lines(scratch.context, await read_short_lines(scratch.context, page))
        for line in sound or page[:1]:
            if not sound:
                raise_problems(line, await verify(scratch.context, line), archive.name)
            if not sound or BRANCHES in sound[line]:
                await _check_main(scratch, engine, line, archive)
            done += 1
            if progress is not None:
                progress(done, len(lines), f"verified {line.name}")


async def _unknown(engine: Engine, lines: Sequence[Line]) -> LineSet:
    """Return those of some lines of which the store has no row at all, as far as that is seen at once."""
    unknown, start = LineSet(), 0
    while start < len(lines):
        found = await read_short_lines(engine.context, lines[start : start + GROUP])
        for line, rows in found.items():
            if not rows:
                unknown.add(line)
        start += len(found) or 1
    return unknown


async def _check_main(scratch: Engine, engine: Engine, line: Line, archive: ArchiveReader) -> None:
    """Raise if a branch of a file calls itself `main` and did not take over the name by a new revision of a step.

    Of a branch whose first step was pruned that cannot be seen; then it must be the main branch of the store, too.
    """
    main = await scratch.lines.branch(line, MAIN.name)
    if not main:
        return
    (rows,) = await scratch.context.backend.read([Scan(STEPS, (*line, main), limit=1, bodies=False)])
    first = StepRef.of(rows[0]) if rows else None
    if first is not None and first.revision:
        return
    if first is not None and not first.pruned:
        raise archive.damaged(f"branch {main} of thread {line} calls itself main, and is another one")
    if await engine.lines.latest_step(line) is not None and await engine.lines.branch(line, MAIN.name) != main:
        raise ConflictError(
            "the file has another branch 'main'",
            where=f"thread {line} in {engine.context.backend.url}; {archive.name}",
            hint="Import it under another name: as_thread, --as",
        )


def _shadows(table: Table, row: Row) -> bool:
    """Return whether a row gives a step or a branch a name that means a certain step in every thread."""
    if table is STEPS:
        return bool(row.columns[0]) and is_reserved(str(row.columns[0]))
    if table is REFS:
        return row.key[2] == TAG and is_reserved(str(row.key[3]))
    name = str(row.columns[3]) if table is BRANCHES else ""
    return name not in ("", MAIN.name) and is_reserved(name)


async def _add_existing(scratch: Engine, engine: Engine, line: Line, file: str) -> None:
    """Add to a thread from a file the holds, pins, tags, labels, pending writes and branches without steps that the
    store has for the same thread. Where both have something of the same name, that of the store wins."""
    changes: list[Change] = []
    found = [Branch.of(row) async for row in scan_rows(scratch.context.backend, BRANCHES, tuple(line))]
    bases, numbers = {each.branch: each[1:3] for each in found}, {each.name: each.branch for each in found if each.name}
    async for row in scan_rows(engine.context.backend, BRANCHES, tuple(line)):
        existing = Branch.of(row)
        same = bases.get(existing.branch, existing[1:3]) == existing[1:3]
        if not same or numbers.get(existing.name, existing.branch) != existing.branch:
            raise ConflictError(
                f"the file has another branch {existing.name or existing.branch!r}",
                where=f"thread {line} in {engine.context.backend.url}; {file}",
                hint="Import it under another name: as_thread, --as",
            )
        changes.append(Put(BRANCHES, row))
    refs = [row async for row in scan_rows(engine.context.backend, REFS, tuple(line))]
    if line == root_of(line) and await _exists(engine, line):
        # A file gives nobody a thread that is in the store, and does not have it deleted.
        changes += (Delete(REFS, key(line)) for key in (owner_key, ttl_key))
    changes += (Put(REFS, row) for row in refs if row.key[2] != LEASE)
    changes += [Ensure(WRITES, row) for row in await _missing_writes(scratch, engine, line)]
    await scratch.context.backend.apply(changes)
    scratch.context.cache.drop_all(line)


async def _missing_writes(scratch: Engine, engine: Engine, line: Line) -> list[Row]:
    """Return the pending writes in the store that the file lacks. A later step of the file may have taken them over."""
    rows = [row async for row in scan_rows(engine.context.backend, WRITES, tuple(line))]
    after = {str(row.key[2]) for row in rows}
    steps = [StepRef.of(row) async for row in scan_rows(scratch.context.backend, STEPS, tuple(line), bodies=False)]
    points = [point for point in steps if point.id in after]
    found = zip(points, await scratch.writes.of_many(line, points), strict=True)
    existing = {(point.id, write.task, write.place) for point, writes in found for write in writes}
    return [row for row in rows if row.key[2:] not in existing]


async def _missing_refs(scratch: Engine, engine: Engine, line: Line) -> list[Row]:
    """Return the tags, labels, pins and holds in a file that the store lacks, of a thread whose steps it has.

    The owner and the TTL are not among them: a file does not change whose an existing thread is, nor has it deleted."""
    existing = {row.key async for row in scan_rows(engine.context.backend, REFS, tuple(line), bodies=False)}
    existing |= {owner_key(line), ttl_key(line)}
    return [row async for row in scan_rows(scratch.context.backend, REFS, tuple(line)) if row.key not in existing]


async def _add_refs(engine: Engine, copier: StoreCopier, line: Line, refs: Sequence[Row], apply: Apply) -> int:
    """Add tags, labels, pins and holds to a thread, and return their number."""
    while refs:
        info = await engine.lines.info(line)
        if await copier.lacks(line):
            raise ConflictError(
                "the thread was pruned during the import", where=f"thread {line}", hint="Import it again"
            )
        changes = [*engine.lines.new_version(line, info), *(Ensure(REFS, row) for row in refs)]
        if await apply(changes) is None:
            break
    return len(refs)


async def _exists(engine: Engine, root: Line) -> bool:
    """Return whether the store has a thread, or a namespace of it."""
    lines = await engine.lines.family(root)
    return len(lines) > 1 or await engine.lines.load_tip(root) is not None


def _copy_progress(progress: Progress) -> OnCopyProgress:
    """Return a callback of a copy that reports the progress of an import."""

    def report(copied: CopyProgress) -> None:
        if copied.phase == "copied":
            progress(copied.done, copied.total, copied.thread)

    return report


class _Reader:
    """Reads a file into a scratch store."""

    def __init__(
        self, scratch: Engine, archive: ArchiveReader, selection: ImportSelection, progress: Progress | None
    ) -> None:
        self._archive = archive
        self._selection = selection
        self._progress = progress
        self._old: Line | None = None
        self._new: Line | None = None
        """The line that is being read, by its name in the file and in the store; the latter None if it is skipped."""
        self._rows = 0
        self._writer = RowWriter(scratch.context)
        self._lines: list[Line] = []
        self._roots: set[Line] = set()
        self._found: set[str] = set()
        """Names of selected threads and namespaces that are in the file."""
        self._entries: list[ArchiveEntry] = []

    async def read(self) -> list[Line]:
        """Read the file. Returns the lines, under their new names."""
        first = True
        async for record in self._archive.records():
            if first is not isinstance(record, ArchiveHeader):
                raise self._archive.damaged("it does not begin with a header")
            first = False
            await self._handle(record)
        if self._old is not None:
            raise self._archive.damaged("a thread in it does not end")
        await self._store(self._writer.flush())
        missing = (self._selection.names or frozenset()) - self._found
        if missing:
            name = min(missing)
            what = f"there is no {line_kind(name)} {short_name(name)!r} in the file"
            raise NotFoundError(what, where=self._archive.name)
        return self._lines

    def contents(self) -> tuple[ArchiveEntry, ...]:
        """Return what is in the file, as `ImportReport` lists it."""
        return tuple(sorted(self._entries, key=lambda each: (each.kind in CONTENT_KINDS, each.kind != "access")))

    async def _handle(self, record: Lines) -> None:
        match record:
            case ThreadBegin():
                if self._old is not None:
                    raise self._archive.damaged("a thread begins in another")
                await self._begin(record)
            case ArchivedRow():
                if self._old is None:
                    raise self._archive.damaged("a row is in no thread")
                self._rows += 1
                if self._new is not None:
                    await self._add(record, self._old, self._new)
            case ThreadEnd():
                if self._old is None or record.rows != self._rows:
                    raise self._archive.damaged("rows of a thread are missing")
                if self._progress is not None and self._new is not None:
                    self._progress(len(self._lines), None, f"read {self._old.name}")
                name = self._old.name
                selected = self._new is not None
                self._entries.append(ArchiveEntry(line_kind(name), short_name(name), record.rows, selected))
                self._old = self._new = None

    async def _begin(self, record: ThreadBegin) -> None:
        self._old, self._rows = Line(record.tenant, record.thread), 0
        root = root_of(self._old)
        if not self._selection.includes(self._old, root):
            return
        if self._selection.as_thread is not None and not self._roots <= {root}:
            raise InvalidError(
                "only one thread can be renamed, and the file has several",
                where=self._archive.name,
                hint="Say which thread to import",
            )
        if self._selection.as_thread is not None and not is_thread(root.name):
            raise InvalidError(
                "state is imported under its own name",
                where=f"{root.name} in {self._archive.name}",
                hint="Import it as it is, and then copy it: state.copy_to(…)",
            )
        self._roots.add(root)
        self._found |= {root.name, self._old.name}
        target = root._replace(tenant=self._selection.tenant, name=self._selection.as_thread or root.name)
        self._new = rename_line(self._old, root, target)
        if not check_name(self._new.name, "name of a thread"):
            raise self._archive.damaged("a thread in it has no name")  # the empty name belongs to the whole store
        try:
            row = line_row(record, self._new)
        except ValueError as error:
            raise self._archive.damaged("a thread in it has other columns") from error
        self._lines.append(self._new)
        await self._store(self._writer.put(Create(LINES, row)))

    async def _add(self, record: ArchivedRow, old: Line, new: Line) -> None:
        try:
            table, row = row_of(record, old)
        except ValueError as error:
            raise self._archive.damaged(f"a row of {record.space} cannot be read: {error}") from error
        if table is REFS and row.key[2] == LEASE:
            raise self._archive.damaged("it has a lease, which belongs to a store and is never exported")
        if _shadows(table, row):
            raise self._archive.damaged(f"a row of {table.name} has a name that is reserved: {row.key[2:]}")
        await self._store(self._writer.put(Create(table, rename_row(row, new))))

    async def _store(self, writing: Awaitable[None]) -> None:
        try:
            await writing
        except (InvalidError, CorruptError) as error:
            raise self._archive.damaged(f"a row of it cannot be stored: {error.what}") from error
        except ConcurrentChange:
            raise self._archive.damaged("a row is in it twice") from None
