"""The version of a step that says none: that of its parent, as long as its writer has the shape of that.

A program without a schema writes states as they were before there was one, which is the version that the registry takes
states without a reference for. On top of any other version its step would mix two shapes, and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Final

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Expect, Get
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine.context import EngineContext
from holdfast.engine.delta_channels import KEPT
from holdfast.engine.lines import LineIndex, LineTip, OnBranch
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.packed_state import PackedMap, pack_name, unpack, unpack_name
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import is_thread, short_name
from holdfast.engine.patterns import matcher
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


_VERSION: Final = "version "

_ABSENT_SECONDS: Final = 60.0
"""How long a program relies on a store having no registry."""


class _RetiredVersions(NamedTuple):
    """The versions whose last states were migrated, according to one step of a registry."""

    tip: LineTip
    unversioned: Sequence[tuple[str, str]]
    """Patterns of threads, and the versions that states without a reference have there."""
    retired: frozenset[str]
    unchanged: Sequence[Change]
    """The conditions that the registry still has this tip."""

    def find_unversioned(self, line: Line) -> str:
        """Return the version that a state without a reference has in a thread; empty if it has none."""
        return next((each for pattern, each in self.unversioned if matcher(pattern)(line.name)), "")


class InheritedSchemas:
    """Finds the versions of steps that say none."""

    def __init__(self, context: EngineContext, lines: LineIndex, states: StateLoader, heads: StepInfoReader) -> None:
        self._context = context
        self._lines = lines
        self._states = states
        self._heads = heads
        self._unversioned: dict[tuple[str, str], str] = {}
        """The versions of states without a reference, by tenant and schema, as they were read last."""
        self._registries: dict[str, tuple[_RetiredVersions | None, float]] = {}
        """The content of the registries of tenants, as it was read last, and until when it is not read again."""

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

    async def conditions_on_use(
        self, request: SchemaRequest, parent: StepRef | None, loaded: LoadedState | None, *, refresh: bool
    ) -> Sequence[Change]:
        """Return the conditions on which a program without a schema starts a thread, or goes on from an old checkpoint.

        Refuses it where the last states of the version that it writes were migrated: programs rely on there being no
        more, and do without the migrations from it."""
        line = request.line
        if request.schema or request.line_schema is not None or request.is_unversioned or not is_thread(line.name):
            return ()
        if parent is not None and (request.parent is None or isinstance(request.parent, OnBranch)):
            return ()  # the last step of a branch, whose state was migrated with the others
        registered = await self._retired(line.tenant, refresh=refresh)
        if registered is None:
            return ()
        stored = "" if parent is None or loaded is None else await self.reference_at(line, parent, loaded)
        reference = stored or registered.find_unversioned(line)
        if reference in registered.retired and not refresh:
            return await self.conditions_on_use(request, parent, loaded, refresh=True)
        if reference in registered.retired:
            name = reference.partition("@")[0]
            raise ConflictError(
                f"the state would be one of {reference}, whose last states were migrated, and this program has "
                f"attached no schema",
                where=f"thread {short_name(line.name)!r}",
                hint=f"Run the release that has the schema, or attach it: store.schemas.attach(...). To go on without "
                f"one, downgrade the states: holdfast migrate down {name}",
                code="schema-missing",
            )
        return registered.unchanged

    async def _retired(self, tenant: str, *, refresh: bool) -> _RetiredVersions | None:
        """Return what the registry says of versions without states, as it was read last; None if there is none. That
        there is none is looked up again from time to time, and anything else is a condition of what is stored."""
        found, until = self._registries.get(tenant, (None, 0.0))
        if not refresh and (found is not None or monotonic() < until):
            return found
        line = Line(tenant, REGISTRY)
        tip, read = await self._lines.load_tip(line), None
        if tip is not None and tip.point is not None:
            if found is not None and found.tip == tip:
                return found
            loaded = await self._states.get(line, tip.point)
            packed = await self._states.resolve_pointers(line, await self._states.whole(line, loaded))
            entries = {unpack_name(key): value for key, value in packed.items()}
            codec = self._context.codec
            records = {
                name.removeprefix(RECORD): unpack(codec, value)
                for name, value in entries.items()
                if name.startswith(RECORD)
            }
            retired = [
                name.removeprefix(_VERSION)
                for name, value in entries.items()
                if name.startswith(_VERSION) and unpack(codec, value)["retired"]
            ]
            after = (*line, tip.point.branch, tip.point.seq + 1)
            read = _RetiredVersions(
                tip,
                [
                    (each, f"{name}@{record['unversioned']}")
                    for name, record in records.items()
                    for each in record["threads"]
                ],
                frozenset(retired),
                [Expect(LINES, tuple(line), tip.info.columns), Expect(STEPS, after, None)],
            )
        self._registries[tenant] = read, monotonic() + _ABSENT_SECONDS
        return read

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
