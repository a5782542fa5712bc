"""The version of a step that says none: that of its parent, as long as its writer has the shape of that.

A program without a schema writes states as they were before there was one, which is the version that the registry takes
states without a reference for. On top of any other version its step would mix two shapes, and is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.backends.interface import Get
from holdfast.backends.tables import STEPS
from holdfast.engine.context import EngineContext
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.lines import LineIndex
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.packed_state import PackedMap, pack_name, unpack, unpack_name
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import is_thread, short_name
from holdfast.engine.row_format import Line, StepRef, open_step
from holdfast.engine.schema_bindings import ASIDE
from holdfast.engine.state_loader import LoadedState, StateLoader
from holdfast.engine.step_info import StepInfoReader
from holdfast.errors import ConflictError

if TYPE_CHECKING:
    from holdfast.engine.schema_bindings import SchemaRequest

_ASIDE: Final = pack_name(ASIDE)

REGISTRY: Final = f"{MARK}schemas"
"""The name of the system line that is the registry of schemas."""

RECORD: Final = "schema "
"""How the names of its entries start that are records of schemas."""


class InheritedSchemas:
    """Finds the versions of steps that say none."""

    def __init__(self, context: EngineContext, lines: LineIndex, states: StateLoader, heads: StepInfoReader) -> None:
        self._context = context
        self._lines = lines
        self._states = states
        self._heads = heads
        self._unversioned: dict[tuple[str, str], str] = {}
        """The versions of states without a reference, by tenant and schema, as they were read last."""

    async def reference_at(self, line: Line, point: StepRef, loaded: LoadedState) -> str:
        """Return the reference to the schema of a step; empty if it has none, or is not there any more."""
        if loaded.schema is not None:
            return loaded.schema
        if is_thread(line.name):
            return (await self._heads.head(line, point)).header.schema
        (rows,) = await self._context.backend.read([Get(STEPS, [(*line, point.branch, point.seq)])])
        return open_step(line, rows[0], self._context.max_bytes).header.schema if rows else ""

    async def inherit(self, request: SchemaRequest, edit: EditMap, parent: StepRef, loaded: LoadedState) -> str:
        """Return the reference to the schema of a step that names none."""
        reference = await self.reference_at(request.line, parent, loaded)
        if not reference or request.line_schema is not None:
            return reference
        if request.is_unversioned:
            return await self._unversioned_reference(request.line, reference)
        if _changes_shape(request.line, edit):
            await self.require_unversioned(request.line, reference)
        return reference

    async def is_unversioned(self, line: Line, reference: str) -> bool:
        """Return whether a version is the one that states without a reference are taken for."""
        name, _, version = reference.partition("@")
        return await self._read(line.tenant, name) == version

    async def require_unversioned(self, line: Line, reference: str, where: str = "") -> None:
        """Refuse a writer without a schema, unless the state before has the shape that such writers have."""
        name, _, version = reference.partition("@")
        if self._unversioned.get((line.tenant, name)) == version:
            return
        unversioned = await self._read(line.tenant, name)
        if unversioned in ("", version):
            return
        raise ConflictError(
            f"the state is of {reference}, and this program has attached no schema: it would mix that with the form "
            f"that states had before, {unversioned}",
            where=where or f"{'thread' if is_thread(line.name) else 'scope'} {short_name(line.name)!r}",
            hint=f"Run the release with {reference}, or attach its schema: store.schemas.attach(...). To go on without "
            f"one, downgrade the states: holdfast migrate down {name} --to {unversioned}",
            code="schema-missing",
        )

    async def keep_aside(self, request: SchemaRequest, new: PackedMap, loaded: LoadedState | None) -> PackedMap:
        """Return the state to save of a program without a schema, with what migrations keep aside of the one before."""
        if loaded is None or loaded.schema == "" or request.schema or request.is_unversioned or _ASIDE in new:
            return new
        from holdfast.engine.entry_reader import EntryReader

        found = await EntryReader(self._states, self._context.cache).find(request.line, loaded, _ASIDE)
        return new if found is None else {**new, _ASIDE: found.value}

    async def check_writes(self, line: Line, id: str) -> None:
        """Refuse writes of a program without a schema after a checkpoint, if that is in memory and has another shape.
        If it is not, they are taken for what they are when they are read: of the version of states without one."""
        tip = self._lines.cached_tip(line)
        if tip is not None and tip.point is not None and tip.point.id == id:
            loaded: LoadedState | None = self._context.cache.get((line, tip.point.hash))
            if loaded is not None and loaded.schema:
                await self.require_unversioned(line, loaded.schema)

    async def _unversioned_reference(self, line: Line, reference: str) -> str:
        """Return the reference for a state that had none, where that of its parent is given."""
        name = reference.partition("@")[0]
        version = await self._read(line.tenant, name)
        return f"{name}@{version}" if version else reference

    async def _read(self, tenant: str, name: str) -> str:
        """Return the version of states without a reference, as the registry has it; empty if it has no such schema."""
        from holdfast.engine.entry_reader import EntryReader

        line = Line(tenant, REGISTRY)
        tip = await self._lines.load_tip(line)
        if tip is None or tip.point is None:
            return ""
        loaded = await self._states.get(line, tip.point)
        entry = await EntryReader(self._states, self._context.cache).find(line, loaded, pack_name(RECORD + name))
        if entry is None:
            return ""
        version = str(unpack(self._context.codec, entry.value)["unversioned"])
        self._unversioned[tenant, name] = version
        return version


def _changes_shape(line: Line, edit: EditMap) -> bool:
    """Whether an edit writes anything that has a shape. Keys of scopes may be missing, and internal ones have none."""
    if is_thread(line.name):
        kept = pack_name(KEPT)
        return any(key != kept for key in (*edit.removed, *(key for key, _ in edit.put)))
    return any(not unpack_name(key).startswith("\0") for key, _ in edit.put)
