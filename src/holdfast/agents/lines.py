"""An agent's line: reading what was saved of it, and appending to it, strictly.

Whoever saves names the step that it goes on from. If another one follows that step already, `Conflict` is raised and
nothing is saved: no update is lost because its author did not know of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.agents.record import CONVERSATION, AgentRecord, record_of
from holdfast.backends.port import Change
from holdfast.checkpoints import to_datetime
from holdfast.engine.append import OnConflict, Saving
from holdfast.engine.lines import ROOT
from holdfast.engine.records import Line, Point, readable
from holdfast.engine.states import Held
from holdfast.errors import Conflict, NotFound
from holdfast.model.operations import EditList, EditMap, Keep, Operation, Set
from holdfast.model.packed import Packed, flatten, pack_name
from holdfast.model.scopes import MARK, Scope
from holdfast.security import tracing
from holdfast.security.events import DIGEST, Event, digest, rows
from holdfast.security.guard import Action, Permit
from holdfast.state.handles import Handle

_PREFIX = MARK + "agents:"


@dataclass(slots=True)
class Delta:
    """What a step changes of an agent: channels by name, packed; and messages."""

    put: dict[str, Operation] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    kept: int = 0
    """How many messages the conversation had before; those that are added follow them."""
    added: Sequence[bytes] = ()
    """Messages that are added, packed."""
    messages: Packed | None = None
    """The whole conversation, where it was changed in another way."""

    def __bool__(self) -> bool:
        return bool(self.put or self.removed or self.added or self.messages is not None)

    def edit(self) -> EditMap:
        """The operation on the state of the line."""
        put = dict(self.put)
        if self.messages is not None:
            put[CONVERSATION] = Set(flatten(self.messages))
        elif self.added:
            put[CONVERSATION] = EditList((Keep(0, self.kept), tuple(self.added)) if self.kept else (tuple(self.added),))
        changes = tuple((pack_name(name), operation) for name, operation in put.items())
        return EditMap(tuple(map(pack_name, self.removed)), changes)


class AgentLine:
    """What is kept of one agent, as somebody in particular may see and change it."""

    def __init__(self, handle: Handle, id: str) -> None:
        self.handle = handle
        self.id = handle.guard.key("agents", id, "id of an agent")
        self.scope: Scope = handle.guard.scope({"agent": self.id})
        self.line = Line(handle.tenant, _PREFIX + str(self.scope).partition(":")[2])

    async def allow(self, action: Action) -> Permit:
        """Whether whoever acts may read or write the agent: as it may its scope."""
        return await self.handle.guard.allow_named(action, self.scope, (), f"agent {self.id!r}")

    # Reading --------------------------------------------------------------------------------------------------

    async def newest(self) -> Point | None:
        """The last step; None if the agent was never saved."""
        memo = await self.handle.engine.lines.fresh(self.line)
        return None if memo is None else memo.point

    async def point(self, version: int | None = None) -> Point:
        """The last step, or the one that made a version. Raises `NotFound`."""
        newest = await self.newest()
        if newest is None:
            raise self.unknown()
        if version is None or version == newest.depth + 1:
            return newest
        for row in await self.handle.engine.lines.history(self.line):
            point = Point.of(row)
            if point.depth + 1 == version:
                return point
        raise NotFound(f"the agent has no version {version}", where=f"agent {self.id!r}")

    async def record(self, point: Point) -> AgentRecord:
        """The agent as a step left it. `Corrupt` if that cannot be read."""
        engine = self.handle.engine
        part = engine.partial(self.line, point)
        state = {name: await part.value((name,)) for name in await part.names() if name != CONVERSATION}
        head = await engine.heads.head(self.line, point)
        notes: Mapping[str, Any] = self.handle.codec.unpack(head.header.metadata)
        return record_of(self.id, state, point.depth + 1, to_datetime(point.time), point.id, notes)

    async def messages(self, point: Point, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Messages of the conversation as a step left it."""
        part = self.handle.engine.partial(self.line, point)
        if CONVERSATION not in await part.names():
            return []
        return await part.slice((CONVERSATION,), start, stop)

    # Saving ---------------------------------------------------------------------------------------------------

    def saving(
        self,
        kind: str,
        delta: Delta,
        parent: Point | None,
        about: Mapping[str, Any],
        events: Sequence[Event],
        permit: Permit,
        id: str = "",
    ) -> Saving:
        """A step of the agent, to be saved alone or together with those of others."""
        trace, actor, time = tracing.traced(), self.handle.guard.actor, self.handle.now()
        said = {**about, **({"actor": actor} if actor else {}), "correlation": trace.correlation}
        said |= {"cause": trace.cause} if trace.cause else {}
        said |= {DIGEST: digest(time, trace, events)} if events else {}
        edit = delta.edit()

        async def edited(parent: Point | None, held: Held | None) -> EditMap:  # noqa: ARG001 - it is that of the delta
            return edit

        def riders(id: str) -> list[Change]:
            return rows(self.line, id, time, trace, events)

        return Saving(
            self.line,
            edited,
            parent=ROOT if parent is None else parent.id,
            on_conflict=OnConflict.REFUSE,
            id=id,
            kind=kind,
            metadata=self.handle.codec.pack(said),
            readable=readable(self.handle.codec, said),
            riders=riders,
            guards=permit.guards,
        )

    async def save(self, *savings: Saving) -> list[Point]:
        """Append steps, all or none. `Conflict` if another follows what one of them goes on from."""
        try:
            heads = await self.handle.engine.rebaser.save(*savings)
        except (Conflict, NotFound) as error:
            raise Conflict(
                "the agent was saved by another meanwhile, or deleted",
                where=f"agent {self.id!r}",
                hint="Load it again and apply the change to what is there, or give a resolver",
                code="agent-conflict",
            ) from error
        return [head.point for head in heads]

    def unknown(self) -> NotFound:
        """The error for an agent that was never saved."""
        return NotFound("there is no such agent", where=f"agent {self.id!r}", hint="See store.agents.list()")


def id_of(line: Line) -> str | None:
    """The id of the agent whose line has this name; None if it is none's."""
    if not line.name.startswith(_PREFIX):
        return None
    return Scope.parse("agent:" + line.name.removeprefix(_PREFIX)).parts[0].name
