"""Start and resume a live agent, after resolving what is found half-done; or resolve it by hand, without its code."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Literal

from holdfast.agents.definition.state_machine import POLICIES, OnIncomplete, Transition
from holdfast.agents.recovery.rollback import append_old_state, find_step, refresh, summarize_record
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.placeholder import RestoreAgent, load_placeholder
from holdfast.agents.runtime.two_phase import (
    LIFECYCLE,
    Recovery,
    UnsavedResult,
    change_event,
    find_transition,
    incomplete_error,
    parse_status,
    recovery_event,
    recovery_kind,
)
from holdfast.agents.storage.agent_line import AgentLine, Delta
from holdfast.agents.storage.record import PENDING, AgentPosition, AgentRecord, PendingChange, Status
from holdfast.agents.transfer.transfer import recover_transfer
from holdfast.backends.runtime.metric_families import RECOVERIES
from holdfast.engine import trace_context
from holdfast.engine.model.operations import Set
from holdfast.engine.model.packed_state import flatten, pack_state, unpack_name
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, InvalidError, NotFoundError

_INACTIVE: tuple[Status, ...] = ("created", "paused", "stopped", "failed")
"""The statuses of an agent that no process runs."""

UNDONE_ERROR = "interrupted, and undone"
"""The error in the event of a change that was undone."""


async def start(persister: AgentPersister, restore: RestoreAgent) -> None:
    """Start an agent from its newest state, after resolving what is half-done."""
    lifecycle = persister.lifecycle
    async with lifecycle.exclusive("the start"):
        await refresh(persister)
        recoveries = await _recover(persister, restore)
        if not (recoveries and lifecycle.owns_status and persister.data.status == "running"):
            await lifecycle.change_status("start", after_recovery=bool(recoveries))


async def resume(persister: AgentPersister, restore: RestoreAgent) -> None:
    """Resume an agent where it was paused; also in another process."""
    lifecycle = persister.lifecycle
    async with lifecycle.exclusive("the resumption"):
        await refresh(persister)
        recoveries = await _recover(persister, restore) if persister.data.pending is not None else []
        if not (recoveries and lifecycle.owns_status and persister.data.status == "running"):
            await lifecycle.change_status("resume")


async def recover(persister: AgentPersister, restore: RestoreAgent, how: OnIncomplete | None = None) -> list[Recovery]:
    """Resolve what was interrupted: as `how` says, or by the agent's own policy."""
    async with persister.lifecycle.exclusive("the recovery"):
        return await _recover(persister, restore, how)


async def _recover(persister: AgentPersister, restore: RestoreAgent, how: OnIncomplete | None = None) -> list[Recovery]:
    """Return the recovery, or an empty list if nothing was half-done."""
    if how not in (None, *POLICIES):
        raise InvalidError(f"an incomplete operation can be resolved with 'back' or 'forward', not {how!r}")
    lifecycle, before = persister.lifecycle, persister.data.pending
    await lifecycle.resolve_uncertain()
    pending, result = persister.data.pending, lifecycle.unsaved_result
    attempt = persister.line.handle.engine.context.metrics.attempt
    if result is not None and (pending is None or how != "back"):
        with attempt(RECOVERIES, "unsaved result"):
            return [await _save_result(persister, result)]
    if pending is None:
        return await _recover_crash(persister) if before is None else []  # that it failed is saved by now
    with trace_context.correlation(pending.correlation or None), attempt(RECOVERIES, recovery_kind(pending)):
        return [await _resolve_pending(persister, pending, restore, how)]


async def _save_result(persister: AgentPersister, result: UnsavedResult) -> Recovery:
    """Save the result of an action that this object ran, and whose result could not be saved."""
    recovery = _build_recovery(persister, result.change.pending, "forward", ran=True)
    events = [recovery_event(persister.line, recovery)]
    with trace_context.correlation(result.change.pending.correlation or None):
        if persister.data.pending is None:
            await persister.commit("recovery", events)
            persister.lifecycle.unsaved_result = None
        else:
            await persister.lifecycle.finish(result, events)
    await persister.lifecycle.report_recovery(recovery)
    return recovery


async def _recover_crash(persister: AgentPersister) -> list[Recovery]:
    """Save that the agent is stopped, if its record says that it runs in a process that is gone."""
    if persister.lifecycle.owns_status or persister.point is None or persister.data.status in _INACTIVE:
        return []
    since = to_datetime(persister.point.time)
    recovery = Recovery(persister.line.id, "crashed", "none", persister.now(), since, persister.version)
    position = persister.data.position._replace(status="stopped")
    with persister.line.handle.engine.context.metrics.attempt(RECOVERIES, "crashed"):
        await persister.commit("recovery", [recovery_event(persister.line, recovery)], position=position)
    await persister.lifecycle.report_recovery(recovery)
    return [recovery]


async def _resolve_pending(
    persister: AgentPersister, pending: PendingChange, restore: RestoreAgent, how: OnIncomplete | None
) -> Recovery:
    lifecycle = persister.lifecycle
    # What the action has changed so far was never saved, and does not count. A transfer has no action.
    await refresh(persister, always=pending.kind != "transfer")
    if persister.data.pending != pending:
        raise ConflictError(
            "another process has resolved the pending change",
            where=persister.where,
            hint="The agent now has the saved state: continue, or start it",
            code="agent-conflict",
        )
    policy = how or _policy(persister, pending)
    # A transfer that was received is only to be acknowledged: there is nothing to decide.
    if policy == "manual" and pending.phase != "received":
        raise incomplete_error(
            pending, persister.where, f"Resolve it: store.agents.resolve({persister.line.id!r}, 'back' or 'forward')"
        )
    if pending.kind == "transfer":
        return await _resolve_transfer(persister, pending, restore, policy)
    if policy == "forward":
        return await _roll_forward(persister, pending)
    recovery = _build_recovery(persister, pending, "back")
    change = lifecycle.build_event(pending, perf_counter_ns(), UNDONE_ERROR)
    events = [change, recovery_event(persister.line, recovery)]
    position = position_before(persister.data.position, pending, live=lifecycle.owns_status)
    newest = await persister.line.require_step()
    begin_step = await find_step(persister.line, newest, f"{pending.kind}.begin")
    if begin_step.id == newest.id:
        await persister.commit("recovery", events, position=position)
    else:
        # The agent was saved in the middle of the action. That is undone, too.
        async with persister.save_lock.acquire():
            permit = await persister.line.allow("write")
            new = await append_old_state(persister.line, begin_step, newest, position, "recovery", events, permit)
            await persister.load(new)
    await lifecycle.report_recovery(recovery)
    return recovery


async def _roll_forward(persister: AgentPersister, pending: PendingChange) -> Recovery:
    """Run the action again, and finish the change."""
    lifecycle, started = persister.lifecycle, perf_counter_ns()
    transition = _find_transition(persister, pending)
    if transition is None:
        raise incomplete_error(
            pending,
            persister.where,
            "The machine no longer declares it. Resolve it: "
            f"store.agents.resolve({persister.line.id!r}, 'back' or 'forward')",
        )
    plan = lifecycle.plan_transition if pending.kind == "transition" else lifecycle.plan_status_change
    change = plan(transition, pending)
    if pending.kind == "transition" and not lifecycle.owns_status:
        change = change._replace(after=_deactivate(change.after), failed=_deactivate(change.failed))
    recovery, failure = (_build_recovery(persister, pending, each, ran=True) for each in ("forward", "back"))
    try:
        await lifecycle.run_action(change, started, [recovery_event(persister.line, failure)])
    except Exception:
        if persister.data.pending is None:  # that it failed again is saved
            lifecycle.recoveries.append(failure)
        raise
    await lifecycle.finish(UnsavedResult(change, started, ""), [recovery_event(persister.line, recovery)])
    lifecycle.owns_status = lifecycle.owns_status or pending.kind == "lifecycle"
    await lifecycle.report_recovery(recovery)
    return recovery


async def _resolve_transfer(
    persister: AgentPersister, pending: PendingChange, restore: RestoreAgent, how: OnIncomplete
) -> Recovery:
    start = _build_recovery(persister, pending, "none")
    resolved, ran = await recover_transfer(persister, "forward" if how == "forward" else "back", restore)
    recovery = Recovery(start.agent, "transfer", resolved, start.time, start.since, start.version, pending, ran)
    await persister.lifecycle.report_recovery(recovery)
    return recovery


def _build_recovery(
    persister: AgentPersister, pending: PendingChange, how: Literal["back", "forward", "none"], *, ran: bool = False
) -> Recovery:
    kind, now = recovery_kind(pending), persister.now()
    return Recovery(persister.line.id, kind, how, now, pending.time, persister.version, pending, ran)


def _policy(persister: AgentPersister, pending: PendingChange) -> OnIncomplete:
    transition = _find_transition(persister, pending) if pending.kind == "transition" else None
    return (None if transition is None else transition.on_incomplete) or persister.options.on_incomplete


def _find_transition(persister: AgentPersister, pending: PendingChange) -> Transition | None:
    """Return the transition that was under way, if it is still declared."""
    if pending.kind == "lifecycle":
        # A start after a recovery has the status that the recovery left as its source, so only the trigger counts.
        return next((each for each in LIFECYCLE.transitions if each.trigger == pending.trigger), None)
    machine = persister.spec.machine
    return None if machine is None else find_transition(machine, pending)


def position_before(position: AgentPosition, pending: PendingChange, *, live: bool) -> AgentPosition:
    """Return the position of an agent after a change is undone."""
    if pending.kind == "lifecycle":
        position = position._replace(status=parse_status(pending.source), pending=None)
    else:
        position = position._replace(state=pending.source, pending=None)
    return position if live else _deactivate(position)


def _deactivate(position: AgentPosition) -> AgentPosition:
    """Return the position of an agent that no process runs any more."""
    return position if position.status in _INACTIVE else position._replace(status="stopped")


async def resolve_manually(line: AgentLine, how: Literal["back", "forward"], restore: RestoreAgent) -> Recovery:
    """Resolve the half-done change in the record of an agent, without its code: undo it, or finish it without running
    its action. Raises `NotFoundError` if nothing is half-done.

    If a live agent is in the middle of the change after all, it gets `ConflictError` when it tries to finish.
    """
    if how not in ("back", "forward"):
        raise InvalidError(f"an incomplete operation can be resolved with 'back' or 'forward', not {how!r}")
    permit = await line.allow("write")
    point = await line.require_step()
    record = await line.read_record(point)
    pending = record.pending
    if pending is None:
        raise NotFoundError(
            "the agent has no incomplete operation", where=line.where, hint="There is nothing to resolve"
        )
    if pending.kind == "transfer":
        resolved, ran = await recover_transfer(await load_placeholder(line), how, restore)
        now = to_datetime(line.handle.now())
        return Recovery(line.id, "transfer", resolved, now, pending.time, record.version, pending, ran)
    now = to_datetime(line.handle.now())
    recovery = Recovery(line.id, recovery_kind(pending), how, now, pending.time, record.version, pending)
    with trace_context.correlation(pending.correlation or None):
        position = _resolved_position(record, pending, how)
        detail = {"error": UNDONE_ERROR} if how == "back" else {"unrun": True}
        events = [change_event(line, pending, detail), recovery_event(line, recovery)]
        begin_step = point if how == "forward" else await find_step(line, point, f"{pending.kind}.begin")
        if begin_step.id == point.id:
            summary, delta = summarize_record(line, record, position), _position_delta(line, position)
            await line.save(line.build_request("recovery", delta, point, summary, events, permit))
        else:
            await append_old_state(line, begin_step, point, position, "recovery", events, permit)
    return recovery


def _position_delta(line: AgentLine, position: AgentPosition) -> Delta:
    packed = pack_state(line.handle.codec, {"status": position.status, "state": position.state})
    return Delta({unpack_name(name): Set(flatten(value)) for name, value in packed.items()}, [PENDING])


def _resolved_position(record: AgentRecord, pending: PendingChange, how: str) -> AgentPosition:
    if how == "back":
        return position_before(AgentPosition(record.status, record.state, pending), pending, live=True)
    if pending.kind == "lifecycle":
        return AgentPosition(parse_status(pending.target), record.state)
    return AgentPosition(record.status, pending.target)
