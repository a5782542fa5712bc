"""Migration of all latest states: one step of kind `migrate` on each, in batches, and the way back.

A state that has the target version is left alone, so that a run that was killed is simply started again. Several
processes share a run: each page of threads is migrated under a lease, and marked when it is done. Whatever they do, a
step is stored only after the step whose state was migrated.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row
from holdfast.backends.runtime.drivers import Pause
from holdfast.backends.tables import REFS, STEPS, Key
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.branch_graph import Position
from holdfast.engine.delta_channels import KEPT, UnreadDeltas
from holdfast.engine.guard import Preconditions
from holdfast.engine.leases import Lease
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.operations import apply_map
from holdfast.engine.model.packed_state import PackedMap, flatten, pack_name
from holdfast.engine.row_format import LEASE, Line, StepRef, open_step
from holdfast.engine.schema_bindings import KEPT_SCHEMA
from holdfast.engine.step_info import StepInfo
from holdfast.engine.types import Progress
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, NotFoundError
from holdfast.history.langgraph_compat import HeadMoved, only_after, step_fields, without_follows
from holdfast.maintenance.migration.heads import (
    BranchPolicy,
    Head,
    HeadSelection,
    UnfitState,
    pages,
    read_heads,
    schema_of,
    state_of,
)
from holdfast.maintenance.migration.plan import MAX_UNFIT, PAGE, MigrationTarget
from holdfast.schemas.registry import LINE, SchemaRecord, SchemaRegistry
from holdfast.schemas.version import Version

OnError: TypeAlias = Literal["stop", "skip", "rollback"]
"""What to do if a state cannot be migrated: stop there, leave it as it is, or undo the run and stop."""

KIND: Final = "migrate"
"""The kind of the steps."""

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
        self._done = 0
        self._run = ""

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

        await self._registry.register(
            [target.schema],
            migrations,
            {name: update},
            renewed=self._accept_edited,
            used=[target.schema.schema_reference],
            kind=KIND,
        )
        await self._join()
        try:
            await self._migrate_all()
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
            start = lines[0].name
            if await self._is_done(start, lines[-1].name):
                continue
            lease = Lease(self._engine.context, self._line, f"{KIND} {start}", _LIFE)
            try:
                await lease.acquire()
            except ConflictError:
                busy = True
                continue
            try:
                await self._migrate_page(lines, lease)
                await self._mark(start, lines[-1].name, lease)
            except _LeaseLost:
                busy = True
                continue
            finally:
                await lease.release()
            self._done += len(lines)
            if self._progress is not None:
                self._progress(self._done, None, lines[-1].name)
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
            raise ConflictError(
                f"a migration to {reference} is under way",
                where=self._target.name,
                hint=f"Wait for it to end; if its process was killed, start again in {_LIFE:g} s",
                code="under-way",
            )
        self._run = os.urandom(8).hex()
        expected = rows[0].columns if rows else None
        if await context.backend.apply([Expect(REFS, self._run_key, expected), self._run_row()]) is not None:
            await self._join()

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

    async def _mark(self, start: str, end: str, lease: Lease) -> None:
        row = Row(self._mark_key(start), (end, self._engine.context.clock()))
        await self._engine.context.backend.apply([lease.condition(), Put(REFS, row), self._run_row()])

    async def _end(self) -> None:
        """Remove what the run left, unless another process did."""
        marks = [Delete(REFS, self._run_key), Delete(REFS, (*self._line, LEASE, _DONE))]
        (rows,) = await self._engine.context.backend.read([Get(REFS, [self._run_key])])
        if rows and str(rows[0].columns[0]).startswith(self._run):
            await self._engine.context.backend.apply([Expect(REFS, self._run_key, rows[0].columns), *marks])

    async def _migrate_page(self, lines: Sequence[Line], lease: Lease) -> None:
        remaining = list(lines)
        for _ in range(_ATTEMPTS):
            heads = await read_heads(self._engine, remaining, self._selection)
            pending = [head for head in heads if head.version != self._target.schema.version]
            if len(remaining) == len(lines):
                self._report.skipped += len(heads) - len(pending)
            known = {(each.thread, each.checkpoint) for each in self._report.unfit}
            built = [
                step
                for head in pending
                if (head.line.name, head.point.id) not in known and (step := await self._build(head)) is not None
            ]
            if not built:
                break
            built[0].request.preconditions = _under(lease)
            try:
                saved = await self._engine.writer.save(*(each.request for each in built))
            except (HeadMoved, ConflictError, NotFoundError):
                await lease.renew_if_due()
                continue  # another writer was first: read the heads again
            await self._verify(built, saved)
            self._report.migrated += len(saved)
            break
        else:
            raise ConflictError(
                "others kept adding to the threads during the migration",
                where=f"thread {lines[0]}",
                hint="Start the migration again: it continues where it stopped",
            )
        self._engine.context.cache.drop_all(*lines)

    async def _build(self, head: Head) -> _BuiltStep | None:
        """Return the step that migrates a state; none, if it cannot be, and that is only reported."""
        engine, target, line = self._engine, self._target, head.line
        try:
            before = await state_of(engine, line, head.point)
            if pack_name(KEPT) in before and any(await engine.writes.of_many(line, [head.point])):
                self._report.deferred.append(line.name)
                return None
            after = await self._former(head) or target.migrate(head, before, check=self._on_error == "skip")
        except HoldfastError as error:
            self._report.unfit_total += 1
            if len(self._report.unfit) < MAX_UNFIT or self._on_error != "skip":
                self._report.unfit.append(UnfitState.of(head, error))
            if self._on_error != "skip":
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
            parent=None if head.is_head else Position(head.point.branch, head.point.seq),
            on_conflict=OnConflict.RETRY if head.is_head else OnConflict.REFUSE,
            stays_beside=True,
            kind=KIND,
            schema=target.schema.schema_reference,
            line_schema=KEPT_SCHEMA,
            is_limited=False,
            **step_fields(engine, line, metadata, unread),
        )
        return _BuiltStep(head, request, before, after)

    async def _former(self, head: Head) -> PackedMap | None:
        """Return the state before the last migration, if nothing was saved since and it has the target version."""
        engine, point = self._engine, head.point
        if point.kind != KIND:
            return None
        info = await engine.step_info.head(head.line, point)
        if not info.header.parents:
            return None
        branch, seq, _ = info.header.parents[0]
        try:
            parent = await engine.lines.find(head.line, Position(branch, seq))
        except NotFoundError:
            return None  # it was pruned
        version = self._selection.version(head.line, await schema_of(engine, head.line, parent))
        if version != self._target.schema.version:
            return None
        self._report.restored += 1
        return await state_of(engine, head.line, parent)

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
                raise self._not_as_written(each.head)
            if each.after != apply_map(step.edit, each.before) and _flat(each.after) != _flat(
                await state_of(self._engine, each.head.line, StepRef.of(row))
            ):
                raise self._not_as_written(each.head)

    def _not_as_written(self, head: Head) -> CorruptError:
        return CorruptError(
            "a migrated state reads different from what was written",
            where=head.where,
            hint="Check the store with `holdfast verify`; the state before it is in the history",
        )


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
