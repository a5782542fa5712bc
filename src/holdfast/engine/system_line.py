"""System lines, which hold the store's own records, and audited steps: each says who made it and why, and is stored
together with the events that describe it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msgspec.msgpack import encode

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Delete, Expect, Put, Query, Row, Scan
from holdfast.backends.tables import LINES, LINKS, STEPS
from holdfast.engine import trace_context
from holdfast.engine.append import AppendRequest
from holdfast.engine.engine import Engine
from holdfast.engine.events import Event, EventContent, digest, event_contents, rows
from holdfast.engine.guard import Preconditions, both_preconditions
from holdfast.engine.lines import LineTip
from holdfast.engine.model.nodes import sort_key
from holdfast.engine.model.operations import EditMap, Set
from holdfast.engine.model.packed_state import Packed, flatten, pack_channel, pack_name, unpack, unpack_name
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.namespaces import ACCESS, AUDIT
from holdfast.engine.row_format import Line, StepRef, readable_of_line
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.step_info import StepInfo
from holdfast.engine.trace_context import Trace
from holdfast.errors import NotFoundError

if TYPE_CHECKING:
    from holdfast.engine.protection import Protection

T = TypeVar("T")

Look: TypeAlias = Callable[[StepRef | None, LoadedState | None], Awaitable[T]]
"""Reads something of the state at a step; of no state, if the line has no step."""

# Reading a line -------------------------------------------------------------------------------------------------


async def read_at(engine: Engine, line: Line, point: StepRef | None, look: Look[T]) -> T:
    """Read the state of a line at a step. `NotFoundError` if it is pruned or deleted meanwhile."""
    if point is None:
        return await look(None, None)
    states = engine.states

    async def read(point: StepRef) -> T:
        try:
            return await look(point, await states.get(line, point))
        except MissingNode:  # perhaps the line was rewritten
            states.forget(line, point.hash)
            return await look(point, await states.get(line, point))

    return await engine.lines.read_step(line, point, read)


async def read_latest(engine: Engine, line: Line, look: Look[T]) -> T:
    """Read the current state of a line. If its last step is pruned or deleted meanwhile, read what followed."""
    tip = await engine.lines.revalidate_tip(line)
    while True:
        point = None if tip is None else tip.point
        try:
            return await read_at(engine, line, point, look)
        except NotFoundError:
            tip = await engine.lines.load_tip(line)
            if point == (None if tip is None else tip.point):
                raise


# Audited steps --------------------------------------------------------------------------------------------------


class StepAudit:
    """Who makes a step and why: as metadata of the step, and as rows of its events."""

    __slots__ = ("_actor", "_contents", "_engine", "_line", "trace")

    def __init__(self, engine: Engine, line: Line, actor: str, trace: Trace | None = None) -> None:
        self._engine = engine
        self._line = line
        self._actor = actor
        self._contents: list[EventContent] = []
        self.trace: Trace = trace_context.current_or_new() if trace is None else trace

    def describe(
        self,
        request: AppendRequest,
        time: int,
        events: Iterable[Event],
        more: Mapping[str, object] | None = None,
        pack: Callable[[dict[str, object]], bytes] = encode,
    ) -> None:
        """Set the metadata of a request, with further entries. Those that are not plain need the codec's `pack`."""
        trace = self.trace
        self._contents = event_contents(time, trace, events, self._protection)
        metadata: dict[str, object] = {}
        if self._actor:
            metadata["actor"] = self._actor
        if trace.correlation:
            metadata["correlation"] = trace.correlation
        if trace.cause:
            metadata["cause"] = trace.cause
        if more:
            metadata.update(more)
        request.events = digest(self._contents) if self._contents else ""
        request.metadata = pack(metadata)
        request.readable = readable_of_line(self._line.name, self._engine.context.codec, metadata)

    @property
    def _protection(self) -> Protection | None:
        """Return the protection that redacts details, unless these are of rights or of the audit itself."""
        return None if self._line.name in (ACCESS, AUDIT) else self._engine.protection

    def rows(self, id: str) -> list[Change]:
        """Return the rows of the events, given the id of the step."""
        return rows(self._line, id, self._contents)


@dataclass(slots=True)
class LineChange:
    """A change of the entries of a line, by name; its events; and further rows, stored together with it."""

    put: Mapping[str, Packed] = field(default_factory=dict)
    removed: Sequence[str] = ()
    events: Sequence[Event] = ()
    rows: Sequence[Change] = ()

    def __add__(self, other: LineChange) -> LineChange:
        return LineChange(
            {**self.put, **other.put},
            [*self.removed, *other.removed],
            [*self.events, *other.events],
            [*self.rows, *other.rows],
        )


EditLine: TypeAlias = Callable[[StepRef | None, LoadedState | None, int], Awaitable[LineChange]]
"""Computes a change at each attempt, given the last step, its state, and the time."""


def audited_request(
    engine: Engine,
    line: Line,
    kind: str,
    actor: str,
    edit: EditLine,
    preconditions: Preconditions | None = None,
    *,
    trace: Trace | None = None,
    fold_every: int = 0,
) -> AppendRequest:
    """Return the request for an audited step, to be saved alone or with others. Its preconditions are evaluated after
    the change was computed."""
    audit = StepAudit(engine, line, actor, trace)
    change = LineChange()

    async def compute(parent: StepRef | None, loaded: LoadedState | None) -> EditMap:
        nonlocal change
        time = engine.context.clock()
        change = await edit(parent, loaded, time)
        audit.describe(request, time, change.events)
        put = tuple((pack_name(name), Set(flatten(value))) for name, value in change.put.items())
        return EditMap(tuple(map(pack_name, change.removed)), put)

    def attach(id: str) -> list[Change]:
        return [*change.rows, *audit.rows(id)]

    request = AppendRequest(
        line, compute, kind=kind, attached_changes=attach, preconditions=preconditions, fold_every=fold_every
    )
    return request


# System lines ---------------------------------------------------------------------------------------------------


class SystemRecord(NamedTuple):
    """The value of a name, and the number of the step that wrote it."""

    value: Any
    version: int


class SystemLineEntries:
    """The entries of a system line, as of one of its steps."""

    def __init__(self, engine: Engine, line: Line, loaded: LoadedState | None) -> None:
        self._engine = engine
        self._line = line
        self._loaded = loaded

    async def record(self, name: str) -> SystemRecord | None:
        """Return the value of a name and its version; None if there is none."""
        if self._loaded is None:
            return None
        entry = await self._engine.entries.find(self._line, self._loaded, pack_name(name))
        if entry is None:
            return None
        return SystemRecord(unpack(self._engine.context.codec, entry.value), entry.origin.seq + 1)

    async def records(self, names: Iterable[str]) -> dict[str, SystemRecord]:
        """Return the values and versions of those names that exist."""
        return {name: record for name in names if (record := await self.record(name)) is not None}

    async def find(self, name: str) -> Any:
        """Return the value of a name; None if there is none."""
        record = await self.record(name)
        return None if record is None else record.value

    async def has(self, name: str) -> bool:
        """Whether there is an entry of this name. Its value is not read."""
        if self._loaded is None:
            return False
        return await self._engine.entries.origin(self._line, self._loaded, pack_name(name)) is not None

    async def with_prefix(self, prefix: str) -> dict[str, Any]:
        """Return all values whose names start with a prefix, in the order of names, by the rest of the name."""
        if self._loaded is None:
            return {}
        start = sort_key(pack_name(prefix))
        entries = await self._engine.entries.page(self._line, self._loaded, start, start + b"\xff", None)
        codec = self._engine.context.codec
        return {unpack_name(each.key)[len(prefix) :]: unpack(codec, each.value) for each in entries}


EditEntries: TypeAlias = Callable[[SystemLineEntries], Awaitable[LineChange]]
"""Computes a change at each attempt, given the current entries."""

Link: TypeAlias = tuple[str, str, str]
"""The key of a link row in its line: a kind, a name, and what the name is linked with."""


class SystemLine:
    """Reads and changes a system line on behalf of an identity. Nothing is checked here: the caller has asked the
    guard."""

    def __init__(self, engine: Engine, line: Line, actor: str = "", *, fold_every: int = 0) -> None:
        self.engine = engine
        self.line = line
        self.preconditions: Preconditions | None = None
        """Conditions of all changes: those on which the guard permitted them."""
        self._actor = actor
        self._fold_every = fold_every

    async def tip(self) -> LineTip | None:
        """Return the current tip of the line; None if it does not exist yet."""
        return await self.engine.lines.revalidate_tip(self.line)

    async def tip_and(self, *others: Query) -> tuple[LineTip | None, list[list[Row]]]:
        """Return the current tip of the line, and of the same request the answers to other queries."""
        return await self.engine.lines.revalidate_tip_and(self.line, *others)

    def tip_unchanged(self, tip: LineTip | None) -> list[Change]:
        """Return the conditions that the line still has this tip."""
        if tip is None or tip.point is None:
            return [Expect(LINES, tuple(self.line), None if tip is None else tip.info.columns)]
        after = (*self.line, tip.point.branch, tip.point.seq + 1)
        return [Expect(LINES, tuple(self.line), tip.info.columns), Expect(STEPS, after, None)]

    async def read_at(self, point: StepRef | None, look: Callable[[SystemLineEntries], Awaitable[T]]) -> T:
        """Read the entries as of a step."""
        return await read_at(self.engine, self.line, point, lambda _, loaded: look(self._entries(loaded)))

    async def read(self, look: Callable[[SystemLineEntries], Awaitable[T]]) -> T:
        """Read the current entries."""
        return await read_latest(self.engine, self.line, lambda _, loaded: look(self._entries(loaded)))

    async def records(self, names: Sequence[str]) -> dict[str, SystemRecord]:
        """Return the current values and versions of those names that exist."""
        return await self.read(lambda entries: entries.records(names))

    def pack(self, values: Mapping[str, Any]) -> dict[str, Packed]:
        """Pack values by name, for a change. Errors give the path of a value that cannot be packed."""
        return {name: pack_channel(self.engine.context.codec, name, value) for name, value in values.items()}

    async def change(self, kind: str, edit: EditEntries, preconditions: Preconditions | None = None) -> StepInfo:
        """Change the line."""
        (head,) = await self.engine.writer.save(self.request(kind, edit, preconditions))
        return head

    def request(self, kind: str, edit: EditEntries, preconditions: Preconditions | None = None) -> AppendRequest:
        """Return the request for a change, to be saved alone or with others."""
        return audited_request(
            self.engine,
            self.line,
            kind,
            self._actor,
            lambda _parent, loaded, _time: edit(self._entries(loaded)),
            both_preconditions(self.preconditions, preconditions),
            fold_every=self._fold_every,
        )

    async def linked(self, kind: str, name: str, after: str = "", limit: int | None = None) -> list[Row]:
        """Return the links of a name, in the order of what it is linked with."""
        start = (after + "\0",) if after else ()
        (links,) = await self.engine.context.backend.read(
            [Scan(LINKS, (*self.line, kind, name), start=start, limit=limit)]
        )
        return links

    def link_changes(self, old: Sequence[Link], new: Sequence[Link], time: int, target: str = "") -> list[Change]:
        """Return the changes that replace old links by new ones."""
        removed: list[Change] = [Delete(LINKS, (*self.line, *link)) for link in old if link not in new]
        return removed + [Put(LINKS, Row((*self.line, *link), (time, target))) for link in new if link not in old]

    def _entries(self, loaded: LoadedState | None) -> SystemLineEntries:
        return SystemLineEntries(self.engine, self.line, loaded)
