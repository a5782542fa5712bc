"""Migration of all latest states: one step of kind `migrate` on each, in batches, and the way back.

A state that has the target version is left alone, so that a run that was killed is simply started again. Several
processes share a run: each page of threads is migrated under a lease, and marked when it is done. Whatever they do, a
step is stored only after the step whose state was migrated.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias, get_args

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row
from holdfast.backends.runtime.drivers import Pause
from holdfast.backends.tables import REFS, STEPS, Key
from holdfast.codec import collector_paused
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.delta_channels import KEPT, UnreadDeltas
from holdfast.engine.guard import Preconditions
from holdfast.engine.leases import Lease
from holdfast.engine.line_ends import LineEnd, LineEnds, NextStep
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.operations import apply_map
from holdfast.engine.model.packed_state import PackedMap, flatten, pack_name
from holdfast.engine.row_format import LEASE, Line, StepRef, open_step, readable
from holdfast.engine.schema_bindings import MIGRATED_SCHEMA
from holdfast.engine.step_info import StepInfo
from holdfast.engine.types import Progress
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, NotFoundError
from holdfast.history.langgraph_compat import HeadMoved, only_after, step_fields, without_follows
from holdfast.maintenance.line_documents import Document
from holdfast.maintenance.migration.documents import (
    SchemaDocuments,
    migrate_documents,
    migration_request,
    read_documents,
    read_line,
)
from holdfast.maintenance.migration.former import KIND, former_documents, former_state, short_former
from holdfast.maintenance.migration.heads import (
    BranchPolicy,
    Head,
    HeadGroup,
    HeadSelection,
    UnfitState,
    pages,
    read_groups,
    read_heads,
    state_of,
)
from holdfast.maintenance.migration.plan import MAX_UNFIT, PAGE, MigrationTarget
from holdfast.schemas.registry import LINE, SchemaRecord, SchemaRegistry
from holdfast.schemas.version import Version

OnError: TypeAlias = Literal["stop", "skip", "rollback"]
"""What to do if a state cannot be migrated: stop there, leave it as it is, or undo the run and stop."""

_LIFE = 30.0
_DONE = "migrated"
_ATTEMPTS = 50
_PAUSE_SECONDS = 0.2


@dataclass
class MigrationReport:
    """What a migration did."""

    name: str
    target: Version
    migrated: int = 0
    skipped: int = 0
    """States that had the target version already."""
    restored: int = 0
    """Of those that were migrated: states that are exactly what they were before the last migration."""
    deferred: list[str] = field(default_factory=list)
    """Threads of LangGraph in the middle of a step: they are upgraded when they are resumed."""
    unfit: list[UnfitState] = field(default_factory=list)
    unfit_total: int = 0

    @property
    def complete(self) -> bool:
        """Whether all latest states have the target version now."""
        return not self.unfit_total and not self.deferred


class _BuiltStep(NamedTuple):
    """A step that migrates a state, and the states before and after it."""

    head: Head
    request: AppendRequest
    before: PackedMap
    after: PackedMap
    is_restored: bool


class _Group(NamedTuple):
    """Steps of short lines that are saved together, the states that they result in, and lines that are left."""

    steps: list[NextStep]
    states: list[PackedMap]
    others: list[Line]


class _LeaseLost(Exception):
    """Another process has the page now."""


class BulkMigration:
    """A run over all latest states of a schema."""

    def __init__(
        self,
        target: MigrationTarget,
        *,
        branches: BranchPolicy = "all",
        threads: str | None = None,
        on_error: OnError = "stop",
        accept_edited: bool = False,
        progress: Progress | None = None,
    ) -> None:
        if on_error not in get_args(OnError):
            raise InvalidError(f"on_error is {', '.join(map(repr, get_args(OnError)))}, not {on_error!r}")
        self._target = target
        self._engine = target.engine
        self._registry = SchemaRegistry(target.engine, target.tenant)
        self._selection: HeadSelection = target.selection(branches, threads)
        self._on_error = on_error
        self._accept_edited = accept_edited
        self._progress = progress
        self._report = MigrationReport(target.name, target.schema.version)
        self._line = Line(target.tenant, LINE)
        self._reference = target.schema.schema_reference
        self._checks_sources = on_error == "skip"
        self._unfit: set[tuple[Line, str]] = set()
        """The states that were found not to fit, by thread and checkpoint."""
        self._metadata: dict[Version, tuple[bytes, str]] = {}
        self._done = 0
        self._run = ""

    def check_direction(self, *, down: bool) -> None:
        """Raise `InvalidError` if a downgrade is to a newer version than the one that is written now."""
        record = self._target.registered.records.get(self._target.name)
        if down and record is not None and self._target.schema.version > record.current:
            raise InvalidError(
                f"a downgrade leads to an older version, and the states have {record.current}",
                where=self._reference,
                hint="Upgrade them: holdfast migrate up",
            )

    async def run(self, *, down: bool = False) -> MigrationReport:
        """Migrate all states. The version is the one to write from the start, so that others write no older ones."""
        target, name, version = self._target, self._target.name, self._target.schema.version
        registered = await self._registry.load()
        sources = [each for each in registered.stored_versions(name) if each != version]
        migrations = [] if down else target.migrations([each for each in sources if each < version])

        def update(stored: SchemaRecord | None) -> SchemaRecord:
            if stored is None:
                return replace(self._selection.record, current=version, is_pinned=down)
            return replace(stored, current=version, is_pinned=down)

        await self._join()  # first: a run that is refused changes nothing
        try:
            await self._registry.register(
                [target.schema],
                migrations,
                {name: update},
                renewed=self._accept_edited,
                used=[target.schema.schema_reference],
                kind=KIND,
            )
            await self._migrate_all()
            if self._selection.threads is None:
                await self._migrate_documents()
        except HoldfastError:
            await self._end()
            if self._on_error == "rollback" and not down and len(sources) == 1:
                await self._roll_back(sources[0])
            raise
        if self._report.complete and self._selection.threads is None and self._selection.branches == "all":
            await self._registry.register([], retired=[f"{name}@{each}" for each in sources], kind=KIND)
        await self._end()
        return self._report

    async def _roll_back(self, source: Version) -> None:
        target = self._target
        back = MigrationTarget(
            target.engine,
            target.tenant,
            target.registered,
            target.schemas,
            target.schemas.get(f"{target.name}@{source}"),
        )
        selection = self._selection
        run = BulkMigration(back, branches=selection.branches, threads=selection.threads, on_error="skip")
        await run.run(down=True)

    # Pages, shared by processes -------------------------------------------------------------------------------------

    async def _migrate_all(self) -> None:
        busy = await self._pass()
        while busy:  # others have pages: wait for them, or take over those of a process that was killed
            await Pause(_PAUSE_SECONDS)
            busy = await self._pass()

    async def _pass(self) -> bool:
        """Migrate every page that nobody has or had. Returns whether others are at work on some."""
        busy = False
        async for lines in pages(self._engine, self._target.tenant, PAGE):
            start, end = lines[0].name, lines[-1].name
            if await self._is_done(start, end):
                continue
            lease = Lease(self._engine.context, self._line, f"{KIND} {start}", _LIFE)
            try:
                await lease.acquire()
            except ConflictError:
                busy = True
                continue
            is_marked = False
            try:
                async for group in read_groups(self._engine, lines, self._selection):
                    await _renew(lease)
                    await self._migrate_group(group, lease)
                    self._done += len(group.lines)
                    if self._progress is not None:
                        self._progress(self._done, None, group.lines[-1].name)
                is_marked = await self._mark(start, end, lease)
            except _LeaseLost:
                pass
            finally:
                if not is_marked:
                    await lease.release()
            busy = busy or not is_marked
        return busy

    async def _join(self) -> None:
        """Join the run of another process that is at work on the same, or begin one."""
        context, now = self._engine.context, self._engine.context.clock()
        (rows,) = await context.backend.read([Get(REFS, [self._run_key])])
        if rows and abs(now - int(rows[0].columns[1])) < _LIFE * 1e9:
            run, _, reference = str(rows[0].columns[0]).partition(" ")
            if reference == self._target.schema.schema_reference:
                self._run = run
                return
            raise self._under_way(reference)
        self._run = os.urandom(8).hex()
        expected = rows[0].columns if rows else None
        if await context.backend.apply([Expect(REFS, self._run_key, expected), self._run_row()]) is not None:
            await self._join()

    def _under_way(self, reference: str) -> ConflictError:
        return ConflictError(
            f"a migration to {reference} is under way",
            where=self._target.name,
            hint=f"Wait for it to end; if its process was killed, start again in {_LIFE:g} s",
            code="under-way",
        )

    @property
    def _run_key(self) -> Key:
        return (*self._line, LEASE, KIND, "")

    def _run_row(self) -> Change:
        name = f"{self._run} {self._target.schema.schema_reference}"
        return Put(REFS, Row(self._run_key, (name, self._engine.context.clock())))

    def _mark_key(self, start: str) -> Key:
        return (*self._line, LEASE, _DONE, f"{self._run} {start}")

    async def _is_done(self, start: str, end: str) -> bool:
        (rows,) = await self._engine.context.backend.read([Get(REFS, [self._mark_key(start)])])
        return bool(rows) and str(rows[0].columns[0]) >= end

    async def _mark(self, start: str, end: str, lease: Lease) -> bool:
        """Mark a page as done, and release its lease. False if the lease is not valid any more."""
        row = Row(self._mark_key(start), (end, self._engine.context.clock()))
        (rows,) = await self._engine.context.backend.read([Get(REFS, [self._run_key])])
        if rows and str(rows[0].columns[0]).partition(" ")[2] != self._reference:
            raise self._under_way(str(rows[0].columns[0]).partition(" ")[2])  # it was presumed dead
        changes = [lease.condition(), Put(REFS, row), self._run_row(), lease.end()]
        return await self._engine.context.backend.apply(changes) is None

    async def _end(self) -> None:
        """Remove what the run left, unless another process did."""
        marks = [Delete(REFS, self._run_key), Delete(REFS, (*self._line, LEASE, _DONE))]
        (rows,) = await self._engine.context.backend.read([Get(REFS, [self._run_key])])
        if rows and str(rows[0].columns[0]).startswith(self._run):
            await self._engine.context.backend.apply([Expect(REFS, self._run_key, rows[0].columns), *marks])

    async def _migrate_group(self, group: HeadGroup, lease: Lease) -> None:
        version = self._target.schema.version
        pending = [(head, end) for head, end in group.heads if head.version != version]
        self._report.skipped += len(group.heads) - len(pending)
        together = [(head, end) for head, end in pending if end is not None]
        if together:
            others = await self._migrate_together(together, lease)
        else:
            others = list(dict.fromkeys(head.line for head, _ in pending))
        if others:
            await self._migrate_lines(others, lease)

    async def _migrate_together(self, heads: Sequence[tuple[Head, LineEnd]], lease: Lease) -> list[Line]:
        """Migrate the states of short lines in one batch. Returns the lines that are to be migrated one by one."""
        ends, group = LineEnds(self._engine), _Group([], [], [])
        failed: HoldfastError | None = None
        restored = 0
        with collector_paused():
            for head, end in heads:
                former = short_former(end, head, self._selection, self._target.schema.version)
                try:
                    after = self._migrated(head, end.state) if former is None else former
                except HoldfastError as error:
                    failed = self._note_unfit(head, error)
                    if failed is not None:
                        break
                    continue
                step = ends.prepare(
                    end, diff_maps(end.state, after), KIND, self._reference, *self._fields(head.version)
                )
                if step is None:
                    group.others.append(end.line)
                    continue
                restored += former is not None
                group.steps.append(step)
                group.states.append(after)
        if group.steps and not await ends.append(group.steps, [lease.condition()]):
            return [end.line for _, end in heads]  # another writer was first
        if group.steps:
            for step, written, after in zip(group.steps, await ends.read_back(group.steps), group.states, strict=True):
                if written is None or (written != after and _flat(written) != _flat(after)):
                    raise self._not_as_written(f"thread {step.end.line}, checkpoint {step.end.point.id}")
            self._report.migrated += len(group.steps)
            self._report.restored += restored
        if failed is not None:
            raise failed
        return group.others

    def _migrated(self, head: Head, state: PackedMap) -> PackedMap:
        return self._target.migrate(head, state, check=self._checks_sources)

    def _note_unfit(self, head: Head, error: HoldfastError) -> HoldfastError | None:
        """Report a state that cannot be migrated. Returns the error if it is to stop the run."""
        if (head.line, head.point.id) not in self._unfit:
            self._unfit.add((head.line, head.point.id))
            self._report.unfit_total += 1
            if len(self._report.unfit) < MAX_UNFIT:
                self._report.unfit.append(UnfitState.of(head, error))
        return None if self._on_error == "skip" else error

    def _fields(self, source: Version) -> tuple[bytes, str]:
        """Return the metadata of a step that migrates a state of some version, packed and for people."""
        found = self._metadata.get(source)
        if found is None:
            codec = self._engine.context.codec
            metadata: dict[str, object] = {"migrated": f"{self._target.name}@{source}"}
            found = self._metadata[source] = codec.pack(metadata), readable(codec, metadata)
        return found

    async def _migrate_lines(self, lines: Sequence[Line], lease: Lease) -> None:
        """Migrate the states of lines that may have branches, folded states, large values and pending writes."""
        for _ in range(_ATTEMPTS):
            heads = await read_heads(self._engine, lines, self._selection)
            pending = [head for head in heads if head.version != self._target.schema.version]
            built, failed = list[_BuiltStep](), None
            for head in pending:
                if (head.line, head.point.id) in self._unfit:
                    continue
                try:
                    step = await self._build(head)
                except HoldfastError as error:
                    failed = error
                    break
                if step is not None:
                    built.append(step)
            if built:
                built[0].request.preconditions = _under(lease)
                try:
                    saved = await self._engine.writer.save(*(each.request for each in built))
                except (HeadMoved, ConflictError, NotFoundError):
                    await _renew(lease)
                    continue  # another writer was first: read the heads again
                await self._verify(built, saved)
                self._report.migrated += len(saved)
                self._report.restored += sum(each.is_restored for each in built)
            if failed is not None:
                raise failed
            break
        else:
            raise self._busy(f"thread {lines[0]}")
        self._engine.context.cache.drop_all(*lines)

    async def _build(self, head: Head) -> _BuiltStep | None:
        """Return the step that migrates a state; none, if it cannot be, and that is only reported."""
        engine, target, line = self._engine, self._target, head.line
        try:
            before = await state_of(engine, line, head.point)
            if pack_name(KEPT) in before and any(await engine.writes.of_many(line, [head.point])):
                if line.name not in self._report.deferred:
                    self._report.deferred.append(line.name)
                return None
            former = await former_state(engine, head, self._selection, target.schema.version)
            after = self._migrated(head, before) if former is None else former
        except HoldfastError as error:
            if self._note_unfit(head, error) is not None:
                raise
            return None
        metadata = {"migrated": f"{target.name}@{head.version}"}
        unread = UnreadDeltas({}, {})
        if pack_name(KEPT) in after:
            after = without_follows(after)
            unread = await engine.delta_reader().unread(line, head.point)
        request = AppendRequest(
            line,
            only_after(head.point, diff_maps(before, after)),
            parent=head.parent,
            on_conflict=OnConflict.RETRY if head.is_head or head.is_start else OnConflict.REFUSE,
            stays_beside=True,
            kind=KIND,
            schema=target.schema.schema_reference,
            line_schema=MIGRATED_SCHEMA,
            is_limited=False,
            **step_fields(engine, line, metadata, unread),
        )
        return _BuiltStep(head, request, before, after, former is not None)

    # States that are not in threads -----------------------------------------------------------------------------------

    async def _migrate_documents(self) -> None:
        target, record = self._target, self._selection.record
        async for found in read_documents(self._engine, target.tenant, target.name, record):
            await self._migrate_line(found)

    async def _migrate_line(self, documents: SchemaDocuments) -> None:
        """Migrate the states of a line by one step. Each that fails is left out, if failures are skipped."""
        engine, target, record = self._engine, self._target, self._selection.record
        version, found = target.schema.version, documents
        for _ in range(_ATTEMPTS):
            pending = [each for each in found.documents if each[1] != version]
            former = await former_documents(engine, found, self._selection, version)
            if former is None:
                pending, after = self._migrate_each(found, pending)
            else:
                after = former
            if not pending:
                break
            request = await migration_request(
                engine, found._replace(documents=pending), after, target.name, version, KIND
            )
            try:
                (saved,) = await engine.writer.save(request)
            except (HeadMoved, ConflictError, NotFoundError):
                again = await read_line(engine, found.line, target.name, record)
                if again is None:
                    return
                found = again
                continue
            stored = await state_of(engine, found.line, saved.point)
            if _flat(stored) != _flat(after):
                raise self._not_as_written(found.where(pending[0][0]))
            self._report.migrated += len(pending)
            self._report.restored += len(pending) if former is not None else 0
            break
        else:
            raise self._busy(found.where(found.documents[0][0]))
        self._report.skipped += sum(each == version for _, each in documents.documents)

    def _migrate_each(
        self, found: SchemaDocuments, pending: Sequence[tuple[Document, Version]]
    ) -> tuple[list[tuple[Document, Version]], PackedMap]:
        """Return the states that could be migrated, and the state of the line with them."""
        target, codec = self._target, self._engine.context.codec
        done, after = list[tuple[Document, Version]](), found.state
        for each in pending:
            one = found._replace(state=after, documents=[each])
            try:
                after = migrate_documents(
                    target.schemas, target.name, one, target.schema.version, codec, check=self._checks_sources
                )
            except HoldfastError as error:
                self._report.unfit_total += 1
                if len(self._report.unfit) < MAX_UNFIT:
                    self._report.unfit.append(one.unfit(error))
                if self._on_error != "skip":
                    raise
                continue
            done.append(each)
        return done, after

    async def _verify(self, built: Sequence[_BuiltStep], saved: Sequence[StepInfo]) -> None:
        """Read the new steps from the store, with their hashes, and compare what they make of the states."""
        context = self._engine.context
        keys = [(*each.head.line, *info.point[:2]) for each, info in zip(built, saved, strict=True)]
        (rows,) = await context.backend.read([Get(STEPS, keys, required=True)])
        by_key = {row.key: row for row in rows}
        for each, key in zip(built, keys, strict=True):
            row = by_key.get(key)
            step = None if row is None else open_step(each.head.line, row, context.max_bytes)
            tip = await self._engine.lines.tip(each.head.line)
            if (
                row is None
                or step is None
                or tip is None
                or step.header.parents[0].commit != each.head.point.hash
                or step.commit(tip.info.salt) != StepRef.of(row).hash
            ):
                raise self._not_as_written(each.head.where)
            if each.after != apply_map(step.edit, each.before) and _flat(each.after) != _flat(
                await state_of(self._engine, each.head.line, StepRef.of(row))
            ):
                raise self._not_as_written(each.head.where)

    def _busy(self, where: str) -> ConflictError:
        return ConflictError(
            "others kept adding to the states during the migration",
            where=where,
            hint="Start the migration again: it continues where it stopped",
        )

    def _not_as_written(self, where: str) -> CorruptError:
        return CorruptError(
            "a migrated state reads different from what was written",
            where=where,
            hint="Check the store with `holdfast verify`; the state before it is in the history",
        )


async def _renew(lease: Lease) -> None:
    try:
        await lease.renew_if_due()
    except ConflictError:
        raise _LeaseLost from None


def _under(lease: Lease) -> Preconditions:
    async def conditions(again: bool) -> list[Change]:
        if again:
            try:
                await lease.renew()
            except ConflictError:
                raise _LeaseLost from None
        return [lease.condition()]

    return conditions


def _flat(state: PackedMap) -> dict[bytes, bytes]:
    return {key: flatten(value) for key, value in state.items()}
