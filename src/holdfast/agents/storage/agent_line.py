"""The line of an agent: read its steps, and append to them strictly.

A save names the step that it follows. If another step already follows that one, `ConflictError` is raised and nothing
is saved: no update is lost because its author did not know of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast._structs import decode_json
from holdfast.agents.storage.conflicts import HINT
from holdfast.agents.storage.record import CONVERSATION, DICTS, AgentPosition, AgentRecord, build_record
from holdfast.backends.interface import Change, Expect, Get, Put, Row
from holdfast.backends.tables import LINKS, STEPS
from holdfast.engine import trace_context, validation
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.branch_graph import BranchGraph
from holdfast.engine.events import Event
from holdfast.engine.generations import restored_error
from holdfast.engine.guard import Action, Permit, Preconditions, both_preconditions
from holdfast.engine.ids import new_id
from holdfast.engine.lines import ROOT
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operations import EditList, EditMap, KeepRun, Operation, Set
from holdfast.engine.model.packed_state import Packed, flatten, pack_name, unpack, unpack_state
from holdfast.engine.model.scopes import Scope
from holdfast.engine.model.steps import RECORDED, PendingWriteRow
from holdfast.engine.namespaces import AGENTS
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.system_line import StepAudit
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, HoldfastError, NotFoundError
from holdfast.history.revisions import find_step
from holdfast.hooks.feature_hooks import FeatureHooks
from holdfast.hooks.feature_hooks import call_hooks as call_feature_hooks
from holdfast.recording.journal import VERSION, RecordMode, TaskJournal, digest_call, pack_recording
from holdfast.security.handle import StoreHandle
from holdfast.security.sensitive.recorded_values import redact
from holdfast.time_parser import parse_time

if TYPE_CHECKING:
    from holdfast.agents.definition.state_machine import Machine
    from holdfast.engine.value_schemas import ValueSchema

PREFIX = AGENTS
"""The prefix of the names of agents' lines."""

REFUSED = "transition.refused"
"""The kind of steps that change nothing, and record that a transition was refused."""

MACHINE = "machine"
"""The kind of the row that has the declaration of an agent's machine, for drawings."""

LARGE = "large"
"""The key by which a step says that the agent's metadata is too large for its summary."""

_SUMMARY = ("class", "status", "state", "pending", "messages", "metadata", LARGE)
"""The keys of the summary of a step."""

_MAX_METADATA = 4096
"""How many bytes of an agent's metadata are in the summary of a step, for lists: more is read on request."""

_EMPTY: tuple[Packed, ...] = ({}, b"\x80")


@dataclass(slots=True)
class Delta:
    """The changes of a step: channels by name, packed; and messages."""

    put: dict[str, Operation] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    base_count: int = 0
    """How many messages the added ones follow."""
    added: Sequence[bytes] = ()
    """The added messages, packed."""
    messages: Packed | None = None
    """The whole conversation, if it was replaced."""

    def __bool__(self) -> bool:
        return bool(self.put or self.removed or self.added or self.messages is not None)

    def to_operation(self) -> EditMap:
        """Return the operation on the state of the line."""
        put = dict(self.put)
        if self.messages is not None:
            put[CONVERSATION] = Set(flatten(self.messages))
        elif self.added:
            put[CONVERSATION] = EditList(
                (KeepRun(0, self.base_count), tuple(self.added)) if self.base_count else (tuple(self.added),)
            )
        changes = tuple((pack_name(name), operation) for name, operation in put.items())
        return EditMap(tuple(map(pack_name, self.removed)), changes)


class AgentLine:
    """The line of one agent, as one identity may read and write it."""

    def __init__(self, handle: StoreHandle, id: str) -> None:
        self.handle = handle
        self.id: str = handle.guard.key("agents", id, "id of an agent")
        self.scope: Scope = handle.guard.scope({"agent": self.id})
        self.line: Line = Line(handle.tenant, PREFIX + str(self.scope).partition(":")[2])
        self.machine: Machine | None = None
        """The machine of a live agent, whose declaration is stored with its next step."""

    async def allow(self, action: Action) -> Permit:
        """Check that the identity may read or write the agent's scope."""
        return await self.handle.guard.allow_named(action, self.scope, (), self.where)

    # Recorded calls -------------------------------------------------------------------------------------------

    async def put_recorded(
        self, point: StepRef, trigger: str, data: Any, journal: TaskJournal, error: str, mode: RecordMode
    ) -> None:
        """Store the calls of an action after the step that it began with. What cannot be stored is left out."""
        calls = journal.to_record()
        record = {"v": VERSION, "key": journal.key, "trigger": trigger, "data": data, "calls": calls}
        if error:
            record["error"] = error
        if mode != "full":
            record["mode"] = mode
        if mode == "digest":
            record |= {"data": None, "calls": [digest_call(call) for call in calls], "error": ""}
        codec = self.handle.codec
        try:
            packed = pack_recording(codec, record, redact, self.handle.engine.protection)
        except HoldfastError as raised:
            packed = codec.pack({"v": VERSION, "key": journal.key, "mode": "incomplete", "problem": raised.what})
        row = PendingWriteRow("", trigger or "action", journal.step, RECORDED, packed)
        await self.handle.engine.writes.put(self.line, point.id, [row])

    async def read_recorded(self, newest: StepRef) -> list[dict[str, Any]]:
        """Return the recorded actions up to a step, the oldest first, each with the `version` that it began with."""
        points = [await self.require_step(version) for version in range(1, newest.depth + 2)]
        pending = await self.handle.engine.writes.of_many(self.line, points)
        return [
            {**self.handle.codec.unpack(row.packed), "version": point.depth + 1}
            for point, rows in zip(points, pending, strict=True)
            for row in rows
            if row.channel == RECORDED
        ]

    # Reads ----------------------------------------------------------------------------------------------------

    async def latest_step(self) -> StepRef | None:
        """Return the last step; None if the agent was never saved."""
        tip = await self.handle.engine.lines.revalidate_tip(self.line)
        return None if tip is None else tip.point

    async def require_step(self, version: int | None = None) -> StepRef:
        """Return the last step, or that of a version. Raises `NotFoundError`."""
        newest = await self.latest_step()
        if newest is None:
            raise self.not_found_error()
        if version is None:
            return newest
        if type(version) is not int or not 1 <= version <= newest.depth + 1:
            raise NotFoundError(
                f"the agent has no version {version!r}",
                where=self.where,
                hint=f"Its versions are 1 to {newest.depth + 1}",
            )
        if version == newest.depth + 1:
            return newest
        lines = self.handle.engine.lines
        branches = BranchGraph(await lines.branches(self.line))
        try:
            return await lines.find(self.line, branches.along(newest.branch, version - 1))
        except NotFoundError as error:
            raise self._missing_step_error(f"version {version} of the agent no longer exists") from error

    async def is_unchanged(self, old: StepRef, newest: StepRef) -> bool:
        """Whether all steps since an older one only record refused transitions."""
        versions = range(old.depth + 2, newest.depth + 2)
        if not versions or newest.kind != REFUSED or not await self.is_ancestor(old, newest):
            return False
        return all([(await self.require_step(version)).kind == REFUSED for version in versions])

    async def read_machine(self) -> dict[str, Any] | None:
        """Return the states and transitions of the agent's machine as they were last declared, without what they call;
        None if that is not known."""
        (rows,) = await self.handle.engine.context.backend.read([Get(LINKS, [(*self.line, MACHINE, "", "")])])
        return decode_json(str(rows[0].columns[1]), dict[str, Any]) if rows else None

    async def is_ancestor(self, old: StepRef, newest: StepRef) -> bool:
        """Whether the newest step descends from an older one. A pruned step is recognized by its stub."""
        if old.depth > newest.depth:
            return False
        engine = self.handle.engine
        position = BranchGraph(await engine.lines.branches(self.line)).along(newest.branch, old.depth)
        (rows,) = await engine.context.backend.read([Get(STEPS, [(*self.line, *position)])])
        return bool(rows) and StepRef.of(rows[0]).hash == old.hash

    async def resolve_step(self, at: str | datetime) -> StepRef:
        """Return the last step at a time, or the step of a revision, such as its id. Raises `NotFoundError`."""
        await self.require_step()
        text = at if isinstance(at, str) else f"HEAD@{{{parse_time(at, at).isoformat()}}}"
        try:
            return await find_step(self.handle.engine, self.line, text)
        except NotFoundError as error:
            raise self._missing_step_error(f"the agent has no step {text!r}"[:200]) from error

    def _missing_step_error(self, what: str) -> NotFoundError:
        return NotFoundError(what, where=self.where, hint=f"See store.agents.history({self.id!r}) for its steps")

    async def read_channels(self, point: StepRef) -> dict[bytes, Packed]:
        """Return the packed channels of a step, except the conversation."""
        state = self.handle.engine.state_reader(self.line, point)
        return {pack_name(name): await state.packed((name,)) for name in await state.names() if name != CONVERSATION}

    async def read_record(self, point: StepRef, channels: Mapping[bytes, Packed] | None = None) -> AgentRecord:
        """Return the record of a step, built from its channels if the caller has them. Raises `CorruptError` if it
        cannot be read."""
        engine = self.handle.engine
        state = unpack_state(self.handle.codec, dict(channels or await self.read_channels(point)))
        head = await engine.step_info.head(self.line, point)
        notes: Mapping[str, Any] = self.handle.codec.unpack(head.header.metadata)
        return build_record(self.id, state, point.depth + 1, to_datetime(point.time), point.id, notes)

    async def read_messages(self, point: StepRef, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Return messages of the conversation at a step."""
        state = self.handle.engine.state_reader(self.line, point)
        if CONVERSATION not in await state.names():
            return []
        return await state.slice((CONVERSATION,), start, stop)

    # Writes ---------------------------------------------------------------------------------------------------

    def summarize(self, kind: str, position: AgentPosition, messages: int, metadata: Packed) -> dict[str, Any]:
        """Return the summary that a step has for lists, which read no states: the agent's class, its position, the
        number of its messages, and its metadata, which is given packed."""
        status, state, pending = position
        summary: dict[str, Any] = {"class": kind, "status": status, "state": state}
        summary |= {"pending": f"{pending.kind} {pending.trigger}"} if pending is not None else {}
        summary |= {"messages": messages} if messages else {}
        if metadata in _EMPTY:
            return summary
        if len(flatten(metadata)) > _MAX_METADATA:
            return summary | {LARGE: True}
        return summary | {"metadata": unpack(self.handle.codec, metadata)}

    def build_request(
        self,
        kind: str,
        delta: Delta,
        parent: StepRef | None,
        summary: Mapping[str, Any],
        events: Sequence[Event],
        permit: Permit,
        id: str = "",
        instead_of: StepRef | None = None,
        schemas: Mapping[str, ValueSchema | None] = MappingProxyType({}),
    ) -> AppendRequest:
        """Build the request that appends a step, alone or together with those of other agents. The step follows the
        newest; or an older one, on a branch of its own, if the newest is to be skipped. It is saved on condition that
        the versions of the schemas of its channels may still be written."""
        audit = StepAudit(self.handle.engine, self.line, self.handle.guard.actor)
        edit = delta.to_operation()

        async def get_edit(parent: StepRef | None, state: LoadedState | None) -> EditMap:  # noqa: ARG001 - it is that of the delta
            return edit

        conditions = both_preconditions(permit.guards, self._require_newest(instead_of or parent, instead_of))
        request = AppendRequest(
            self.line,
            get_edit,
            parent=ROOT if parent is None else parent.id,
            on_conflict=OnConflict.REFUSE,
            id=id,
            kind=kind,
            attached_changes=lambda id: [*audit.rows(id), *self._machine_rows()],
            preconditions=conditions,
            new_branch="" if instead_of is None else f"after-{instead_of.id}",
            moves_head=instead_of is not None,
        )
        audit.describe(request, self.handle.now(), events, summary, self.handle.codec.pack)
        for channel, schema in schemas.items():
            if schema is not None:
                request.preconditions = both_preconditions(request.preconditions, schema.conditions)
                if any(key == pack_name(channel) for key, _ in edit.put):
                    request.key_schemas += ((pack_name(channel), schema.reference),)
        return request

    def _machine_rows(self) -> list[Change]:
        if self.machine is None:
            return []
        machine = self.machine
        declared = {
            "states": machine.states,
            "initial": machine.initial,
            "final": [state for state in machine.states if state in machine.final],
            "transitions": [
                {"trigger": each.trigger, "source": each.source, "target": each.target, "via": each.via}
                for each in machine.transitions
            ],
        }
        row = Row((*self.line, MACHINE, "", ""), (self.handle.now(), msgspec.json.encode(declared).decode()))
        return [Put(LINKS, row)]

    async def record_refusal(self, event: Event, known: StepRef | None) -> tuple[StepRef, StepRef] | None:
        """Append a step that changes nothing, with the event of a refused transition. Returns the step that it follows,
        and the new one; None if the agent was never saved, or the one with the known step was deleted."""
        permit, engine = await self.allow("write"), self.handle.engine
        while True:
            newest = await self.latest_step()
            if newest is None or (known is not None and not await self.is_ancestor(known, newest)):
                return None
            head = await engine.step_info.head(self.line, newest)
            summary = summary_of(self.handle.codec.unpack(head.header.metadata))
            id = new_id(self.handle.now(), newest.id)
            request = self.build_request(REFUSED, Delta(), newest, summary, [event], permit, id)
            try:
                (point,) = await self.save(request)
            except ConflictError as conflict:
                await self.check_restored(newest, conflict)
                continue  # another save was first: each time, it was one that succeeded
            return newest, point

    def _require_newest(self, point: StepRef | None, skipped: StepRef | None) -> Preconditions:
        """Return the condition that a step is still the newest. The cached tip of the line is trusted at first, and the
        store is read only if it differs."""

        async def check(again: bool) -> list[Change]:
            lines = self.handle.engine.lines
            tip = None if again else lines.cached_tip(self.line)
            newest = tip.point if tip is not None else await lines.latest_step(self.line)
            if (newest and newest.id) != (point and point.id):
                newest = await lines.latest_step(self.line)
            if (newest and newest.id) != (point and point.id):
                raise self.conflict_error()
            # The new step itself occupies the position after its parent; nothing may follow a skipped one.
            return [Expect(STEPS, (*self.line, skipped.branch, skipped.seq + 1), None)] if skipped is not None else []

        return check

    async def call_hooks(self, hook: str, metadata: Mapping[str, Any], value: Any = MISSING) -> FeatureHooks:
        """Call the hooks before a change of the agent. Raises `VetoError`."""
        handle, scope, trace = self.handle, str(self.scope), trace_context.current_or_new()
        actor = handle.guard.actor
        return await call_feature_hooks(
            handle.engine, hook, scope=scope, key=self.id, value=value, actor=actor, trace=trace, metadata=metadata
        )

    async def save(self, *requests: AppendRequest) -> list[StepRef]:
        """Append steps, all or none. Raises `ConflictError` if another step follows the parent of one of them."""
        try:
            heads = await self.handle.engine.writer.save(*requests)
        except (ConflictError, NotFoundError) as error:
            if error.code.startswith(("schema-", "migration-", "store-restored", "claim-lost")):
                raise
            raise self.conflict_error() from error
        self.machine = None
        return [head.point for head in heads]

    async def check_restored(self, base: StepRef | None, conflict: ConflictError) -> None:
        """Raise if a save had a conflict because the agent was restored in place after the step that it follows."""
        if conflict.code == "store-restored":
            raise conflict
        generations = self.handle.engine.lines.generations
        if base is not None and await generations.is_restored_after(self.line, base.time):
            raise restored_error(self.where) from conflict

    def conflict_error(self) -> ConflictError:
        """Build the error for a save that another one preceded."""
        return ConflictError(
            "another process has saved or deleted the agent", where=self.where, hint=HINT, code="agent-conflict"
        )

    @property
    def where(self) -> str:
        """The agent's name for errors."""
        return f"agent {self.id!r}"

    def not_found_error(self) -> NotFoundError:
        """Build the error for an agent that was never saved."""
        return NotFoundError("there is no such agent", where=self.where, hint="See store.agents.list()")


def require_parts(value: object) -> dict[str, Mapping[str, Any]]:
    """Return the parts of an agent's state as hooks left it. Raises `InvalidError` if one is not a dict."""
    state = validation.require_mapping(value, "state of the agent, as a hook left it")
    left = "of the agent, as a hook left it"
    return {name: validation.require_mapping(state.get(name, {}), f"{name} {left}") for name in DICTS}


def summary_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary in the metadata of a step."""
    return {name: metadata[name] for name in _SUMMARY if name in metadata}


def agent_id(line: Line) -> str | None:
    """Return the id of the agent of a line; None if it is not an agent's."""
    if not line.name.startswith(PREFIX):
        return None
    return Scope.parse("agent:" + line.name.removeprefix(PREFIX)).parts[0].name
