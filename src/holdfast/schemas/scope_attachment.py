"""A schema that a program attached to whole scopes: a record whose fields are the keys.

A scope is upgraded as a whole, when it is read and at its next step, as a thread is. Keys are set one after the other,
so that required ones may be missing. Names that start with a control character are internal, and no keys: when a key
expires, and what migrations keep aside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.engine.append import Edit
from holdfast.engine.loaded_states import unfolded_state
from holdfast.engine.model.nodes import WrittenBy
from holdfast.engine.model.operations import EditMap, Operation, Set, apply, apply_map
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, pack_name, unpack_name
from holdfast.engine.namespaces import short_name
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.schema_bindings import SchemaRequest
from holdfast.engine.state_loader import LoadedState
from holdfast.errors import HoldfastError
from holdfast.schemas.attached_version import LineAttachment
from holdfast.schemas.operations import Move
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version
from holdfast.schemas.version_graph import MigrationStep

_INTERNAL: Final = "\0"
_ASIDE: Final = pack_name("\0aside")


class ScopeAttachment(LineAttachment):
    """The schema of some scopes, as this program has it."""

    _aside_key = _ASIDE

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
    internal = {key: value for key, value in packed.items() if _is_internal(key) and key != _ASIDE}
    aside = as_map(packed.get(_ASIDE, b"\x80")) or {}
    try:
        result = schemas.migrate_packed(name, own, aside, source, target)
    except HoldfastError as error:
        error.where = f"{where}; {error.where}" if error.where else where
        raise
    state = {**_renamed(internal, schemas.path(name, source, target)), **result.state}
    return {**state, _ASIDE: result.aside} if result.aside else state


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
