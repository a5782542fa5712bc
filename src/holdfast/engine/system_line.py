"""System lines: names and plain values of the store's own; every change records who made it and why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from holdfast.backends.interface import Change, Expect
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine import trace_context
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.engine import Engine
from holdfast.engine.events import DIGEST, Event, EventContent, digest, event_contents, rows
from holdfast.engine.guard import Preconditions
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
    """The entries of a system line, as of one of its steps."""

    def __init__(self, engine: Engine, line: Line, loaded: LoadedState | None) -> None:
        self._engine = engine
        self._line = line
        self._loaded = loaded

    async def find(self, name: str) -> Any:
        """Return the value of a name; None if there is none."""
        if self._loaded is None:
            return None
        entry = await self._engine.entries.find(self._line, self._loaded, pack_name(name))
        return None if entry is None else unpack(self._engine.context.codec, entry.value)

    async def with_prefix(self, prefix: str) -> dict[str, Any]:
        """Return all values whose names start with a prefix, in the order of names, by the rest of the name."""
        if self._loaded is None:
            return {}
        start = sort_key(pack_name(prefix))
        entries = await self._engine.entries.page(self._line, self._loaded, start, start + b"\xff", None)
        codec = self._engine.context.codec
        return {unpack_name(each.key)[len(prefix) :]: unpack(codec, each.value) for each in entries}


class SystemLineChange(NamedTuple):
    """A change of a system line."""

    put: Mapping[str, Any]
    removed: Sequence[str]
    events: Sequence[Event]


WorkOut: TypeAlias = Callable[[SystemLineEntries], Awaitable[SystemLineChange]]
"""Computes a change, given the entries."""


class SystemLine:
    """Reads and changes a system line."""

    def __init__(self, engine: Engine, line: Line) -> None:
        self.engine = engine
        self.line = line

    async def tip(self) -> LineTip | None:
        """Return the current tip of the line; None if it does not exist yet."""
        return await self.engine.lines.revalidate_tip(self.line)

    async def read_at(self, point: StepRef | None, look: Callable[[SystemLineEntries], Awaitable[T]]) -> T:
        """Read the entries as of a step."""
        if point is None:
            return await look(SystemLineEntries(self.engine, self.line, None))

        async def read(point: StepRef) -> T:
            loaded = await self.engine.states.get(self.line, point)
            try:
                return await look(SystemLineEntries(self.engine, self.line, loaded))
            except MissingNode:
                self.engine.states.forget(self.line, point.hash)
                raise

        return await self.engine.lines.read_step(self.line, point, read)

    async def read(self, look: Callable[[SystemLineEntries], Awaitable[T]]) -> T:
        """Read the current entries."""
        tip = await self.tip()
        return await self.read_at(None if tip is None else tip.point, look)

    def tip_unchanged(self, tip: LineTip | None) -> list[Change]:
        """Return the conditions that the line still has this tip."""
        if tip is None or tip.point is None:
            return [Expect(LINES, tuple(self.line), None if tip is None else tuple(tip.info))]
        after = (*self.line, tip.point.branch, tip.point.seq + 1)
        return [Expect(LINES, tuple(self.line), tuple(tip.info)), Expect(STEPS, after, None)]

    async def change(self, kind: str, actor: str, work_out: WorkOut) -> StepInfo:
        """Change the line. The change is computed again at each attempt, from the current entries."""
        (head,) = await self.engine.writer.save(self.request(kind, actor, work_out))
        return head

    def request(self, kind: str, actor: str, work_out: WorkOut, guards: Preconditions | None = None) -> AppendRequest:
        """Return the request for a change, to be saved alone or with others; on further conditions, which are evaluated
        after the change was computed."""
        codec, clock, trace = self.engine.context.codec, self.engine.context.clock, trace_context.current_or_new()
        contents: list[EventContent] = []

        async def edit(parent: StepRef | None, loaded: LoadedState | None) -> EditMap:  # noqa: ARG001
            nonlocal contents
            amendment = await work_out(SystemLineEntries(self.engine, self.line, loaded))
            contents = event_contents(clock(), trace, amendment.events)
            about: dict[str, object] = {"actor": actor} if actor else {}
            about |= {"correlation": trace.correlation}
            about |= {"cause": trace.cause} if trace.cause else {}
            about[DIGEST] = digest(contents)
            request.metadata, request.readable = codec.pack(about), readable(codec, about)
            put = tuple((pack_name(name), Set(codec.pack(value))) for name, value in amendment.put.items())
            return EditMap(tuple(map(pack_name, amendment.removed)), put)

        def riders(id: str) -> list[Change]:
            return rows(self.line, id, contents)

        request = AppendRequest(
            self.line, edit, on_conflict=OnConflict.RETRY, kind=kind, attached_changes=riders, preconditions=guards
        )
        return request
