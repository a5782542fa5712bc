"""A schema that a program attached to threads, scopes or values: writes are checked, and reads are upgraded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from holdfast.codec import Codec, default_codec, msgpack
from holdfast.engine.append import Edit
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.engine import Engine
from holdfast.engine.loaded_states import unfolded_state
from holdfast.engine.model.nodes import WrittenBy
from holdfast.engine.model.operations import EditMap, Operation, Set, apply, apply_map
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, pack_name, unpack, unpack_name
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.namespaces import short_name
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.schema_bindings import ASIDE, RenameTask, SchemaRequest
from holdfast.engine.state_loader import LoadedState, weigh
from holdfast.engine.value_schemas import SchemaMark
from holdfast.errors import HoldfastError, InvalidError, UnsupportedError
from holdfast.schemas.attached_version import AttachedVersion, LineAttachment, without
from holdfast.schemas.graph_checkpoint import (
    is_internal,
    migrate_bookkeeping,
    migrate_channels,
    migrate_writes,
    renamed_nodes,
)
from holdfast.schemas.migration import Migration
from holdfast.schemas.operations import Move
from holdfast.schemas.packed_document import read_fields, write_fields
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version
from holdfast.schemas.version_graph import MigrationStep, wrong_shape

_ASIDE, _KEPT = pack_name(ASIDE), pack_name(KEPT)
_RESERVED = (_KEPT, _ASIDE)


class Attachment(LineAttachment):
    """The schema of the states of some threads, as this program has it."""

    _aside_key = _ASIDE

    # Writing ------------------------------------------------------------------------------------------------------

    def prepare_kept(self, request: SchemaRequest) -> None:
        """Let a step be saved that keeps the version of its parent, such as a merge, on the same condition."""
        super().prepare_kept(request)
        if self._validate != "off":
            request.convert = partial(self._check_kept, request.line)

    async def _check_kept(
        self, line: Line, new: PackedMap | Edit, parent: StepRef | None, loaded: LoadedState | None
    ) -> PackedMap | Edit:
        if isinstance(new, dict) or parent is None or loaded is None:
            return new
        version = self.version_of(await self._reference(line, parent, loaded))
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
        if request.is_unversioned and not given and self.unversioned is not None:
            given = f"{self.schema.name}@{self.unversioned}"
        if isinstance(new, dict) and given and given != self.reference:
            source = self.version_of(given)
            new = new if source is None else self._migrate(new, source, f"thread {line}")
        if loaded is None or parent is None:
            if not isinstance(new, dict):
                new = apply_map(await new(parent, loaded), {})
            self._check_state(new, {}, line)
            return new
        stored = await self._reference(line, parent, loaded)
        version = self.version_of(stored)
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
        upgraded = self._upgraded(line, parent, version, whole)
        if not isinstance(new, dict):
            state = unfolded_state(upgraded, {}, WrittenBy(parent.branch, parent.seq))
            new = apply_map(await new(parent, state), upgraded)
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
        await self.accept(stored, f"thread {request.line}")
        request.schema = stored
        if not isinstance(new, dict):
            edit = await new(parent, loaded)
            self._check_state(apply_map(edit, whole), whole, request.line)
            return new
        self._check_state(new, whole, request.line)
        known = self.schema.canonical.get("fields", {})
        unknown = {key: value for key, value in whole.items() if unpack_name(key) not in known and key != _KEPT}
        return {**new, **{key: value for key, value in unknown.items() if key not in new}}

    async def _aside(self, line: Line, loaded: LoadedState, before: PackedMap | None) -> Packed | None:
        if before is not None:
            return before.get(_ASIDE)
        entry = await self._engine.entries.find(line, loaded, _ASIDE)
        return None if entry is None else entry.value

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
            self.report(self.problems(after, changed, partial=_KEPT in before), f"thread {line}")
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
        self.report(self.problems(new, changed, before, partial=is_graph, hidden=_RESERVED), f"thread {line}")

    # Reading -------------------------------------------------------------------------------------------------------

    def upgrade_writes(
        self, line: Line, reference: str, rows: Sequence[PendingWriteRow], rename: RenameTask | None = None
    ) -> list[PendingWriteRow]:
        """Return the writes that follow a checkpoint in this version. `reference` is the schema of the checkpoint, and
        of what it carries of its own; a task that names none was that of a program without a schema."""
        found: list[tuple[PendingWriteRow, bool]] = []
        for row in rows:
            stored = row.schema if row.schema or row.task else reference
            version = self.version_of(stored)
            if version is not None and version > self.schema.version:
                self.require_accepted(stored, f"thread {line}")
            if version is None or version >= self.schema.version:
                found.append((row, True))
            else:
                path, codec = (
                    self.schemas.path(self.schema.name, version, self.schema.version),
                    self._engine.context.codec,
                )
                migrated = migrate_writes(self.schema.name, [row], path, f"thread {line}", codec, rename)
                found += [(each, False) for each in migrated]
        # What a task wrote again in this version replaces what it wrote under its former id.
        again = {(row.task, row.place) for row, is_own in found if is_own}
        return [row for row, is_own in found if is_own or (row.task, row.place) not in again]

    def _migrate(self, packed: PackedMap, version: Version, where: str) -> PackedMap:
        return migrate_state(self.schemas, self.schema.name, packed, version, self.schema.version, where, self._engine)

    def _where(self, line: Line) -> str:
        return f"thread {line}"

    def renamed_nodes(self, reference: str) -> Mapping[str, str]:
        """Return the nodes of a graph that were renamed since a version: the new names by the old ones."""
        source = self.version_of(reference)
        if source is None or source >= self.schema.version:
            return {}
        return renamed_nodes(self.schemas.path(self.schema.name, source, self.schema.version))


def without_aside(packed: PackedMap) -> PackedMap:
    """Return a packed state as its readers see it, without what was kept aside."""
    return without(packed, _ASIDE)


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
        state = {_KEPT: kept, **state, **migrate_channels(codec, internal, path.steps)}
    return {**state, _ASIDE: result.aside} if result.aside else state


def _changed(new: PackedMap, before: Mapping[bytes, Packed]) -> list[bytes]:
    """Return the channels that differ, and those that are gone."""
    put = [key for key, value in new.items() if key not in _RESERVED and before.get(key) != value]
    return put + [key for key in before if key not in new and key not in _RESERVED]


# Scopes ---------------------------------------------------------------------------------------------------------------
#
# A schema that a program attached to whole scopes: a record whose fields are the keys.
#
# A scope is upgraded as a whole, when it is read and at its next step, as a thread is. Keys are set one after the
# other, so that required ones may be missing. Names that start with a control character are internal, and no keys:
# when a key expires, and what migrations keep aside.

_INTERNAL: Final = "\0"
_SCOPE_ASIDE: Final = pack_name("\0aside")


class ScopeAttachment(LineAttachment):
    """The schema of some scopes, as this program has it."""

    _aside_key = _SCOPE_ASIDE

    async def _convert(
        self,
        request: SchemaRequest,
        given: str,  # noqa: ARG002 - the state of a step that is moved has the version of the scope
        new: PackedMap | Edit,
        parent: StepRef | None,
        loaded: LoadedState | None,
    ) -> PackedMap | Edit:
        line = request.line
        request.schema = self.reference
        if isinstance(new, dict):
            return new  # the state of a step that is moved
        before = loaded
        if loaded is not None and parent is not None:
            stored = await self._reference(line, parent, loaded)
            version = self.version_of(stored) or self.schema.version
            if version > self.schema.version:
                await self.accept(stored, self._where(line))
                request.schema = stored
            elif version < self.schema.version:
                before = await self.upgrade_state(line, parent, loaded)
        edit = await new(parent, before)
        await self._check_edit(line, edit, before)
        if before is loaded or before is None or before.known is None:
            return _given(edit)
        return apply_map(edit, before.known[0])

    async def _check_edit(self, line: Line, edit: EditMap, loaded: LoadedState | None) -> None:
        """Check the keys that a step sets."""
        if self._validate == "off":
            return
        after: PackedMap = {}
        for key, operation in edit.put:
            if not _is_internal(key):
                after[key] = apply(operation, await self._value(line, loaded, key, operation))
        self.report(self.problems(after, list(after), partial=True), self._where(line))

    async def _value(self, line: Line, loaded: LoadedState | None, key: bytes, operation: Operation) -> Packed | None:
        """Return the value that an operation changes, if it does not replace it."""
        if loaded is None or isinstance(operation, Set):
            return None
        entry = await self._engine.entries.find(line, loaded, key)
        return None if entry is None else entry.value

    async def upgrade_state(self, line: Line, point: StepRef, loaded: LoadedState) -> LoadedState:
        """Return a loaded state in this version. Keys that the migration leaves alone keep their versions."""
        reference = await self._reference(line, point, loaded)
        version = self.version_of(reference) or self.schema.version
        if version >= self.schema.version:
            if version > self.schema.version:
                await self.accept(reference, self._where(line))
            return loaded
        cache = self._engine.context.cache
        key = ("migrated scope", line, point.hash, self.reference, self.migrations_key)
        found: LoadedState | None = cache.get(key)
        if found is None:
            states = self._engine.states
            whole = await states.resolve_pointers(line, await states.whole(line, loaded))
            where = f"{self._where(line)}, step {point.id}"
            found = await self._build_state(line, point, loaded, whole, self._migrate(whole, version, where))
            cache.put(key, found, found.weight)
        return found

    def _migrate(self, packed: PackedMap, version: Version, where: str) -> PackedMap:
        return migrate_scope(self.schemas, self.schema.name, packed, version, self.schema.version, where)

    def _where(self, line: Line) -> str:
        return f"scope {short_name(line.name)}"

    async def _build_state(
        self, line: Line, point: StepRef, loaded: LoadedState, stored: PackedMap, upgraded: PackedMap
    ) -> LoadedState:
        origins = {}
        for key, value in upgraded.items():
            if stored.get(key) == value and (origin := await self._engine.entries.origin(line, loaded, key)):
                origins[key] = origin
        found = unfolded_state(upgraded, origins, WrittenBy(point.branch, point.seq))
        found.schema = self.reference
        return found


def migrate_scope(
    schemas: SchemaSet, name: str, packed: PackedMap, source: Version, target: Version, where: str
) -> PackedMap:
    """Return the packed state of a scope in another version, with what was kept aside. Errors say where it is."""
    own = own_keys(packed)
    internal = {key: value for key, value in packed.items() if _is_internal(key) and key != _SCOPE_ASIDE}
    aside = as_map(packed.get(_SCOPE_ASIDE, b"\x80")) or {}
    try:
        result = schemas.prepared_path(name, source, target).migrate(own, aside, default_codec)
    except HoldfastError as error:
        error.where = f"{where}; {error.where}" if error.where else where
        raise
    state = {**_renamed(internal, schemas.path(name, source, target)), **result.state}
    return {**state, _SCOPE_ASIDE: result.aside} if result.aside else state


def own_keys(packed: PackedMap) -> PackedMap:
    """Return the keys of a scope's packed state, without what is internal."""
    return {key: value for key, value in packed.items() if not _is_internal(key)}


def _renamed(internal: Mapping[bytes, Packed], steps: Sequence[MigrationStep]) -> PackedMap:
    """Return what belongs to keys, such as when they expire, under the new names of the keys."""
    names = {unpack_name(key): unpack_name(key) for key in internal}
    for step in steps:
        for operation in () if step.migration is None else step.migration.in_direction(up=step.up):
            if isinstance(operation, Move) and all(len(keys) == 1 for keys in operation.paths()):
                (old,), (new,) = operation.paths() if step.up else operation.paths()[::-1]
                names = {first: _moved(last, old, new) for first, last in names.items()}
    return {pack_name(last): internal[pack_name(first)] for first, last in names.items()}


def _moved(name: str, old: str, new: str) -> str:
    """Return the internal name of a key, `\\0ttl/old`, for its new name."""
    kind, slash, key = name.partition("/")
    return f"{kind}/{new}" if slash and key == old else name


def _is_internal(key: bytes) -> bool:
    return unpack_name(key).startswith(_INTERNAL)


def _given(edit: EditMap) -> Edit:
    async def unchanged(parent: StepRef | None, loaded: LoadedState | None) -> EditMap:  # noqa: ARG001
        return edit

    return unchanged


# Values ---------------------------------------------------------------------------------------------------------------
#
# A schema that a program attached to single values: keys of scopes, fields of agents, metadata of artifacts.
#
# A value says by a mark which version it has, and what migrations keep aside of it; see `engine/value_schemas.py`.


class ValueAttachment(AttachedVersion):
    """The schema of some values, as this program has it."""

    async def read(self, value: Packed, mark: SchemaMark, where: str) -> Packed:
        """Return a stored value in this version, or in a newer one that this program gets along with."""
        version = self.version_of(mark.reference) or self.schema.version
        if version > self.schema.version:
            await self.accept(mark.reference, where)
        return self._upgraded(value, mark, version, where)[0] if version < self.schema.version else value

    def write(self, value: Packed, old: Packed | None, mark: SchemaMark, where: str) -> tuple[Packed, SchemaMark]:
        """Return what to store for a value of this version, given what is stored: it is checked, as far as it
        changed, and keeps what this program does not know."""
        if old is None:
            self._check(value, None, where)
            return value, SchemaMark(self.reference)
        version = self.version_of(mark.reference) or self.schema.version
        if version > self.schema.version:
            self.require_accepted(mark.reference, where)
            self._check(value, old, where)
            return self._with_unknown(value, old, mark, where), mark
        if version == self.schema.version:
            self._check(value, old, where)
            return value, mark if mark.reference else SchemaMark(self.reference, mark.aside)
        before, aside = self._upgraded(old, mark, version, where)
        self._check(value, before, where)
        return value, SchemaMark(self.reference, aside)

    def _with_unknown(self, value: Packed, old: Packed, mark: SchemaMark, where: str) -> Packed:
        """Return a value with those fields of the stored one that this version does not know."""
        new, stored = _fields(value), _fields(old)
        if new is None or stored is None:
            raise UnsupportedError(
                f"the value is of {mark.reference}, and this program's {self.schema.version} would drop what it does "
                "not know of it",
                where=where,
                hint=f"Run the release with {mark.reference}, or change parts of the value",
                code="schema-newer",
            )
        known = self.schema.canonical.get("fields", {})
        unknown = {key: each for key, each in stored.items() if key not in new and unpack_name(key) not in known}
        return {**new, **unknown} if unknown else value

    def _check(self, value: Packed, before: Packed | None, where: str) -> None:
        if self._validate == "off" or value == before:
            return
        new, old = _fields(value), None if before is None else _fields(before)
        if new is None or old is None or self.schema.canonical["type"] != "record":
            problems = self.schemas.check(self.reference, unpack(self._engine.context.codec, value))
        else:
            changed = [key for key, each in new.items() if old.get(key) != each]
            problems = self.problems(new, changed + [key for key in old if key not in new], old)
        self.report(problems, where)

    def _upgraded(self, value: Packed, mark: SchemaMark, version: Version, where: str) -> tuple[Packed, PackedMap]:
        """Return a value of an older version in this one, and what was kept aside; cached by its content."""
        content = hashlib.blake2b(flatten(value) + flatten(dict(mark.aside)), digest_size=16).digest()
        cache, key = self._engine.context.cache, ("migrated value", content, str(version), self.reference)
        found: tuple[Packed, PackedMap] | None = cache.get(key)
        if found is None:
            codec = self._engine.context.codec
            try:
                found = migrate_value(
                    self.schemas, self.schema.name, value, mark.aside, version, self.schema.version, codec
                )
            except HoldfastError as error:
                error.where = f"{where}; {error.where}" if error.where else where
                raise
            cache.put(key, found, weigh(found[0]) + weigh(found[1]))
        return found


def _fields(value: Packed) -> PackedMap | None:
    """Return the fields of a dict whose keys are all text; None for other values."""
    fields = as_map(value)
    return None if fields is None or not all(map(msgpack.is_str, fields)) else fields


# Migration of values --------------------------------------------------------------------------------------------------

_WHOLE = pack_name("")
"""The name under which a value is a field of a document, for operations on the path `""`."""


def migrate_value(
    schemas: SchemaSet,
    name: str,
    value: Packed,
    aside: Mapping[bytes, Packed],
    source: Version,
    target: Version,
    codec: Codec = default_codec,
) -> tuple[Packed, PackedMap]:
    """Return a value in another version, and what was kept aside. The result is checked against its schema.

    Operations change the fields of the value, whether it is a dict or an instance of a class. Those on the path `""`
    change the value itself, which may then be anything: `convert("", up, down)`, `each("", …)`.
    """
    steps, kept = schemas.path(name, source, target), dict(aside)
    partial = _is_partial(schemas, f"{name}@{source}", value)
    for step in steps:
        if step.migration is None:
            continue
        run = step.migration.upgrade if step.up else step.migration.downgrade
        if _is_whole(step.migration):
            result = run({_WHOLE: value}, kept, codec)
            value = result.state[_WHOLE]
        else:
            fields = read_fields(value)
            if fields is None:
                raise InvalidError(
                    "the value has no fields: it is not a dict, and not an instance of a known kind of class",
                    where=str(step.migration),
                    hint='Convert it as a whole: convert("", up, down)',
                    code="migration-failed",
                )
            result = run(fields, kept, codec, value)
            value = write_fields(value, result.state)
        kept = result.aside
    if steps and any(each.version == target for each in schemas if each.name == name):
        schema = schemas.get(f"{name}@{target}")
        problems = schemas.check(schema.schema_reference, unpack(codec, value), partial=partial)
        if problems:
            raise wrong_shape(schema, steps, problems)
    return value, kept


def _is_whole(migration: Migration) -> bool:
    """Return whether a migration changes a value itself, and not its fields."""
    whole = [keys[0] == "" for operation in migration.operations for keys in operation.paths()]
    if any(whole) and not all(whole):
        raise InvalidError(
            "a migration must change a value as a whole or its fields, not both",
            where=str(migration),
            hint="Make it two migrations, with a version between them",
            code="migration-failed",
        )
    return any(whole)


def _is_partial(schemas: SchemaSet, reference: str, value: Packed) -> bool:
    """Return whether a value lacked required fields before."""
    fields = read_fields(value)
    schema = next((each for each in schemas if each.schema_reference == reference), None)
    if schema is None or fields is None:
        return False
    return not set(map(unpack_name, fields)) >= set(schema.validator(schemas.get).required)
