"""A live agent: started, and resumed, with what is found half-done resolved first."""

from __future__ import annotations

import time as clocks
from typing import Literal

from holdfast.agents.definition.state_machine import POLICIES, OnIncomplete, Transition
from holdfast.agents.recovery.fallback import renew
from holdfast.agents.recovery.rollback import become, beginning
from holdfast.agents.runtime.placeholder import Revive
from holdfast.agents.runtime.recovery_report import Recovery, kind_of, tell, told
from holdfast.agents.runtime.two_phase import (
    LIFECYCLE,
    Lifecycle,
    TwoPhaseChange,
    UnsavedResult,
    incomplete,
    status_of,
    way_of,
)
from holdfast.agents.storage.record import AgentPosition, PendingChange, Status
from holdfast.agents.transfer.recovery import recover_transfer
from holdfast.engine import trace_context
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, InvalidError


async def start(phases: Lifecycle, revive: Revive) -> None:
    """Start an agent, as it was saved last; what is found half-done is resolved first."""
    async with phases.exclusive("the start"):
        await renew(phases)
        found = await _recover(phases, revive)
        if not (found and phases.ours and phases.keeper.data.status == "running"):
            await phases.live("start", also=bool(found))


async def resume(phases: Lifecycle, revive: Revive) -> None:
    """Have an agent go on where it was paused; also in another process."""
    async with phases.exclusive("the resumption"):
        await renew(phases)
        found = await _recover(phases, revive) if phases.keeper.data.pending is not None else []
        if not (found and phases.ours and phases.keeper.data.status == "running"):
            await phases.live("resume")


async def recover(phases: Lifecycle, revive: Revive, how: OnIncomplete | None = None) -> list[Recovery]:
    """Resolve what was interrupted: as the policy says, or as the caller does."""
    async with phases.exclusive("the recovery"):
        return await _recover(phases, revive, how)


async def _recover(phases: Lifecycle, revive: Revive, how: OnIncomplete | None = None) -> list[Recovery]:
    """An empty list if nothing is half-done."""
    if how not in (None, *POLICIES):
        raise InvalidError(f"something half-done is resolved by 'back' or 'forward', not {how!r}")
    begun = phases.keeper.data.pending
    await phases.settle()
    pending = phases.keeper.data.pending
    if phases.done is not None and (pending is None or how != "back"):
        return [await _finished(phases, phases.done)]
    if pending is None:
        return await _crashed(phases) if begun is None else []  # that it failed is saved by now
    with trace_context.correlation(pending.correlation or None):
        return [await _resolved(phases, pending, revive, how)]


async def _finished(phases: Lifecycle, done: UnsavedResult) -> Recovery:
    """The action was done by this very object, and only that it was could not be saved."""
    keeper = phases.keeper
    recovery = _found(phases, done.change.pending, "forward", ran=True)
    with trace_context.correlation(done.change.pending.correlation or None):
        if keeper.data.pending is None:
            await keeper.commit("recovery", [told(keeper.line, recovery)])
            phases.done = None
        else:
            await phases.finish(done, [told(keeper.line, recovery)])
    await tell(phases, recovery)
    return recovery


async def _crashed(phases: Lifecycle) -> list[Recovery]:
    """The record may say that the agent runs, which it did in another life."""
    keeper = phases.keeper
    if phases.ours or keeper.point is None or keeper.data.status in _AT_REST:
        return []
    since = to_datetime(keeper.point.time)
    recovery = Recovery(keeper.line.id, "crashed", "none", keeper.now(), since, keeper.version)
    standing = keeper.data.standing._replace(status="stopped")
    await keeper.commit("recovery", [told(keeper.line, recovery)], standing=standing)
    await tell(phases, recovery)
    return [recovery]


async def _resolved(phases: Lifecycle, pending: PendingChange, revive: Revive, how: OnIncomplete | None) -> Recovery:
    keeper = phases.keeper
    # What the action has changed so far was never saved, and does not count. A transfer has none.
    await renew(phases, always=pending.kind != "transfer")
    if keeper.data.pending != pending:
        raise ConflictError(
            "what was half-done was resolved by another meanwhile",
            where=phases.where,
            hint="The agent is now as it was saved: go on, or start it",
            code="agent-conflict",
        )
    policy = how or _policy(phases, pending)
    # What was received is only to be acknowledged: there is nothing to decide.
    if policy == "manual" and pending.phase != "received":
        raise incomplete(
            pending, phases.where, f"Resolve it: store.agents.resolve({keeper.line.id!r}, 'back' or 'forward')"
        )
    if pending.kind == "transfer":
        return await _transfer(phases, pending, revive, policy)
    if policy == "forward":
        return await _forward(phases, pending)
    recovery = _found(phases, pending, "back")
    events = [phases.event(pending, clocks.perf_counter_ns(), TAKEN_BACK), told(keeper.line, recovery)]
    standing = taken_back(keeper.data.standing, pending, live=phases.ours)
    newest = await keeper.line.point()
    begun = await beginning(keeper.line, newest, f"{pending.kind}.begin")
    if begun.id == newest.id:
        await keeper.commit("recovery", events, standing=standing)
    else:
        # The agent was saved in the middle of the action. That is taken back, too.
        async with keeper.turns.turn():
            permit = await keeper.line.allow("write")
            made = await become(keeper.line, begun, newest, standing, "recovery", events, permit)
            await keeper.load(made)
    await tell(phases, recovery)
    return recovery


async def _forward(phases: Lifecycle, pending: PendingChange) -> Recovery:
    """Do the action again, and finish it."""
    keeper, started = phases.keeper, clocks.perf_counter_ns()
    way = _way(phases, pending)
    if way is None:
        raise incomplete(
            pending,
            phases.where,
            f"The machine knows it no more. Resolve it: store.agents.resolve({keeper.line.id!r}, 'back' or 'forward')",
        )
    change: TwoPhaseChange = (phases.transiting if pending.kind == "transition" else phases.living)(way, pending)
    if pending.kind == "transition" and not phases.ours:
        change = _at_rest(change)
    recovery, failed = (_found(phases, pending, each, ran=True) for each in ("forward", "back"))
    try:
        await phases.act(change, started, [told(keeper.line, failed)])
    except Exception:
        if keeper.data.pending is None:  # that it failed again is saved
            phases.recoveries.append(failed)
        raise
    await phases.finish(UnsavedResult(change, started, ""), [told(keeper.line, recovery)])
    phases.ours = phases.ours or pending.kind == "lifecycle"
    await tell(phases, recovery)
    return recovery


async def _transfer(phases: Lifecycle, pending: PendingChange, revive: Revive, how: OnIncomplete) -> Recovery:
    found = _found(phases, pending, "none")
    resolved, ran = await recover_transfer(phases.keeper, "forward" if how == "forward" else "back", revive)
    recovery = Recovery(found.agent, "transfer", resolved, found.time, found.since, found.version, pending, ran)
    await tell(phases, recovery)
    return recovery


def _found(
    phases: Lifecycle, pending: PendingChange, how: Literal["back", "forward", "none"], *, ran: bool = False
) -> Recovery:
    keeper = phases.keeper
    return Recovery(keeper.line.id, kind_of(pending), how, keeper.now(), pending.time, keeper.version, pending, ran)


def _policy(phases: Lifecycle, pending: PendingChange) -> OnIncomplete:
    way = _way(phases, pending) if pending.kind == "transition" else None
    return (None if way is None else way.on_incomplete) or phases.keeper.settings.on_incomplete


def _way(phases: Lifecycle, pending: PendingChange) -> Transition | None:
    """The transition that was under way, if it is still declared."""
    if pending.kind == "lifecycle":
        # A start after a recovery goes from whichever status that left.
        return next((way for way in LIFECYCLE.transitions if way.trigger == pending.trigger), None)
    machine = phases.keeper.spec.machine
    return None if machine is None else way_of(machine, pending)


def _at_rest(change: TwoPhaseChange) -> TwoPhaseChange:
    """The same, of an agent that nobody runs any more."""
    return change._replace(after=_rested(change.after), failed=_rested(change.failed))


def taken_back(standing: AgentPosition, pending: PendingChange, *, live: bool) -> AgentPosition:
    """Where an agent stands after something was taken back."""
    if pending.kind == "lifecycle":
        standing = standing._replace(status=status_of(pending.source))
    else:
        standing = standing._replace(state=pending.source)
    return standing._replace(pending=None) if live else _rested(standing._replace(pending=None))


def _rested(standing: AgentPosition) -> AgentPosition:
    return standing if standing.status in _AT_REST else standing._replace(status="stopped")


_AT_REST: tuple[Status, ...] = ("created", "paused", "stopped", "failed")
"""What the record of an agent says that nobody runs."""

TAKEN_BACK = "interrupted, and taken back"
"""What the row of a change says that was."""
