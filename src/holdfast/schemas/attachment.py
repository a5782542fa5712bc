"""A schema that a program attached to threads: what it writes is checked, and what it reads is upgraded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from holdfast.engine.append import Edit
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.engine import Engine
from holdfast.engine.loaded_states import unfolded_state
from holdfast.engine.model.nodes import WrittenBy
from holdfast.engine.model.operations import EditMap, Set, apply, apply_map
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, pack_name, unpack_name
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.schema_bindings import ASIDE, RenameTask, SchemaRequest
from holdfast.engine.state_loader import LoadedState
from holdfast.errors import HoldfastError
from holdfast.schemas.attached_version import LineAttachment, without
from holdfast.schemas.graph_checkpoint import (
    is_internal,
    migrate_bookkeeping,
    migrate_channels,
    migrate_writes,
    renamed_nodes,
)
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version

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
