"""A schema that a program attached to lines of a store: what it writes is checked, what it reads is upgraded.

A writer may write its version as long as the registry says so. That is a condition of every batch, so that a writer
that attached before an upgrade notices it at its next step, and is refused or goes on as the compatibility says.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from holdfast.backends.interface import Change
from holdfast.engine.append import Edit
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.engine import Engine
from holdfast.engine.guard import both_preconditions
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.operations import EditMap, Set, apply, apply_map
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, pack_name, unpack, unpack_name
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.schema_bindings import ASIDE, SchemaRequest
from holdfast.engine.state_loader import LoadedState, weigh
from holdfast.errors import ConflictError, HoldfastError, UnsupportedError
from holdfast.schemas.graph_checkpoint import (
    is_internal,
    migrate_bookkeeping,
    migrate_channels,
    migrate_writes,
    renamed_nodes,
)
from holdfast.schemas.registry import RegisteredSchemas, SchemaRegistry
from holdfast.schemas.schema import Schema, invalid_value
from holdfast.schemas.schema_declaration import Declaration
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.validator import Problem
from holdfast.schemas.version import Version, parse_reference

_ASIDE, _KEPT = pack_name(ASIDE), pack_name(KEPT)
_RESERVED = (_KEPT, _ASIDE)


class SchemaWarning(UserWarning):
    """A value that was saved does not fit its schema."""


class Attachment:
    """The schema of the states of some lines, as this program has it."""

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
        self.schemas = declaration.schemas
        """The schemas of the program, and other versions that the store has."""
        self.schema: Final = declaration.schema
        self.reference: Final = declaration.schema.schema_reference
        self.unversioned: Final = unversioned
        """The version of states without a reference to a schema; None if they have none until they are saved anew."""
        self._validate = declaration.validate
        self._accepted: set[Version] = set()
        """Newer versions whose states this program may read and write: it keeps the channels that it does not know."""
        self._checked: RegisteredSchemas | None = None

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
                self._require_forward(everything.get(f"{name}@{stored}"), everything)
                accepted.add(stored)
        if record is not None and record.is_pinned and record.current < version:
            raise ConflictError(
                f"the states of {name} were downgraded to {record.current}, and this program has {version}",
                where=self.reference,
                hint=f"Run the release with {record.current}, or upgrade again: holdfast migrate up {name}",
                code="schema-downgraded",
            )
        self.schemas, self._accepted, self._checked = everything, accepted, registered

    def _require_forward(self, newer: Schema, everything: SchemaSet) -> None:
        """Refuse to work beside a newer version, unless that only added channels that this one need not know."""
        compatibility = everything.compare(self.schema, newer)
        if not compatibility.forward:
            breaking = next(each for each in compatibility.changes if not each.forward)
            reason = f"{breaking.path or 'the state'}: {breaking.reason}"
        else:
            inside = [each for each in compatibility.changes if each.kind != "added" or "." in each.path]
            if not inside:
                return
            reason = f"{inside[0].path or 'the state'}: {inside[0].reason}"
        raise ConflictError(
            f"the store has states of {newer.schema_reference}, with which this program's "
            f"{self.schema.version} does not get along: {reason}",
            where=self.reference,
            hint=f"Run the release with {newer.version}, or downgrade the states with it: "
            f"holdfast migrate down {newer.name} --to {self.schema.version}",
            code="schema-outdated",
        )

    async def conditions(self, again: bool) -> Sequence[Change]:
        """Return the conditions on which a step may be saved: that the registry is as it was checked."""
        registered = await self._registry.load(refresh=again)
        self.check(registered)
        if self.reference in registered.retired:  # the last states of this version were migrated; it writes new ones
            await self._registry.register([], used=[self.reference])
            self.check(await self._registry.load())
        return self._registry.unchanged()

    # Writing ------------------------------------------------------------------------------------------------------

    def prepare(self, request: SchemaRequest) -> None:
        """Let a step be saved in this version, on condition that the version may still be written."""
        request.permit = both_preconditions(request.permit, self.conditions)
        request.convert = partial(self._convert, request, request.schema)
        request.schema = self.reference

    def prepare_kept(self, request: SchemaRequest) -> None:
        """Let a step be saved that keeps the version of its parent, such as a merge, on the same condition."""
        request.permit = both_preconditions(request.permit, self.conditions)
        if self._validate != "off":
            request.convert = partial(self._check_kept, request.line)

    async def _check_kept(
        self, line: Line, new: PackedMap | Edit, parent: StepRef | None, loaded: LoadedState | None
    ) -> PackedMap | Edit:
        if isinstance(new, dict) or parent is None or loaded is None:
            return new
        version = self._version(await self._reference(line, parent, loaded))
        return partial(self._checked_edit, line, new) if version == self.schema.version else new

    async def _convert(
        self,
        request: SchemaRequest,
        given: str,
        new: PackedMap | Edit,
        parent: StepRef | None,
        loaded: LoadedState | None,
    ) -> PackedMap | Edit:
        """Return what to save. A given state may be of another version, as one that is restored is."""
        line = request.line
        request.schema = self.reference
        if isinstance(new, dict) and given and given != self.reference:
            new = self._migrate(new, given, f"thread {line}")
        if loaded is None or parent is None:
            if not isinstance(new, dict):
                new = apply_map(await new(parent, loaded), {})
            self._check_state(new, {}, line)
            return new
        stored = await self._reference(line, parent, loaded)
        version = self._version(stored)
        if version is None:
            if not isinstance(new, dict):
                whole = await self._engine.states.whole(line, loaded)
                new = apply_map(await new(parent, loaded), await self._engine.states.resolve_pointers(line, whole))
            self._check_state(new, {}, line)
            return new
        if version == self.schema.version:
            if isinstance(new, dict):
                before = None if loaded.known is None or loaded.known[1] else loaded.known[0]
                if _ASIDE not in new:
                    aside = await self._aside(line, loaded, before)
                    if aside is not None:
                        new = {**new, _ASIDE: aside}
                self._check_state(new, before, line)
                return new
            return new if self._validate == "off" else partial(self._checked_edit, line, new)
        whole = await self._engine.states.resolve_pointers(line, await self._engine.states.whole(line, loaded))
        if version > self.schema.version:
            return await self._write_newer(request, stored, new, parent, loaded, whole)
        upgraded = self._upgraded(line, parent, stored, whole)
        if not isinstance(new, dict):
            new = apply_map(await new(parent, LoadedState(EMPTY, 0, known=(upgraded, ()))), upgraded)
        elif _ASIDE in upgraded and _ASIDE not in new:
            new = {**new, _ASIDE: upgraded[_ASIDE]}
        self._check_state(new, upgraded, line)
        return new

    async def _write_newer(
        self,
        request: SchemaRequest,
        stored: str,
        new: PackedMap | Edit,
        parent: StepRef,
        loaded: LoadedState,
        whole: PackedMap,
    ) -> PackedMap | Edit:
        """Save on top of a newer version: it stays that version, with the channels that this program does not know."""
        self._require_accepted(stored, request.line)
        request.schema = stored
        if not isinstance(new, dict):
            edit = await new(parent, loaded)
            self._check_state(apply_map(edit, whole), whole, request.line)
            return new
        self._check_state(new, whole, request.line)
        known = self.schema.canonical.get("fields", {})
        unknown = {key: value for key, value in whole.items() if unpack_name(key) not in known and key != _KEPT}
        return {**new, **{key: value for key, value in unknown.items() if key not in new}}

    def _require_accepted(self, reference: str, line: Line) -> None:
        if self._version(reference) in self._accepted:
            return
        raise UnsupportedError(
            f"the state is of {reference}, which is newer than this program's {self.schema.version}",
            where=f"thread {line}",
            hint="Run the release of the application that wrote it, or downgrade the states with it",
            code="schema-newer",
        )

    async def _aside(self, line: Line, loaded: LoadedState, before: PackedMap | None) -> Packed | None:
        if before is not None:
            return before.get(_ASIDE)
        entry = await self._engine.entries.find(line, loaded, _ASIDE)
        return None if entry is None else entry.value

    async def _reference(self, line: Line, point: StepRef, loaded: LoadedState) -> str:
        if loaded.schema is not None:
            return loaded.schema
        return (await self._engine.step_info.head(line, point)).header.schema

    def applies_to(self, reference: str) -> bool:
        """Return whether a state with this reference has the schema, in any version."""
        return bool(reference) or self.unversioned is not None

    def _version(self, reference: str) -> Version | None:
        if not reference:
            return self.unversioned
        name, version = parse_reference(reference)
        if name != self.schema.name or version is None:
            raise ConflictError(
                f"the state is of the schema {reference}, and not of {self.schema.name}",
                where=self.reference,
                hint="Attach the schema that the thread has, or give the threads of each schema names of their own",
                code="schema-changed",
            )
        return version

    # Validation ----------------------------------------------------------------------------------------------------

    async def _checked_edit(
        self, line: Line, edit: Edit, parent: StepRef | None, loaded: LoadedState | None
    ) -> EditMap:
        found = await edit(parent, loaded)
        if found.put or found.removed:
            before: dict[bytes, Packed] = {}
            states = self._engine.states
            if loaded is not None and not all(isinstance(operation, Set) for _, operation in found.put):
                before = await states.resolve_pointers(line, await states.whole(line, loaded))
            after = {key: apply(operation, before.get(key)) for key, operation in found.put}
            changed = [key for key in (*after, *found.removed) if key not in _RESERVED]
            self._report(self._problems(after, changed, partial=_KEPT in before), line)
        return found

    def _check_state(self, new: PackedMap, before: Mapping[bytes, Packed] | None, line: Line) -> None:
        if self._validate == "off":
            return
        is_graph = _KEPT in new
        if is_graph:
            new = {key: value for key, value in new.items() if not is_internal(unpack_name(key))}
        changed = None if before is None else _changed(new, before)
        if is_graph and changed is not None:
            changed = [key for key in changed if not is_internal(unpack_name(key))]
        self._report(self._problems(new, changed, before, partial=is_graph), line)

    def _problems(
        self,
        new: Mapping[bytes, Packed],
        changed: Sequence[bytes] | None,
        before: Mapping[bytes, Packed] | None = None,
        *,
        partial: bool = False,
    ) -> list[Problem]:
        """Return what does not fit of some channels, or of all. Not all of a graph's channels need be written yet."""
        codec, fields = self._engine.context.codec, self.schema.canonical.get("fields", {})
        if changed is None or (before is not None and not before):
            values = {unpack_name(key): unpack(codec, value) for key, value in new.items() if key not in _RESERVED}
            return self.schemas.check(self.reference, values, partial=partial)
        values = {}
        for key in changed:
            if key in new:
                name, value = unpack_name(key), new[key]
                old = None if before is None else before.get(key)
                field = fields.get(name)
                if field is not None and isinstance(value, list) and isinstance(old, list) and _is_plain(field):
                    value = value[_common_start(old, value) :]  # the items before them were checked when they were new
                values[name] = unpack(codec, value)
        names = frozenset(map(unpack_name, changed))
        return self.schemas.check(self.reference, values, names, partial=partial) if names else []

    def _report(self, problems: list[Problem], line: Line) -> None:
        if not problems:
            return
        error = invalid_value(self.reference, problems)
        error.where = f"{error.where} of thread {line}"
        if self._validate == "refuse":
            raise error
        warnings.warn(f"{error.what} ({error.where})", SchemaWarning, stacklevel=2)

    # Reading -------------------------------------------------------------------------------------------------------

    async def upgrade(self, line: Line, point: StepRef, reference: str, packed: PackedMap) -> PackedMap:
        """Return a stored state in this version, as its reader sees it: without what was kept aside."""
        if reference != self.reference:
            version = self._version(reference)
            if version is None:
                return packed
            if version > self.schema.version:
                if version not in self._accepted:
                    self.check(await self._registry.load(refresh=True))
                self._require_accepted(reference, line)
            elif version < self.schema.version:
                packed = self._upgraded(line, point, reference, packed)
        return without_aside(packed)

    def upgrade_writes(self, line: Line, reference: str, rows: Sequence[PendingWriteRow]) -> list[PendingWriteRow]:
        """Return the writes that follow a checkpoint in this version. `reference` is the schema of the checkpoint, and
        of writes that name none."""
        found: list[PendingWriteRow] = []
        for row in rows:
            version = self._version(row.schema or reference)
            if version is not None and version > self.schema.version:
                self._require_accepted(row.schema or reference, line)
            if version is None or version >= self.schema.version:
                found.append(row)
            else:
                found += migrate_writes(
                    self.schemas,
                    self.schema.name,
                    [row],
                    version,
                    self.schema.version,
                    f"thread {line}",
                    self._engine.context.codec,
                )
        return found

    def _upgraded(self, line: Line, point: StepRef, reference: str, packed: PackedMap) -> PackedMap:
        """Return a stored state in this version, with what was kept aside; cached by the hash of its step."""
        cache, key = self._engine.context.cache, ("migrated", line, point.hash, self.reference)
        found: PackedMap | None = cache.get(key)
        if found is None:
            found = self._migrate(packed, reference, f"thread {line}, checkpoint {point.id}")
            cache.put(key, found, weigh(found))
        return found

    def _migrate(self, packed: PackedMap, reference: str, where: str) -> PackedMap:
        source = self._version(reference)
        if source is None:
            return packed
        return migrate_state(self.schemas, self.schema.name, packed, source, self.schema.version, where, self._engine)

    def renamed_nodes(self, reference: str) -> Mapping[str, str]:
        """Return the nodes of a graph that were renamed since a version: the new names by the old ones."""
        source = self._version(reference)
        if source is None or source >= self.schema.version:
            return {}
        return renamed_nodes(self.schemas.path(self.schema.name, source, self.schema.version))


def without_aside(packed: PackedMap) -> PackedMap:
    """Return a packed state as its readers see it, without what was kept aside."""
    return {key: value for key, value in packed.items() if key != _ASIDE} if _ASIDE in packed else packed


def migrate_state(
    schemas: SchemaSet,
    name: str,
    packed: PackedMap,
    source: Version,
    target: Version,
    where: str,
    engine: Engine,
    *,
    whole: bool = False,
) -> PackedMap:
    """Return a packed state in another version, together with what was kept aside. Errors say where the state is.

    The result is checked against its schema, as far as it may have changed, or as a `whole`."""
    codec, is_graph = engine.context.codec, _KEPT in packed
    own, aside, internal = packed, dict[bytes, Packed](), dict[bytes, Packed]()
    if is_graph or _ASIDE in packed:
        own = {key: value for key, value in packed.items() if key not in _RESERVED}
        aside = as_map(packed.get(_ASIDE, b"\x80")) or {}
    if is_graph:
        internal = {key: value for key, value in own.items() if is_internal(unpack_name(key))}
        own = {key: value for key, value in own.items() if key not in internal}
    path = schemas.prepared_path(name, source, target)
    try:
        result = path.migrate(own, aside, codec, whole=("partial" if is_graph else "complete") if whole else None)
    except HoldfastError as error:
        error.where = "; ".join(each for each in (where, error.where) if each)
        raise
    state = result.state
    if is_graph:
        kept = migrate_bookkeeping(codec, packed[_KEPT], path.steps)
        state = {_KEPT: kept, **state, **migrate_channels(internal, path.steps)}
    return {**state, _ASIDE: result.aside} if result.aside else state


def _changed(new: PackedMap, before: Mapping[bytes, Packed]) -> list[bytes]:
    """Return the channels that differ, and those that are gone."""
    put = [key for key, value in new.items() if key not in _RESERVED and before.get(key) != value]
    return put + [key for key in before if key not in new and key not in _RESERVED]


def _is_plain(field: Mapping[str, Any]) -> bool:
    """Whether the items of a list fit by themselves: nothing is said about their number."""
    return bool(field["type"].keys() == {"type", "items"} and field["type"]["type"] == "list")


def _common_start(old: list[bytes], new: list[bytes]) -> int:
    return next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
