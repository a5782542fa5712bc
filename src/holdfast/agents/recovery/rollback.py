"""Roll an agent back to an earlier state, by a new step.

Load the newest state of an agent, or the last readable one if the newest is damaged.

An agent that falls back continues on a branch of its line that is named after the damaged step: of two processes
that fall back at once, one is first, and the other loads what that one saved. The damaged steps stay in the store, for
a repair.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import structs
from msgspec.structs import replace

from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.two_phase import Recovery, incomplete_error, recovery_event
from holdfast.agents.storage.agent_line import AgentLine, Delta, require_parts
from holdfast.agents.storage.record import DICTS, PENDING, AgentPosition, AgentRecord
from holdfast.agents.storage.transition_log import ROLLBACK, EventPages, TransitionRecord, read_row
from holdfast.backends.runtime.metric_families import RECOVERIES
from holdfast.engine.append import AppendRequest
from holdfast.engine.branch_graph import BranchGraph
from holdfast.engine.engine import Engine
from holdfast.engine.events import Event
from holdfast.engine.guard import Permit, both_preconditions
from holdfast.engine.ids import new_id
from holdfast.engine.model.packed_state import Packed, pack_name, pack_state
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import StepRef
from holdfast.engine.types import to_datetime
from holdfast.engine.value_schemas import SchemaMark
from holdfast.errors import ConflictError, CorruptError, NotFoundError
from holdfast.security.handle import StoreHandle

_PAGE = 256
_MESSAGES_SCHEMA = pack_name("conversation_schema")


async def roll_back_live(persister: AgentPersister, to: str | int) -> None:
    """Roll a live agent back. Its unsaved changes are lost."""
    async with persister.lifecycle.exclusive("the rollback"):
        await persister.lifecycle.require_nothing_pending()
        async with persister.save_lock.acquire():
            await persister.resolve_uncertain()
            await persister.schema.attach()
            check = persister.schema.check_record
            await persister.load(await roll_back(persister.line, to, check, persister.point))


async def roll_back(
    line: AgentLine,
    to: str | int,
    check: Callable[[str, Mapping[str, Any], str], Awaitable[None]] | None = None,
    newest: StepRef | None = None,
) -> StepRef:
    """Roll an agent back to a version, to a checkpoint (by its id), or to when it was last in a state (by its name). A
    new step is appended; nothing is rewritten, and the rollback can be rolled back.

    The status stays. What is half-done has to be resolved before, and what was half-done then is not begun again.
    `check` is called with the state, the fields and their schema before anything is saved. `ConflictError` is raised
    if another step follows the given newest one. If the newest is damaged, it is skipped: the new step follows the one
    that is restored, and has its status.
    """
    permit = await line.allow("write")
    newest = newest or await line.require_step()
    now = await _read_newest(line, newest)
    point, state = await _find_target(line, to)
    old = await line.read_record(point)
    state = state or old.state
    data: dict[str, Any] = {"version": old.version, "checkpoint": point.id}
    data |= {"damaged": newest.id} if now is None else {}
    source, status = ("", old.status) if now is None else (now.state, now.status)
    position = AgentPosition(status, state)
    value = {name: getattr(old, name) for name in DICTS}
    metadata = {"class": old.kind, "status": status, "state": state, "from": source, "to": state, **data}
    hooks = await line.call_hooks("agent.rollback", metadata, value)
    parts = require_parts(hooks.value)
    if check is not None:
        await check(state, parts["fields"], old.schema)
    changes = {} if hooks.value is value else parts
    events = [_rollback_event(line, source, state, data), *hooks.events]
    new = await append_old_state(line, point, newest, position, ROLLBACK, events, permit, changes, now is None)
    hooks.call_after(new.depth + 1, new.id)
    return new


async def _read_newest(line: AgentLine, newest: StepRef) -> AgentRecord | None:
    """Return the record of the newest step; None if it is damaged. `ConflictError` if something is half-done."""
    with suppress(CorruptError):
        now = await read_completely(line, newest)
        if now.pending is not None:
            raise incomplete_error(now.pending, line.where, "Have it resolved first")
        return now
    return None


def _rollback_event(line: AgentLine, source: str, target: str, data: Mapping[str, Any]) -> Event:
    detail = line.handle.codec.pack({"from": source, "to": target, "data": data})
    return Event("transition", line.handle.guard.actor, ROLLBACK, f"{source} → {target}", detail=detail)


async def append_old_state(
    line: AgentLine,
    old: StepRef,
    newest: StepRef,
    position: AgentPosition,
    kind: str,
    events: Sequence[Event],
    permit: Permit,
    changes: Mapping[str, Any] = MappingProxyType({}),
    skip_newest: bool = False,
) -> StepRef:
    """Append a step with the channels of an older one, except for the position of the agent, and other values of some.
    It follows the newest; or the older one, if the newest is to be skipped."""
    record = replace(await line.read_record(old), **changes)
    values = {**await _old_values(line, old), **pack_state(line.handle.codec, dict(changes))}
    request = await _old_state_request(line, record, values, old, newest, position, kind, events, permit, skip_newest)
    (point,) = await line.save(request)
    return point


async def _old_values(line: AgentLine, old: StepRef) -> dict[bytes, Packed]:
    """Return the channels of a step, without what was half-done."""
    values = dict(await line.handle.engine.states.values(line.line, old))
    values.pop(pack_name(PENDING), None)
    return values


async def _old_state_request(
    line: AgentLine,
    record: AgentRecord,
    values: dict[bytes, Packed],
    old: StepRef,
    newest: StepRef,
    position: AgentPosition,
    kind: str,
    events: Sequence[Event],
    permit: Permit,
    skip_newest: bool = False,
) -> AppendRequest:
    values = values | pack_state(line.handle.codec, {"status": position.status, "state": position.state})
    parent, skipped, id = (old, newest, new_id(line.handle.now(), newest.id)) if skip_newest else (newest, None, "")
    summary = summarize_record(line, record, position)
    request = line.build_request(kind, Delta(), parent, summary, events, permit, id, skipped)
    messages = SchemaMark.unpack(line.handle.codec, values.get(_MESSAGES_SCHEMA, b"\x80")).reference
    if record.schema or messages:
        from holdfast.schemas.registry import VersionUse

        use = VersionUse(line.handle.engine, line.handle.tenant, line.handle.guard.actor)
        conditions = use.conditions([record.schema, messages], line.where)
        request.preconditions = both_preconditions(request.preconditions, conditions)
    return structs.replace(request, state=values)


async def restore_request(line: AgentLine, source: Engine, point: StepRef) -> AppendRequest | None:
    """Return the request for a step with the state that an agent had at a step of it in another store, to be saved with
    others; None if it has that state. The status stays. `ConflictError` if something is half-done."""
    permit = await line.allow("write")
    newest = await line.require_step()
    now = await _read_newest(line, newest)
    there = AgentLine(StoreHandle(source, line.handle.tenant), line.id)
    old, values = await there.read_record(point), await _old_values(there, point)
    origin, status, parent = "", old.status, point
    if now is None:
        parent = await line.handle.engine.lines.find(line.line, point.id)
    else:
        origin, status = now.state, now.status
        same = {**values, **pack_state(line.handle.codec, {"status": status})}
        if same == dict(await line.handle.engine.states.values(line.line, newest)):
            return None
    event = _rollback_event(line, origin, old.state, {"version": old.version, "checkpoint": point.id})
    position = AgentPosition(status, old.state)
    return await _old_state_request(
        line, old, values, parent, newest, position, ROLLBACK, [event], permit, skip_newest=now is None
    )


def summarize_record(line: AgentLine, record: AgentRecord, position: AgentPosition) -> dict[str, Any]:
    """Return the summary of a record at another position, with no change under way."""
    position = position._replace(pending=None)
    return line.summarize(record.kind, position, record.messages, line.handle.codec.pack(dict(record.metadata)))


async def find_step(line: AgentLine, newest: StepRef, kind: str) -> StepRef:
    """Return the last step of a kind up to the newest on its branch; the newest, if there is none."""
    last = newest
    while True:
        points = await line.handle.engine.lines.run_up(line.line, last, _PAGE)
        for point in points:
            if point.kind == kind:
                return point
        if len(points) < _PAGE:
            return newest
        last = last._replace(seq=points[-1].seq - 1)


async def _find_target(line: AgentLine, to: str | int) -> tuple[StepRef, str]:
    """Return the step to restore, and the state, if `to` is the name of one."""
    if isinstance(to, int):
        return await line.require_step(to), ""
    lines = line.handle.engine.lines
    row = await lines.find_id(line.line, to, None)
    if row is not None:
        return StepRef.of(row), ""
    pages = EventPages(line)
    while rows := await pages.next():
        for row in rows:
            if row.columns[1] == "transition" and row.columns[5] == "ok":
                change = read_row(line, row)
                if change.source == to:
                    return await _last_step_before(line, change), to
    raise NotFoundError(
        f"the agent has no checkpoint {to!r}, and never left a state of that name",
        where=line.where,
        hint="See its transitions, or its history",
    )


async def _last_step_before(line: AgentLine, change: TransitionRecord) -> StepRef:
    """Return the last step in the source state of a transition: with all changes made in that state, and without those
    of the action."""
    lines = line.handle.engine.lines
    point = await lines.find(line.line, change.begin_step or change.checkpoint)
    if change.begin_step:
        return point
    head = await line.handle.engine.step_info.head(line.line, point)
    if head.parent is None:
        raise NotFoundError("the checkpoint with that state was pruned", where=line.where, hint="Name another one")
    return await lines.find(line.line, head.parent)


class ReadableStep(NamedTuple):
    """The last readable step, and the ids of those after it, the newest first."""

    point: StepRef
    record: AgentRecord
    lost: tuple[str, ...]


async def read_completely(line: AgentLine, point: StepRef) -> AgentRecord:
    """Read the record and all messages of a step. Raises `CorruptError` if any of them cannot be read."""
    record = await line.read_record(point)
    await line.read_messages(point)
    return record


async def find_readable(line: AgentLine, newest: StepRef, error: CorruptError) -> ReadableStep:
    """Find the last readable step before the newest, which is damaged. Raises the error if there is none."""
    branches = BranchGraph(await line.handle.engine.lines.branches(line.line))
    lost = [newest.id]
    for depth in range(newest.depth - 1, -1, -1):
        try:
            point = await line.handle.engine.lines.find(line.line, branches.along(newest.branch, depth))
        except NotFoundError:
            continue  # it was pruned
        try:
            return ReadableStep(point, await read_completely(line, point), tuple(lost))
        except CorruptError:
            lost.append(point.id)
    raise error


async def _fall_back(persister: AgentPersister, newest: StepRef, error: CorruptError) -> AgentRecord | None:
    """Load the last readable state, and save it as the newest. Returns None if another process was first."""
    line = persister.line
    permit = await line.allow("write")
    with line.handle.engine.context.metrics.attempt(RECOVERIES, "fell-back"):
        readable = await find_readable(line, newest, error)
    record = await persister.load(readable.point)
    since = to_datetime(newest.time)
    version, lost = newest.depth + 1, readable.lost
    recovery = Recovery(line.id, "fell-back", "back", persister.now(), since, version, record.pending, lost=lost)
    events = [recovery_event(line, recovery)]
    try:
        captured = persister.capture()
        await persister.send(persister.build_attempt("recovery", captured, events, permit, instead_of=newest))
    except ConflictError:
        return None
    await persister.lifecycle.report_recovery(recovery)
    return record


async def reload(persister: AgentPersister) -> AgentRecord | None:
    """Load the newest state of an agent, if it was ever saved. If that is damaged, `on_corrupt` decides: raise an
    error, or load the last readable state."""
    line, last_good = persister.line, persister.options.on_corrupt == "last-good"
    attempts = Attempts("loading an agent", persister.where, line.handle.engine.context.metrics, code="agent-conflict")
    while True:
        await attempts.begin()
        newest = await line.latest_step()
        if newest is None:
            return None
        try:
            if last_good:
                await line.read_messages(newest)  # to find damage now, and not later
            return await persister.load(newest)
        except NotFoundError:
            if await line.latest_step() == newest:
                raise
            continue  # it was pruned or deleted in the meantime
        except CorruptError as error:
            if not last_good:
                raise
            record = await _fall_back(persister, newest, error)
            if record is not None:
                return record


async def refresh(persister: AgentPersister, *, always: bool = False) -> None:
    """Load the newest state of an agent, if this object does not have it; or always."""
    lifecycle = persister.lifecycle
    await lifecycle.resolve_uncertain()
    newest = await persister.line.latest_step()
    is_current = newest is None or (persister.point is not None and persister.point.id == newest.id)
    if always or not is_current:
        await reload(persister)
        lifecycle.owns_status, lifecycle.unsaved_result = lifecycle.owns_status and is_current, None
