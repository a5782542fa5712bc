"""A version of a schema that a program attached: whether it may still be written, and whether values fit it.

A writer may write its version as long as the registry says so. That is a condition of every batch, so that a writer
that attached before an upgrade notices it at its next step, and is refused or goes on as the compatibility says.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from holdfast.backends.interface import Change
from holdfast.engine.append import Edit
from holdfast.engine.engine import Engine
from holdfast.engine.guard import both_preconditions
from holdfast.engine.model.packed_state import Packed, PackedMap, unpack, unpack_name
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.schema_bindings import LineSchema, SchemaRequest
from holdfast.engine.state_loader import LoadedState, weigh
from holdfast.errors import ConflictError, HoldfastError, NotFoundError, UnsupportedError
from holdfast.schemas.migration import Migration
from holdfast.schemas.registry import RegisteredSchemas, SchemaRecord, SchemaRegistry
from holdfast.schemas.schema import Schema, invalid_value
from holdfast.schemas.schema_declaration import Declaration, ValidationMode
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.validator import Problem
from holdfast.schemas.version import Version, parse_reference


class SchemaWarning(UserWarning):
    """A value that was saved does not fit its schema."""


class AttachedVersion:
    """The schema of some states or values, as this program has it."""

    def __init__(
        self,
        engine: Engine,
        registry: SchemaRegistry,
        declaration: Declaration,
        unversioned: Version | None,
    ) -> None:
        self._engine = engine
        self._registry = registry
        self.declaration: Final = declaration
        self.schemas: SchemaSet = declaration.schemas
        """The schemas of the program, and other versions that the store has."""
        self.schema: Final = declaration.schema
        self.reference: str = declaration.schema.schema_reference
        self.unversioned: Final = unversioned
        """The version of states without a reference to a schema; None if they have none until they are saved anew."""
        self._validate = declaration.validate
        self._accepted: set[Version] = set()
        """Newer versions whose states this program may read and write: it keeps the channels that it does not know."""
        self._checked: RegisteredSchemas | None = None

    @cached_property
    def migrations_key(self) -> int:
        """A key that tells results of these migrations from those of others, such as corrected ones, in a cache."""
        return hash(tuple(each.fingerprint for each in self.schemas.migrations()))

    # Whether this version may be written ---------------------------------------------------------------------------

    def check(self, registered: RegisteredSchemas) -> None:
        """Check the version against what the store has, each stored version included. Raises if it may not be used."""
        if registered is self._checked:
            return
        name, version = self.schema.name, self.schema.version
        record = registered.records.get(name)
        everything = self.declaration.schemas.extended(registered.schemas)
        accepted = set()
        for stored in registered.stored_versions(name):
            if stored < version:
                everything.path(name, stored, version)  # raises, with the migration to write
            elif stored > version:
                newer = everything.get(f"{name}@{stored}")
                refused = self._forward_error(newer, everything)
                if refused is None:
                    accepted.add(stored)
                elif record is None or not record.is_pinned or record.current > version:
                    raise refused
                # Otherwise the states were downgraded, but for some that could not be: those alone are refused.
        if record is not None and record.is_pinned and record.current < version:
            raise ConflictError(
                f"the states of {name} were downgraded to {record.current}, and this program has {version}",
                where=self.reference,
                hint=f"Run the release with {record.current}, or upgrade again: holdfast migrate up {name}",
                code="schema-downgraded",
            )
        self.schemas, self._accepted, self._checked = everything, accepted, registered

    def _forward_error(self, newer: Schema, everything: SchemaSet) -> HoldfastError | None:
        """Return why this program may not work beside a newer version; None if that only added channels that this one
        need not know."""
        compatibility = everything.compare(self.schema, newer)
        if not compatibility.forward:
            breaking = next(each for each in compatibility.changes if not each.forward)
            reason = f"{breaking.path or 'the state'}: {breaking.reason}"
        else:
            inside = [each for each in compatibility.changes if each.kind != "added" or "." in each.path]
            if not inside:
                return None
            reason = f"{inside[0].path or 'the state'}: {inside[0].reason}"
        return ConflictError(
            f"the store has states of {newer.schema_reference}, which is incompatible with this program's "
            f"{self.schema.version}: {reason}",
            where=self.reference,
            hint=f"Run the release with {newer.version}, or downgrade the states with it: "
            f"holdfast migrate down {newer.name} --to {self.schema.version}",
            code="schema-outdated",
        )

    async def conditions(self, again: bool) -> Sequence[Change]:
        """Return the conditions on which a step may be saved: that the registry is as it was checked."""
        registered = await self._registry.load(refresh=again)
        try:
            self.check(registered)
        except HoldfastError:  # it may have been refused for a reason that is gone
            self.check(registered := await self._registry.load(refresh=True))
        if self.reference in registered.unused:  # the last states of this version were migrated; it writes new ones
            await self._registry.register([], used=[self.reference])
            self.check(await self._registry.load())
        return self._registry.unchanged()

    async def accept(self, reference: str, where: str) -> None:
        """Refuse a state of a newer version, unless this program gets along with it. The registry is read again."""
        if self.version_of(reference) not in self._accepted:
            self.check(await self._registry.load(refresh=True))
        self.require_accepted(reference, where)

    def require_accepted(self, reference: str, where: str) -> None:
        """Refuse a state of a newer version, unless this program gets along with it."""
        if self.version_of(reference) in self._accepted:
            return
        raise UnsupportedError(
            f"the state is of {reference}, which is newer than this program's {self.schema.version}",
            where=where,
            hint="Run the release of the application that wrote it, or downgrade the states with it",
            code="schema-newer",
        )

    def applies_to(self, reference: str) -> bool:
        """Return whether a state with this reference has the schema, in any version."""
        return bool(reference) or self.unversioned is not None

    def version_of(self, reference: str) -> Version | None:
        """Return the version of a state by its reference; None if it has none. Raises `ConflictError` if it has another
        schema."""
        if not reference:
            return self.unversioned
        name, version = parse_reference(reference)
        if name != self.schema.name or version is None:
            raise ConflictError(
                f"the state has the schema {reference}, not {self.schema.name}",
                where=self.reference,
                hint="Attach the schema that it has, or give what has different schemas different names",
                code="schema-changed",
            )
        return version

    # Validation ----------------------------------------------------------------------------------------------------

    def problems(
        self,
        new: Mapping[bytes, Packed],
        changed: Sequence[bytes] | None,
        before: Mapping[bytes, Packed] | None = None,
        *,
        partial: bool = False,
        hidden: Collection[bytes] = (),
    ) -> list[Problem]:
        """Return what does not fit of some fields, or of all. Of a `partial` state, some need not be written yet."""
        codec, fields = self._engine.context.codec, self.schema.canonical.get("fields", {})
        if changed is None or (before is not None and not before):
            values = {unpack_name(key): unpack(codec, value) for key, value in new.items() if key not in hidden}
            return self.schemas.check(self.reference, values, partial=partial)
        values = {}
        skipped: dict[str, int] = {}
        for key in changed:
            if key in new:
                name, value = unpack_name(key), new[key]
                old = None if before is None else before.get(key)
                field = fields.get(name)
                if field is not None and isinstance(value, list) and isinstance(old, list) and _is_plain(field):
                    # The items before them were checked when they were new.
                    skipped[name] = _common_start(old, value)
                    value = value[skipped[name] :]
                values[name] = unpack(codec, value)
        names = frozenset(map(unpack_name, changed))
        found = self.schemas.check(self.reference, values, names, partial=partial) if names else []
        return [_moved(problem, skipped) for problem in found] if skipped else found

    def report(self, problems: list[Problem], where: str) -> None:
        """Refuse or warn of a value that does not fit, as the program declared."""
        report_problems(self.reference, problems, where, self._validate)


class LineAttachment(AttachedVersion, LineSchema):
    """The schema of whole states, of threads or of scopes, as this program has it."""

    _aside_key: bytes
    """The channel of what migrations keep aside."""

    def prepare(self, request: SchemaRequest) -> None:
        """Let a step be saved in this version, on condition that the version may still be written."""
        self.prepare_kept(request)
        request.convert = partial(self._convert, request, request.schema)
        request.schema = self.reference

    def prepare_kept(self, request: SchemaRequest) -> None:
        """Let a step be saved that keeps the version of its parent, such as a merge, on the same condition."""
        request.permit = both_preconditions(request.permit, self.conditions)

    async def _convert(
        self,
        request: SchemaRequest,
        given: str,
        new: PackedMap | Edit,
        parent: StepRef | None,
        loaded: LoadedState | None,
    ) -> PackedMap | Edit:
        """Return the state to save. A given state may be of another version, as one that is restored is."""
        raise NotImplementedError

    async def upgrade(self, line: Line, point: StepRef, reference: str, packed: PackedMap) -> PackedMap:
        """Return a stored state in this version, as its reader sees it: without what was kept aside."""
        if reference != self.reference:
            version = self.version_of(reference) or self.schema.version
            if version > self.schema.version:
                await self.accept(reference, self._where(line))
            elif version < self.schema.version:
                packed = self._upgraded(line, point, version, packed)
        return without(packed, self._aside_key)

    def _upgraded(self, line: Line, point: StepRef, version: Version, packed: PackedMap) -> PackedMap:
        """Return a stored state in this version, with what was kept aside; cached by the hash of its step."""
        cache, key = self._engine.context.cache, ("migrated", line, point.hash, self.reference, self.migrations_key)
        found: PackedMap | None = cache.get(key)
        if found is None:
            found = self._migrate(packed, version, f"{self._where(line)}, step {point.id}")
            cache.put(key, found, weigh(found))
        return found

    def _migrate(self, packed: PackedMap, version: Version, where: str) -> PackedMap:
        """Return a state of an older version in this one, with what was kept aside."""
        raise NotImplementedError

    async def _reference(self, line: Line, point: StepRef, loaded: LoadedState) -> str:
        if loaded.schema is not None:
            return loaded.schema
        return (await self._engine.step_info.head(line, point)).header.schema

    def _where(self, line: Line) -> str:
        raise NotImplementedError


def without(packed: PackedMap, key: bytes) -> PackedMap:
    """Return a packed state without a channel."""
    return {each: value for each, value in packed.items() if each != key} if key in packed else packed


def report_problems(reference: str, problems: list[Problem], where: str, mode: ValidationMode) -> None:
    """Refuse or warn of a value that does not fit a schema."""
    if not problems:
        return
    error = invalid_value(reference, problems)
    error.where = f"{error.where} of {where}" if error.where else where
    if mode == "refuse":
        raise error
    warnings.warn(f"{error.what} ({error.where})", SchemaWarning, stacklevel=2)


def _is_plain(field: Mapping[str, Any]) -> bool:
    """Whether the items of a list fit by themselves: nothing is said about their number."""
    return bool(field["type"].keys() == {"type", "items"} and field["type"]["type"] == "list")


def _moved(problem: Problem, skipped: Mapping[str, int]) -> Problem:
    """Return a problem with the number that an item has in the whole list, given how many were not checked."""
    name, bracket, rest = problem.path.partition("[")
    number, close, rest = rest.partition("]")
    if not bracket or not number.isdigit() or not skipped.get(name):
        return problem
    return replace(problem, path=f"{name}[{int(number) + skipped[name]}{close}{rest}")


def _common_start(old: list[bytes], new: list[bytes]) -> int:
    return next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


# Registration ---------------------------------------------------------------------------------------------------------
#
# Attaching a schema: checking it against what a store has, and registering its version.

log: Final = logging.getLogger("holdfast.schemas")

A = TypeVar("A", bound=AttachedVersion)


async def attach(
    declaration: Declaration,
    engine: Engine,
    tenant: str,
    actor: str = "",
    patterns: tuple[str, ...] = (),
    places: tuple[str, ...] = (),
    *,
    kind: Callable[[Engine, SchemaRegistry, Declaration, Version | None], A],
    takes_unversioned: bool = True,
) -> A:
    """Check the version against what the store has, and register it. `kind` is the class of what is attached. States
    without a reference to a schema are taken for the oldest version, if `takes_unversioned`, in threads that match the
    patterns."""
    registry = SchemaRegistry(engine, tenant, actor)
    registered = await registry.load()
    name = declaration.schema.name
    record = registered.records.get(name)
    _require_same_unversioned(declaration, record)
    unversioned = declaration.unversioned or (
        min(declaration.schemas.versions(name)) if record is None else record.unversioned
    )
    if declaration.unversioned is not None:
        declaration.schemas.extended(registered.schemas).get(f"{name}@{unversioned}")  # raises if nobody knows it
    attachment = kind(engine, registry, declaration, unversioned if takes_unversioned else None)
    patterns = patterns if takes_unversioned else ()
    attachment.check(registered)
    migrations = _migrations_in_use(declaration, registered)
    for edited in registered.edited(declaration.schemas.migrations(name)):
        log.warning("the migration %s was edited after it was applied to states of this store", edited)
    if _is_new(declaration, registered, record, migrations, patterns, places):

        def update(stored: SchemaRecord | None) -> SchemaRecord:
            if stored is None:
                return SchemaRecord(declaration.schema.version, unversioned, patterns=patterns, places=places)
            _require_same_unversioned(declaration, stored)
            current = stored.current if stored.is_pinned else max(stored.current, declaration.schema.version)
            return replace(
                stored,
                current=current,
                patterns=tuple(dict.fromkeys((*stored.patterns, *patterns))),
                places=tuple(dict.fromkeys((*stored.places, *places))),
            )

        used = [declaration.schema.schema_reference]
        needed = [declaration.schemas.get(reference) for reference in sorted(declaration.schema.references)]
        await registry.register([declaration.schema, *needed], migrations, {name: update}, used=used)
        registered = await registry.load()
        if takes_unversioned and registered.records[name].unversioned != unversioned:  # another program was first
            attachment = kind(engine, registry, declaration, registered.records[name].unversioned)
        attachment.check(registered)
    return attachment


def _require_same_unversioned(declaration: Declaration, record: SchemaRecord | None) -> None:
    """Refuse to take states without a version for another one: every such state, and the past, would be read as
    something else."""
    if record is None or declaration.unversioned in (None, record.unversioned):
        return
    name = declaration.schema.name
    raise ConflictError(
        f"states of {name} without a version are taken for {record.unversioned} in this store, and this program says "
        f"{declaration.unversioned}",
        where=name,
        hint=f"Leave unversioned= out. States that had another form before there was a schema get a schema of another "
        f"name, and {name} is attached to patterns that they do not match",
        code="schema-changed",
    )


def _migrations_in_use(declaration: Declaration, registered: RegisteredSchemas) -> list[Migration]:
    """Return the migrations that states of the store will be upgraded with."""
    name, everything = declaration.schema.name, declaration.schemas.extended(registered.schemas)
    found: dict[str, Migration] = {}
    for stored in registered.stored_versions(name):
        if stored < declaration.schema.version:
            for step in everything.path(name, stored, declaration.schema.version):
                if step.migration is not None:
                    found[str(step.migration)] = step.migration
    return list(found.values())


def _is_new(
    declaration: Declaration,
    registered: RegisteredSchemas,
    record: SchemaRecord | None,
    migrations: list[Migration],
    patterns: tuple[str, ...],
    places: tuple[str, ...],
) -> bool:
    reference = declaration.schema.schema_reference
    known = next((each for each in registered.schemas if each.schema_reference == reference), None)
    return (
        record is None
        or known is None
        or known.hash != declaration.schema.hash
        or reference in registered.unused
        or (record.current < declaration.schema.version and not record.is_pinned)
        or not set(patterns) <= set(record.patterns)
        or not set(places) <= set(record.places)
        or any(str(each) not in registered.fingerprints for each in migrations)
    )


# External states ------------------------------------------------------------------------------------------------------
#
# States that come in from elsewhere, by an import or a restore: those that say which version they have must fit it.


class ExternalStates:
    """Checks states against the versions that a store has registered."""

    def __init__(self, engine: Engine, tenant: str, actor: str = "") -> None:
        self._registry = SchemaRegistry(engine, tenant, actor)
        self._used: set[str] = set()

    async def check(
        self, reference: str, value: Any, where: str, attached: object = None, *, partial: bool = False
    ) -> None:
        """Check a state that says it has a version. Raises `InvalidError` if it does not fit, and `NotFoundError` if
        the store knows the schema and not the version; or as the schema that this program attached to it says, warns
        of it or does not check it. Of a schema that the store does not know, nothing is checked."""
        registered = await self._registry.load()
        mode = attached.declaration.validate if isinstance(attached, AttachedVersion) else "refuse"
        name, version = parse_reference(reference)
        if name not in registered.records:
            return
        if version not in [each.version for each in registered.schemas if each.name == name]:
            raise NotFoundError(
                f"the state is of {reference}, a version that this store does not know",
                where=where,
                hint="Attach a program with that version first, or migrate the states before they are exported",
                code="schema-version-unknown",
            )
        self._used.add(reference)
        if mode != "off":
            report_problems(reference, registered.schemas.check(reference, value, partial=partial), where, mode)

    async def add_unversioned(self, thread: str) -> None:
        """Note a state of a thread that does not say which version it has."""
        for name, record in (await self._registry.load()).records.items():
            if any(matcher(pattern)(thread) for pattern in record.patterns):
                self._used.add(f"{name}@{record.unversioned}")

    async def register(self) -> None:
        """Record that there are states of these versions again, if the last ones had been migrated."""
        unused = sorted(self._used & (await self._registry.load(refresh=True)).unused)
        if unused:
            await self._registry.register([], used=unused)
