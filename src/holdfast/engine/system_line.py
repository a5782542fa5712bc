"""A ledger: a line of ours with a map of names to plain values, every change of which says who made it and why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from holdfast.backends.interface import Change, Expect
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine import trace_context
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.engine import Engine
from holdfast.engine.events import DIGEST, Event, Told, digest, rows, told
from holdfast.engine.guard import Guards
from holdfast.engine.lines import LineTip
from holdfast.engine.model.nodes import sort_key
from holdfast.engine.model.operations import EditMap, Set
from holdfast.engine.model.packed_state import pack_name, unpack, unpack_name
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.row_format import Line, StepRef, readable
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.step_info import StepInfo

T = TypeVar("T")


class SystemLineEntries:
    """What a ledger holds, as of one of its steps."""

    def __init__(self, engine: Engine, line: Line, loaded: LoadedState | None) -> None:
        self._engine = engine
        self._line = line
        self._loaded = loaded

    async def find(self, name: str) -> Any:
        """What is kept under a name; None if nothing is."""
        if self._loaded is None:
            return None
        entry = await self._engine.entries.find(self._line, self._loaded, pack_name(name))
        return None if entry is None else unpack(self._engine.ground.codec, entry.value)

    async def starting(self, prefix: str) -> dict[str, Any]:
        """All that is kept under names that start so, in the order of names, by what follows."""
        if self._loaded is None:
            return {}
        start = sort_key(pack_name(prefix))
        found = await self._engine.entries.page(self._line, self._loaded, start, start + b"\xff", None)
        codec = self._engine.ground.codec
        return {unpack_name(each.key)[len(prefix) :]: unpack(codec, each.value) for each in found}


class SystemLineChange(NamedTuple):
    """A change of a ledger."""

    put: Mapping[str, Any]
    removed: Sequence[str]
    events: Sequence[Event]


WorkOut: TypeAlias = Callable[[SystemLineEntries], Awaitable[SystemLineChange]]
"""Works out what to change, given what is there."""


class SystemLine:
    """A line of ours, read and changed."""

    def __init__(self, engine: Engine, line: Line) -> None:
        self.engine = engine
        self.line = line

    async def fresh(self) -> LineTip | None:
        """How it ends now, as the store has it; None if there is nothing in it yet."""
        return await self.engine.lines.fresh(self.line)

    async def seen(self, point: StepRef | None, look: Callable[[SystemLineEntries], Awaitable[T]]) -> T:
        """What one sees who looks at it as of a step."""
        if point is None:
            return await look(SystemLineEntries(self.engine, self.line, None))

        async def read(point: StepRef) -> T:
            loaded = await self.engine.states.hold(self.line, point)
            try:
                return await look(SystemLineEntries(self.engine, self.line, loaded))
            except MissingNode:
                self.engine.states.forget(self.line, point.hash)
                raise

        return await self.engine.lines.reading(self.line, point, read)

    async def look(self, look: Callable[[SystemLineEntries], Awaitable[T]]) -> T:
        """What one sees who looks at it now."""
        tip = await self.fresh()
        return await self.seen(None if tip is None else tip.point, look)

    def unchanged(self, tip: LineTip | None) -> list[Change]:
        """The conditions that it still ends so."""
        if tip is None or tip.point is None:
            return [Expect(LINES, tuple(self.line), None if tip is None else tuple(tip.info))]
        after = (*self.line, tip.point.branch, tip.point.seq + 1)
        return [Expect(LINES, tuple(self.line), tuple(tip.info)), Expect(STEPS, after, None)]

    async def amend(self, kind: str, actor: str, work_out: WorkOut) -> StepInfo:
        """Change it. What to change is worked out anew against what is there at each attempt."""
        (head,) = await self.engine.rebaser.save(self.saving(kind, actor, work_out))
        return head

    def saving(self, kind: str, actor: str, work_out: WorkOut, guards: Guards | None = None) -> AppendRequest:
        """The same, to be saved alone or together with others; on further conditions, which are asked for after what to
        change was worked out."""
        codec, clock, trace = self.engine.ground.codec, self.engine.ground.clock, trace_context.traced()
        said: list[Told] = []

        async def edit(parent: StepRef | None, loaded: LoadedState | None) -> EditMap:  # noqa: ARG001
            nonlocal said
            amendment = await work_out(SystemLineEntries(self.engine, self.line, loaded))
            said = told(clock(), trace, amendment.events)
            about: dict[str, object] = {"actor": actor} if actor else {}
            about |= {"correlation": trace.correlation}
            about |= {"cause": trace.cause} if trace.cause else {}
            about[DIGEST] = digest(said)
            saving.metadata, saving.readable = codec.pack(about), readable(codec, about)
            put = tuple((pack_name(name), Set(codec.pack(value))) for name, value in amendment.put.items())
            return EditMap(tuple(map(pack_name, amendment.removed)), put)

        def riders(id: str) -> list[Change]:
            return rows(self.line, id, said)

        saving = AppendRequest(self.line, edit, on_conflict=OnConflict.RETRY, kind=kind, riders=riders, guards=guards)
        return saving
