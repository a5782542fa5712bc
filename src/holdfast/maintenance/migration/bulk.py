"""Migration of all latest states: one step of kind `migrate` on each, in batches, and the way back.

A state that has the target version is left alone, so that a run that was killed is simply started again. Several
processes share a run: each page of threads is migrated under a lease, and marked when it is done. Whatever they do, a
step is stored only after the step whose state was migrated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from holdfast._fields import count, fill
from holdfast.backends.interface import Change, Get
from holdfast.backends.runtime.drivers import Pause
from holdfast.backends.tables import STEPS
from holdfast.codec import collector_paused
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.guard import Preconditions
from holdfast.engine.leases import Lease
from holdfast.engine.line_ends import LineEnd, LineEnds, NextStep
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.operations import apply_map
from holdfast.engine.model.packed_state import PackedMap, flatten, pack_name
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line, StepRef, open_step, readable
from holdfast.engine.step_info import StepInfo
from holdfast.engine.types import Progress
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, NotFoundError
from holdfast.history.langgraph_compat import HeadMoved, without_follows
from holdfast.maintenance.line_documents import Document
from holdfast.maintenance.migration.heads import (
    BranchPolicy,
    Head,
    HeadGroup,
    HeadSelection,
    SchemaDocuments,
    UnfitState,
    migrate_documents,
    migration_request,
    pages,
    read_documents,
    read_groups,
    read_heads,
    read_line,
    state_of,
)
from holdfast.maintenance.migration.plan import MAX_UNFIT, PAGE, MigrationTarget, has_states
from holdfast.maintenance.migration.shared_run import LIFE, PAUSE_SECONDS, LeaseLost, RunEnded, SharedRun
from holdfast.maintenance.migration.undo import (
    KIND,
    former_documents,
    former_state,
    short_former,
    thread_request,
    undo_step,
)
from holdfast.schemas.registry import LINE, SchemaRecord, SchemaRegistry
from holdfast.schemas.version import Version

OnError: TypeAlias = Literal["stop", "skip", "rollback"]
"""What to do if a state cannot be migrated: stop there, leave it as it is, or undo the run and stop."""

_PASSES = 3
"""How often states are looked for that programs with an older version store meanwhile."""


class MigrationReport(msgspec.Struct, frozen=True):
    """The report of a migration."""

    name: str
    target: Version
    migrated: int = 0
    skipped: int = 0
    """States that had the target version already."""
    restored: int = 0
    """Of those that were migrated: states that are exactly what they were before the last migration."""
    deferred: list[str] = []
    """Threads of LangGraph in the middle of a step: they are upgraded when they are resumed."""
    unfit: list[UnfitState] = []
    unfit_total: int = 0
    still_written: list[str] = []
    """Versions that other programs kept writing during the run, so that states of them may be left."""

    @property
    def complete(self) -> bool:
        """Whether all latest states have the target version now."""
        return not (self.unfit_total or self.deferred or self.still_written)


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
            raise InvalidError(f"on_error must be {' or '.join(map(repr, get_args(OnError)))}, not {on_error!r}")
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
        self._shared = SharedRun(self._engine, self._line, self._reference, self._selection.digest, LIFE)
        self._registered = self._before = target.registered
        """The registry before this pass, and before the first one."""
        self._began = False
        """Whether this process began the run, and did not only join that of others."""
        self._sources: list[Version] = []
        self._keeps_sources = False
        self._written: list[tuple[Line, str]] = []
        """The steps of this process, if they are to be undone in case of an error."""

    def check_direction(self, *, down: bool) -> None:
        """Raise `InvalidError` if a downgrade is to a newer version than the one that is written now, or an upgrade to
        an older one."""
        record, version = self._target.registered.records.get(self._target.name), self._target.schema.version
        if record is None or not (version > record.current if down else version < record.current):
            return
        what, leads, way = ("a downgrade", "an older", "up") if down else ("an upgrade", "a newer", "down")
        raise InvalidError(
            f"{what} leads to {leads} version, and the states have {record.current}",
            where=self._reference,
            hint=f"Use the other direction: holdfast migrate {way}",
        )

    async def run(self, *, down: bool = False) -> MigrationReport:
        """Migrate all states. The version is the one to write from the start, so that others write no older ones."""
        await self._begin(down=down)  # first: a run that is refused changes nothing
        self._before = self._registered
        try:
            await self._migrate_until_retired(down=down)
        except Exception:
            if self._on_error == "rollback":
                await self._undo()
            await self._shared.leave()
            raise
        await self._shared.end()
        return self._report

    async def _migrate_until_retired(self, *, down: bool) -> None:
        """Migrate all states; and again, if states of the older versions were stored behind the run meanwhile, or
        another process ended the run and left some."""
        for number in range(_PASSES):
            if number:
                await self._shared.end()
                await self._begin(down=down)
            skipped, is_ended = self._report.skipped, False
            try:
                await self._migrate_all()
            except RunEnded:
                is_ended = True
            if number:
                fill(self._report, skipped=skipped)
            if await self._retire(is_ended=is_ended) or not self._report.complete:
                return
        fill(self._report, still_written=[str(each) for each in self._sources])

    # The registry ----------------------------------------------------------------------------------------------------

    async def _begin(self, *, down: bool) -> None:
        target, name, version = self._target, self._target.name, self._target.schema.version
        begins = await self._shared.join()
        self._registered = await self._registry.load(refresh=True)
        self._sources = [each for each in self._registered.stored_versions(name) if each != version]
        if not begins:
            return
        self._began = True
        migrations = [] if down else target.migrations([each for each in self._sources if each < version])

        def update(stored: SchemaRecord | None) -> SchemaRecord:
            record = stored or self._selection.record
            stays = record.is_pinned and record.current == version  # only an upgrade beyond it ends a downgrade
            return replace(record, current=version, is_pinned=down or stays)

        try:
            await self._registry.register(
                [target.schema],
                migrations,
                {name: update},
                renewed=self._accept_edited,
                used=[self._reference],
                closing=self._source_references if self._is_whole else (),
                kind=KIND,
                preconditions=self._shared.under_way,
            )
            await self._shared.begin()
        except RunEnded:  # it was presumed dead, and another process began the same run
            await self._begin(down=down)
        except Exception:
            await self._shared.leave()
            raise

    @property
    def _is_whole(self) -> bool:
        return self._selection.threads is None and self._selection.branches == "all"

    @property
    def _source_references(self) -> list[str]:
        return [f"{self._target.name}@{each}" for each in self._sources]

    async def _retire(self, *, is_ended: bool) -> bool:
        """Retire the versions that no state has any more, unless another process ended the run, which is to have done
        so. False if there may be such states."""
        sources = self._source_references
        if not self._is_whole or not sources or not self._report.complete:
            return not is_ended
        if not is_ended:
            await self._registry.register([], retired=sources, kind=KIND)
        return set(sources) <= (await self._registry.load(refresh=True)).retired

    async def _keep_sources(self) -> None:
        """Note that states of the older versions are left, so that nobody retires them."""
        if self._sources and self._is_whole and not self._keeps_sources:
            self._keeps_sources = True
            await self._registry.register([], used=self._source_references, kind=KIND)

    async def _undo(self) -> None:
        """Undo the steps of this process; and what the run registered, if it began it."""
        name, before = self._target.name, self._before
        for line, id in reversed(self._written):
            await undo_step(self._engine, line, id, self._selection)
            self._engine.context.cache.drop_all(line)
        record = before.records.get(name, self._selection.record)

        def update(stored: SchemaRecord | None) -> SchemaRecord:
            if stored is not None and stored.current != self._target.schema.version:
                return stored  # another run changed it since
            return replace(stored or record, current=record.current, is_pinned=record.is_pinned)

        closing, records = [self._reference], {name: update} if self._began else None
        await self._registry.register([], records=records, used=self._source_references, closing=closing, kind=KIND)
        if record.current == self._target.schema.version or await has_states(self._target):
            await self._registry.register([], used=closing, kind=KIND)
            return
        path = self._target.migrations([each for each in self._sources if each < self._target.schema.version])
        unapplied = [str(each) for each in path if str(each) not in before.fingerprints] if self._began else []
        await self._registry.register([], retired=closing, unapplied=unapplied, kind=KIND)

    # Pages, shared by processes -------------------------------------------------------------------------------------

    async def _migrate_all(self) -> None:
        busy = await self._pass()
        while busy:  # others have pages: wait for them, or take over those of a process that was killed
            await Pause(PAUSE_SECONDS)
            busy = await self._pass()

    async def _pass(self) -> bool:
        """Migrate every page that nobody has or had. Returns whether others are at work on some."""
        busy = False
        async for lines in pages(self._engine, self._target.tenant, PAGE):
            busy = await self._migrate_page(lines, lines[0].name, lines[-1].name) or busy
        if self._selection.threads is None and self._selection.record.places:
            busy = await self._migrate_page((), "", "") or busy
        return busy

    async def _migrate_page(self, lines: Sequence[Line], start: str, end: str) -> bool:
        """Migrate a page of threads, or without lines all that are no threads. Returns whether it is to be tried
        again: another process is at work on it, or was."""
        if await self._shared.is_done(start, end):
            return False
        lease = await self._shared.acquire(start)
        if lease is None:
            return True
        is_marked = False
        try:
            if lines:
                await self._migrate_threads(lines, lease)
            else:
                await self._migrate_documents(lease)
            if not self._report.complete:
                await self._keep_sources()
            is_marked = await self._shared.mark(start, end, lease)
        except LeaseLost:
            pass
        finally:
            if not is_marked:
                await lease.release()
        return not is_marked

    async def _migrate_threads(self, lines: Sequence[Line], lease: Lease) -> None:
        async for group in read_groups(self._engine, lines, self._selection):
            await _renew(lease)
            await self._migrate_group(group, lease)
            self._done += len(group.lines)
            if self._progress is not None:
                self._progress(self._done, None, group.lines[-1].name)

    async def _migrate_group(self, group: HeadGroup, lease: Lease) -> None:
        version = self._target.schema.version
        pending = [(head, end) for head, end in group.heads if not head.is_of(version)]
        count(self._report, skipped=len(group.heads) - len(pending))
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
        self._note_written((each.end.line, each.step.header.id) for each in group.steps)
        if group.steps:
            for step, written, after in zip(group.steps, await ends.read_back(group.steps), group.states, strict=True):
                if written is None or (written != after and _flat(written) != _flat(after)):
                    raise self._not_as_written(f"thread {step.end.line}, checkpoint {step.end.point.id}")
            count(self._report, migrated=len(group.steps), restored=restored)
        if failed is not None:
            raise failed
        return group.others

    def _note_written(self, steps: Iterable[tuple[Line, str]]) -> None:
        if self._on_error == "rollback":
            self._written += steps

    def _migrated(self, head: Head, state: PackedMap) -> PackedMap:
        return self._target.migrate(head, state, check=self._checks_sources)

    def _note_unfit(self, head: Head, error: HoldfastError) -> HoldfastError | None:
        """Report a state that cannot be migrated. Returns the error if it is to stop the run."""
        if (head.line, head.point.id) not in self._unfit:
            self._unfit.add((head.line, head.point.id))
            count(self._report, unfit_total=1)
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
        attempts = Attempts("migrating a thread", lines[0], self._engine.context.metrics)
        while True:
            await attempts.begin()
            heads = await read_heads(self._engine, lines, self._selection)
            pending = [head for head in heads if not head.is_of(self._target.schema.version)]
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
                self._note_written((each.head.line, info.point.id) for each, info in zip(built, saved, strict=True))
                await self._verify(built, saved)
                count(self._report, migrated=len(saved), restored=sum(each.is_restored for each in built))
            if failed is not None:
                raise failed
            break
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
        references = f"{target.name}@{head.version}", target.schema.schema_reference
        conflict = OnConflict.RETRY if head.is_head or head.is_start else OnConflict.REFUSE
        request = await thread_request(engine, line, head.point, before, after, references, head.parent, conflict)
        if pack_name(KEPT) in after:
            after = without_follows(after)
        return _BuiltStep(head, request, before, after, former is not None)

    # States that are not in threads -----------------------------------------------------------------------------------

    async def _migrate_documents(self, lease: Lease) -> None:
        target, record = self._target, self._selection.record
        async for found in read_documents(self._engine, target.tenant, target.name, record):
            await _renew(lease)
            await self._migrate_line(found, lease)

    async def _migrate_line(self, documents: SchemaDocuments, lease: Lease) -> None:
        """Migrate the states of a line by one step. Each that fails is left out, if failures are skipped."""
        engine, target, record = self._engine, self._target, self._selection.record
        version, found = target.schema.version, documents
        attempts = Attempts("migrating states", found.where(found.documents[0][0]), engine.context.metrics)
        while True:
            await attempts.begin()
            pending = [each for each in found.documents if each[1] != version]
            former = await former_documents(engine, found, self._selection, version)
            if former is None:
                pending, after = self._migrate_each(found, pending)
            else:
                after = former
            if not pending:
                break
            changed = [(document, source, version) for document, source in pending]
            request = await migration_request(engine, found, after, target.name, changed, KIND)
            request.preconditions = _under(lease)
            try:
                (saved,) = await engine.writer.save(request)
            except (HeadMoved, ConflictError, NotFoundError):
                again = await read_line(engine, found.line, target.name, record)
                if again is None:
                    return
                found = again
                continue
            self._note_written([(found.line, saved.point.id)])
            stored = await state_of(engine, found.line, saved.point)
            if _flat(stored) != _flat(after):
                raise self._not_as_written(found.where(pending[0][0]))
            count(self._report, migrated=len(pending), restored=len(pending) if former is not None else 0)
            break
        count(self._report, skipped=sum(each == version for _, each in documents.documents))

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
                count(self._report, unfit_total=1)
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

    def _not_as_written(self, where: str) -> CorruptError:
        return CorruptError(
            "a migrated state differs from what was written when it is read back",
            where=where,
            hint="Check the store with `holdfast verify`; the state before it is in the history",
        )


async def _renew(lease: Lease) -> None:
    try:
        await lease.renew_if_due()
    except ConflictError:
        raise LeaseLost from None


def _under(lease: Lease) -> Preconditions:
    async def conditions(again: bool) -> list[Change]:
        if again:
            try:
                await lease.renew()
            except ConflictError:
                raise LeaseLost from None
        return [lease.condition()]

    return conditions


def _flat(state: PackedMap) -> dict[bytes, bytes]:
    return {key: flatten(value) for key, value in state.items()}
