"""The plan of a migration: which states there are, which of them do not fit, and what it would do to some of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Final

import msgspec

from holdfast._fields import Hidden, Internal, Label, computed, count, fill
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.engine import Engine
from holdfast.engine.model.packed_state import PackedMap, pack_name, unpack_state
from holdfast.engine.schema_bindings import ASIDE
from holdfast.engine.types import Progress
from holdfast.engine.validation import require_count
from holdfast.errors import ConflictError, HoldfastError
from holdfast.maintenance.migration.heads import (
    BranchPolicy,
    Head,
    HeadGroup,
    HeadSelection,
    UnfitState,
    migrate_documents,
    pages,
    read_documents,
    read_groups,
    state_of,
    unpack_document,
)
from holdfast.maintenance.migration.undo import former_documents, former_state, short_former
from holdfast.schemas.attachment import migrate_state
from holdfast.schemas.graph_checkpoint import is_internal
from holdfast.schemas.migration import Migration
from holdfast.schemas.registry import RegisteredSchemas, SchemaRecord, SchemaRegistry
from holdfast.schemas.schema import Schema, invalid_value
from holdfast.schemas.schema_declaration import choose_schema
from holdfast.schemas.schema_set import SchemaSet, schema_changed
from holdfast.schemas.version import Version

PAGE: Final = 1000
"""The number of threads of a page: what one process has a lease of."""

MAX_UNFIT: Final = 100
"""The number of states that do not fit that a report lists."""


class MigrationSample(msgspec.Struct, frozen=True):
    """A state before and after."""

    thread: str
    checkpoint: str
    source: str
    before: dict[str, object]
    after: dict[str, object]
    kind: str = "thread"
    """What the state is that of: a thread, or a scope, a key, an agent and so on, whose name is in `thread`."""


class MigrationPlan(msgspec.Struct, frozen=True):
    """The plan of a migration. Nothing is written."""

    name: str
    target: Version
    states: dict[str, int] = {}
    """How many latest states there are of each version."""
    migrations: list[str] = []
    """The steps from each version to the target."""
    lossy: list[str] = []
    """Those of which a downgrade may not restore everything."""
    edited: list[str] = []
    """Those that are not as they were when they were applied to states of this store."""
    unfit: list[UnfitState] = []
    """States that cannot be migrated."""
    unfit_total: int = 0
    samples: Internal[list[MigrationSample]] = []

    @property
    @computed
    def pending(self) -> int:
        """How many states are to be migrated."""
        return sum(count for version, count in self.states.items() if version != str(self.target))

    @property
    @computed
    def ok(self) -> bool:
        """Whether the migration can be made."""
        return not self.unfit_total and not self.edited

    def require(self, *, accept_edited: bool = False) -> None:
        """Raise the error of the first reason why the migration cannot be made."""
        if self.edited and not accept_edited:
            raise ConflictError(
                f"the migration {self.edited[0]} was edited after it was applied to states of this store",
                where=self.name,
                hint="Restore it, and put the change into a migration to a new version. If it was edited because it "
                "failed, accept it: --accept-edited",
                code="migration-edited",
            )
        if self.unfit_total:
            first = self.unfit[0]
            raise ConflictError(
                f"{self.unfit_total} states of {self.name} cannot be migrated to {self.target}: {first.reason}",
                where=f"{first.kind} {first.thread!r}, step {first.step}, checkpoint {first.checkpoint}"
                + (f"; {first.path}" if first.path else ""),
                hint="See `holdfast migrate plan`; correct the migration or the states, or skip them: --on-error skip",
                code="migration-unfit",
            )


class MigrationTarget:
    """The states to migrate, and how."""

    def __init__(self, engine: Engine, tenant: str, registered: RegisteredSchemas, schemas: SchemaSet, schema: Schema):
        self.engine = engine
        self.tenant = tenant
        self.schema = schema
        self.name: str = schema.name
        self.schemas: SchemaSet = schemas.extended(registered.schemas)
        self.registered = registered

    @classmethod
    async def of(
        cls, engine: Engine, tenant: str, schemas: SchemaSet, reference: str | None, to: str | Version | None
    ) -> MigrationTarget:
        """Find the version to migrate to: the newest of the program, unless one is named. Raises `ConflictError` if
        the store has another form of it."""
        registered = await SchemaRegistry(engine, tenant).load()
        schema = choose_schema(schemas, reference)
        everything = schemas.extended(registered.schemas)
        if to is not None:
            schema = everything.get(f"{schema.name}@{Version.parse(to)}")
        known = registered.form(schema.schema_reference)
        if known is not None and known.hash != schema.hash:
            raise schema_changed(known, schema)
        return cls(engine, tenant, registered, schemas, schema)

    def selection(self, branches: BranchPolicy, threads: str | None) -> HeadSelection:
        """Return which states have the schema."""
        oldest = min(self.schemas.versions(self.name))
        record = self.registered.records.get(self.name) or SchemaRecord(oldest, oldest)
        selection = HeadSelection(self.name, record, branches, threads)
        selection.check()
        return selection

    def migrate(self, head: Head, packed: PackedMap, *, check: bool = False) -> PackedMap:
        """Return a state in the target version, which it fits as a whole. With `check` the stored state has to fit its
        own version, too."""
        try:
            if check:
                self._check_source(head, packed)
            return migrate_state(
                self.schemas, self.name, packed, head.version, self.schema.version, "", self.engine, whole=True
            )
        except HoldfastError as error:  # the description of a step takes time, and is rarely needed
            error.where = f"{head.where}; {error.where}" if error.where else head.where
            raise

    def _check_source(self, head: Head, packed: PackedMap) -> None:
        source = f"{self.name}@{head.version}"
        if not any(each.schema_reference == source for each in self.schemas):
            return  # a version whose form is not known: the migration shows whether it fits
        values = unpack_state(self.engine.context.codec, packed)
        is_graph = KEPT in values
        own = {key: value for key, value in values.items() if not (is_graph and is_internal(key)) and key != ASIDE}
        problems = self.schemas.check(source, own, partial=is_graph)
        if problems:
            raise invalid_value(source, problems)

    def migrations(self, versions: Sequence[Version]) -> list[Migration]:
        """Return the migrations on the ways from some versions."""
        found: dict[str, Migration] = {}
        for version in versions:
            for step in self.schemas.path(self.name, version, self.schema.version):
                if step.migration is not None:
                    found[str(step.migration)] = step.migration
        return list(found.values())


async def make_plan(
    target: MigrationTarget,
    *,
    branches: BranchPolicy = "all",
    threads: str | None = None,
    samples: int = 3,
    progress: Progress | None = None,
) -> MigrationPlan:
    """Read all latest states, check them against their schemas, and migrate them in memory."""
    require_count(samples, "number of samples")
    engine, selection = target.engine, target.selection(branches, threads)
    plan = MigrationPlan(target.name, target.schema.version)
    done, ways = 0, set[Version]()
    async for group in all_heads(engine, target.tenant, selection):
        for head, end in group.heads:
            plan.states[str(head.version)] = plan.states.get(str(head.version), 0) + 1
            if head.version == target.schema.version:
                continue
            try:
                before = await state_of(engine, head.line, head.point) if end is None else end.state
                if end is None:
                    former = await former_state(engine, head, selection, target.schema.version)
                else:
                    former = short_former(end, head, selection, target.schema.version)
                if former is None:
                    ways.add(head.version)
                after = target.migrate(head, before, check=True) if former is None else former
            except HoldfastError as error:
                count(plan, unfit_total=1)
                if len(plan.unfit) < MAX_UNFIT:
                    plan.unfit.append(UnfitState.of(head, error))
                if error.code == "migration-missing":
                    raise
                continue
            if len(plan.samples) < samples:
                plan.samples.append(_sample(target, head, before, after))
        done += len(group.lines)
        if progress is not None:
            progress(done, None, group.lines[-1].name)
    if threads is None:
        ways |= await _plan_documents(target, selection, plan, samples)
    for version in sorted(ways):
        path = target.schemas.path(target.name, version, target.schema.version)
        plan.migrations.extend(text for step in path if (text := f"{target.name} {step}") not in plan.migrations)
        plan.lossy.extend(text for step in path if step.lossy and (text := f"{target.name} {step}") not in plan.lossy)
    fill(plan, edited=[str(each) for each in target.registered.edited(target.migrations(sorted(ways)))])
    return plan


async def _plan_documents(
    target: MigrationTarget, selection: HeadSelection, plan: MigrationPlan, samples: int
) -> set[Version]:
    """Add what is not in threads to a plan. Returns the versions to migrate from."""
    codec, version, ways = target.engine.context.codec, target.schema.version, set[Version]()
    async for found in read_documents(target.engine, target.tenant, target.name, selection.record):
        former = await former_documents(target.engine, found, selection, version)
        for document, source in found.documents:
            plan.states[str(source)] = plan.states.get(str(source), 0) + 1
            if source == version:
                continue
            if former is None:
                ways.add(source)
            one = found._replace(documents=[(document, source)])
            try:
                if former is None:
                    after = migrate_documents(target.schemas, target.name, one, version, codec, check=True)
                else:
                    after = former
            except HoldfastError as error:
                if error.code == "migration-missing":
                    raise
                count(plan, unfit_total=1)
                if len(plan.unfit) < MAX_UNFIT:
                    plan.unfit.append(one.unfit(error))
                continue
            if len(plan.samples) < samples:
                before, shown = (
                    unpack_document(codec, document.kind, document.name, each) for each in (found.state, after)
                )
                reference, kind = f"{target.name}@{source}", document.kind
                sample = MigrationSample(found.name(document), found.point.id, reference, before, shown, kind)
                plan.samples.append(sample)
    return ways


def _sample(target: MigrationTarget, head: Head, before: PackedMap, after: PackedMap) -> MigrationSample:
    codec, hidden = target.engine.context.codec, pack_name(ASIDE)
    old, new = (unpack_state(codec, {k: v for k, v in each.items() if k != hidden}) for each in (before, after))
    return MigrationSample(head.line.name, head.point.id, f"{target.name}@{head.version}", old, new)


async def all_heads(engine: Engine, tenant: str, selection: HeadSelection) -> AsyncIterator[HeadGroup]:
    """Yield all heads that have a schema, a group at a time."""
    async for lines in pages(engine, tenant, PAGE):
        async for group in read_groups(engine, lines, selection):
            yield group


async def has_states(target: MigrationTarget) -> bool:
    """Return whether there is a latest state of the target version."""
    version, selection = target.schema.version, target.selection("all", None)
    async for group in all_heads(target.engine, target.tenant, selection):
        if any(head.version == version for head, _ in group.heads):
            return True
    async for found in read_documents(target.engine, target.tenant, target.name, selection.record):
        if any(each == version for _, each in found.documents):
            return True
    return False


class SchemaStatus(msgspec.Struct, frozen=True):
    """A schema in a store: the version that is written now, and how many latest states there are of each."""

    name: str
    current: Annotated[str, Label("store")]
    pinned: Hidden[bool]
    """Whether its states were downgraded on purpose."""
    newest: Annotated[str, Label("code")]
    """The newest version of the program; empty if it does not know the schema."""
    states: dict[str, int]
    pending: int
    """How many states have another version than the newest of the program."""
    edited: Hidden[list[str]]
    """Migrations that were edited after they were applied."""
    changed: Hidden[list[str]]
    """Versions of the program that have another form in the store."""


async def schema_status(
    engine: Engine, tenant: str, schemas: SchemaSet, progress: Progress | None = None
) -> list[SchemaStatus]:
    """Count the latest states of each version of each schema that the store or the program has."""
    registered = await SchemaRegistry(engine, tenant).load()
    everything = schemas.extended(registered.schemas)
    names = sorted({each.name for each in everything if each.name in registered.records or each in schemas})
    selections = []
    for name in names:
        oldest = min(everything.versions(name))
        selections.append(HeadSelection(name, registered.records.get(name) or SchemaRecord(oldest, oldest)))
    counts: dict[str, dict[Version, int]] = {name: {} for name in names}
    done = 0
    async for lines in pages(engine, tenant, PAGE):
        for selection in selections:
            found = counts[selection.name]
            async for group in read_groups(engine, lines, selection):
                for head, _ in group.heads:
                    found[head.version] = found.get(head.version, 0) + 1
        done += len(lines)
        if progress is not None:
            progress(done, None, lines[-1].name)
    for selection in selections:
        async for documents in read_documents(engine, tenant, selection.name, selection.record):
            for _, version in documents.documents:
                counts[selection.name][version] = counts[selection.name].get(version, 0) + 1
    declared = {each.name for each in schemas}
    result = []
    for name in names:
        record, found = registered.records.get(name), counts[name]
        newest = schemas.get(name).version if name in declared else None
        result.append(
            SchemaStatus(
                name,
                "" if record is None else str(record.current),
                record is not None and record.is_pinned,
                "" if newest is None else str(newest),
                {str(version): found[version] for version in sorted(found)},
                sum(count for version, count in found.items() if newest is not None and version != newest),
                [str(each) for each in registered.edited(schemas.migrations(name))],
                [each.schema_reference for each in registered.changed(schemas) if each.name == name],
            )
        )
    return result
