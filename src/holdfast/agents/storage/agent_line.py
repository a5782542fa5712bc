"""An agent's line: reading what was saved of it, and appending to it, strictly.

Whoever saves names the step that it goes on from. If another one follows that step already, `ConflictError` is raised
and nothing is saved: no update is lost because its author did not know of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.agents.storage.conflicts import HINT
from holdfast.agents.storage.record import CONVERSATION, AgentPosition, AgentRecord, record_of
from holdfast.backends.interface import Change, Expect, Get
from holdfast.backends.tables import STEPS
from holdfast.engine import trace_context, validation
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.branch_graph import BranchGraph
from holdfast.engine.events import DIGEST, Event, digest, rows, told
from holdfast.engine.guard import Action, Guards, Permit, both_guards
from holdfast.engine.lines import ROOT
from holdfast.engine.model.operations import EditList, EditMap, KeepRun, Operation, Set
from holdfast.engine.model.packed_state import Packed, flatten, pack_name, unpack, unpack_state
from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import AGENTS
from holdfast.engine.row_format import Line, StepRef, readable
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, NotFoundError
from holdfast.history.revisions import resolve
from holdfast.security.handle import StoreHandle

PREFIX = AGENTS
"""What the names of agents' lines start with."""

LARGE = "large"
"""Where a step says that the agent's metadata is too large to be shown with it."""

_SHOWN = 4096
"""How many bytes of an agent's metadata are shown with each step, for lists: more is read when it is asked for."""

_EMPTY: tuple[Packed, ...] = ({}, b"\x80")


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
            put[CONVERSATION] = EditList(
                (KeepRun(0, self.kept), tuple(self.added)) if self.kept else (tuple(self.added),)
            )
        changes = tuple((pack_name(name), operation) for name, operation in put.items())
        return EditMap(tuple(map(pack_name, self.removed)), changes)


class AgentLine:
    """What is kept of one agent, as somebody in particular may see and change it."""

    def __init__(self, handle: StoreHandle, id: str) -> None:
        self.handle = handle
        self.id = handle.guard.key("agents", id, "id of an agent")
        self.scope: Scope = handle.guard.scope({"agent": self.id})
        self.line = Line(handle.tenant, PREFIX + str(self.scope).partition(":")[2])

    async def allow(self, action: Action) -> Permit:
        """Whether whoever acts may read or write the agent: as it may its scope."""
        return await self.handle.guard.allow_named(action, self.scope, (), self.where)

    # Reading --------------------------------------------------------------------------------------------------

    async def newest(self) -> StepRef | None:
        """The last step; None if the agent was never saved."""
        memo = await self.handle.engine.lines.fresh(self.line)
        return None if memo is None else memo.point

    async def point(self, version: int | None = None) -> StepRef:
        """The last step, or the one that made a version. Raises `NotFoundError`."""
        newest = await self.newest()
        if newest is None:
            raise self.unknown()
        if version is None:
            return newest
        if type(version) is not int or not 1 <= version <= newest.depth + 1:
            raise NotFoundError(
                f"the agent has no version {version!r}",
                where=self.where,
                hint=f"Its versions are those from 1 to {newest.depth + 1}",
            )
        if version == newest.depth + 1:
            return newest
        lines = self.handle.engine.lines
        layout = BranchGraph(await lines.branches(self.line))
        try:
            return await lines.find(self.line, layout.along(newest.branch, version - 1))
        except NotFoundError as error:
            raise self._not_there(f"version {version} of the agent is not there any more") from error

    async def follows(self, newest: StepRef, old: StepRef) -> bool:
        """Whether a step is on the way to the newest one. Of one that was pruned, its stub tells."""
        if old.depth > newest.depth:
            return False
        engine = self.handle.engine
        place = BranchGraph(await engine.lines.branches(self.line)).along(newest.branch, old.depth)
        (rows,) = await engine.ground.backend.read([Get(STEPS, [(*self.line, *place)])])
        return bool(rows) and StepRef.of(rows[0]).hash == old.hash

    async def at(self, at: str | datetime) -> StepRef:
        """The last step by a time, or the one that a revision names, such as the id of a step. Raises
        `NotFoundError`."""
        await self.point()
        text = at if isinstance(at, str) else f"HEAD@{{{validation.moment(at).isoformat()}}}"
        try:
            return await resolve(self.handle.engine, self.line, text)
        except NotFoundError as error:
            raise self._not_there(f"the agent has no step {text!r}"[:200]) from error

    def _not_there(self, what: str) -> NotFoundError:
        return NotFoundError(
            what, where=self.where, hint=f"See store.agents.history({self.id!r}) for those that are there"
        )

    async def channels(self, point: StepRef) -> dict[bytes, Packed]:
        """What a step left, packed: all but the conversation."""
        part = self.handle.engine.partial(self.line, point)
        return {pack_name(name): await part.packed((name,)) for name in await part.names() if name != CONVERSATION}

    async def record(self, point: StepRef, channels: Mapping[bytes, Packed] | None = None) -> AgentRecord:
        """The agent as a step left it, of its channels if they are at hand. `CorruptError` if that cannot be read."""
        engine = self.handle.engine
        state = unpack_state(self.handle.codec, dict(channels or await self.channels(point)))
        head = await engine.heads.head(self.line, point)
        notes: Mapping[str, Any] = self.handle.codec.unpack(head.header.metadata)
        return record_of(self.id, state, point.depth + 1, to_datetime(point.time), point.id, notes)

    async def messages(self, point: StepRef, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Messages of the conversation as a step left it."""
        part = self.handle.engine.partial(self.line, point)
        if CONVERSATION not in await part.names():
            return []
        return await part.slice((CONVERSATION,), start, stop)

    # Saving ---------------------------------------------------------------------------------------------------

    def about(self, kind: str, standing: AgentPosition, messages: int, metadata: Packed) -> dict[str, Any]:
        """What a step says of the agent for lists, which read no states: its class, where it stands, how many messages
        it has, and its packed metadata."""
        status, state, pending = standing
        about: dict[str, Any] = {"class": kind, "status": status, "state": state}
        about |= {"pending": f"{pending.kind} {pending.trigger}"} if pending is not None else {}
        about |= {"messages": messages} if messages else {}
        if metadata in _EMPTY:
            return about
        if len(flatten(metadata)) > _SHOWN:
            return about | {LARGE: True}
        return about | {"metadata": unpack(self.handle.codec, metadata)}

    def saving(
        self,
        kind: str,
        delta: Delta,
        parent: StepRef | None,
        about: Mapping[str, Any],
        events: Sequence[Event],
        permit: Permit,
        id: str = "",
        instead_of: StepRef | None = None,
    ) -> AppendRequest:
        """A step of the agent, to be saved alone or together with those of others. It follows the newest step; or goes
        on from an older one, on a branch of its own, if the newest is to be passed over."""
        trace, actor = trace_context.traced(), self.handle.guard.actor
        happened = told(self.handle.now(), trace, events)
        said = {**about, **({"actor": actor} if actor else {}), "correlation": trace.correlation}
        said |= {"cause": trace.cause} if trace.cause else {}
        said |= {DIGEST: digest(happened)} if happened else {}
        edit = delta.edit()

        async def edited(parent: StepRef | None, held: LoadedState | None) -> EditMap:  # noqa: ARG001 - it is that of the delta
            return edit

        def riders(id: str) -> list[Change]:
            return rows(self.line, id, happened)

        return AppendRequest(
            self.line,
            edited,
            parent=ROOT if parent is None else parent.id,
            on_conflict=OnConflict.REFUSE,
            id=id,
            kind=kind,
            metadata=self.handle.codec.pack(said),
            readable=readable(self.handle.codec, said),
            riders=riders,
            guards=both_guards(permit.guards, self._newest_is(instead_of or parent, instead_of)),
            opens="" if instead_of is None else f"after-{instead_of.id}",
        )

    def _newest_is(self, point: StepRef | None, passed: StepRef | None) -> Guards:
        """The condition that a step is still the newest. What is not known to have branches is looked at only once
        something has changed."""

        async def newest(again: bool) -> list[Change]:
            lines = self.handle.engine.lines
            memo = None if again else lines.known(self.line)
            found = memo.point if memo is not None else await lines.newest(self.line)
            if (found and found.id) != (point and point.id):
                found = await lines.newest(self.line)
            if (found and found.id) != (point and point.id):
                raise self.conflict()
            # The step itself takes the place after its parent; nothing else may follow one that is passed over.
            return [Expect(STEPS, (*self.line, passed.branch, passed.seq + 1), None)] if passed is not None else []

        return newest

    async def save(self, *savings: AppendRequest) -> list[StepRef]:
        """Append steps, all or none. `ConflictError` if another follows what one of them goes on from."""
        try:
            heads = await self.handle.engine.rebaser.save(*savings)
        except (ConflictError, NotFoundError) as error:
            raise self.conflict() from error
        return [head.point for head in heads]

    def conflict(self) -> ConflictError:
        """The error for a save that another one came before."""
        return ConflictError(
            "the agent was saved by another meanwhile, or deleted", where=self.where, hint=HINT, code="agent-conflict"
        )

    @property
    def where(self) -> str:
        """How errors name the agent."""
        return f"agent {self.id!r}"

    def unknown(self) -> NotFoundError:
        """The error for an agent that was never saved."""
        return NotFoundError("there is no such agent", where=self.where, hint="See store.agents.list()")


def id_of(line: Line) -> str | None:
    """The id of the agent whose line has this name; None if it is none's."""
    if not line.name.startswith(PREFIX):
        return None
    return Scope.parse("agent:" + line.name.removeprefix(PREFIX)).parts[0].name
