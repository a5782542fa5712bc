"""Recovery: what is found of an agent that did not end as it should, and what becomes of it."""

from __future__ import annotations

import time as clocks
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holdfast.agents.calling import called
from holdfast.agents.history import become, beginning, notes
from holdfast.agents.lines import Delta
from holdfast.agents.machine import POLICIES, OnIncomplete, Transition
from holdfast.agents.phases import LIFECYCLE, Change, Done, Phases, incomplete, status_of, way_of
from holdfast.agents.record import PENDING, AgentRecord, Pending, Standing, Status
from holdfast.checkpoints import to_datetime
from holdfast.errors import Conflict, Invalid, NotFound
from holdfast.model.operations import Set
from holdfast.model.packed import flatten, pack_state, unpack_name
from holdfast.security import tracing
from holdfast.security.events import Event

if TYPE_CHECKING:
    from holdfast.agents.lines import AgentLine

Kind: TypeAlias = Literal["crashed", "transition", "lifecycle", "transfer", "fell-back"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Something that was found half-done, and what became of it."""

    agent: str
    """The id of the agent."""
    kind: Kind
    """`crashed`: the record says that it runs, and nobody runs it. `transition`, `lifecycle` and `transfer`: such a
    change was under way. `fell-back`: its newest state could not be read."""
    resolved: Literal["back", "forward", "none"]
    """Whether it was taken back or finished; `none` where there was nothing to resolve."""
    time: datetime
    """When that was."""
    since: datetime
    """When what was under way had begun; or when the agent was last saved."""
    version: int
    """The version that was found."""
    pending: Pending | None = None
    """What was under way."""
    ran: bool = False
    """Whether the action was run, or its end was known. If it was finished and this is false, it was finished without
    the action."""
    lost: tuple[str, ...] = ()
    """The ids of steps that could not be read, the newest first."""

    def __str__(self) -> str:
        if self.pending is None:
            return f"agent {self.agent!r}: {self.kind}, since {self.since.isoformat(timespec='seconds')}"
        pending = self.pending
        how = {"back": "taken back", "forward": "finished", "none": "left"}[self.resolved]
        how += ", without its action" if self.resolved == "forward" and not self.ran else ""
        return f"agent {self.agent!r}: {pending.kind} {pending.trigger!r} {pending.source} → {pending.target}: {how}"


def told(line: AgentLine, recovery: Recovery) -> Event:
    """The row that tells of a recovery."""
    pending = recovery.pending
    detail: dict[str, Any] = {"since": recovery.since, "version": recovery.version, "ran": recovery.ran}
    if pending is not None:
        detail |= {"trigger": pending.trigger, "from": pending.source, "to": pending.target, "data": pending.data}
        detail |= {"correlation": pending.correlation}
    if recovery.lost:
        detail["lost"] = list(recovery.lost)
    guard, pack = line.handle.guard, line.handle.codec.pack
    return Event("recovery", guard.actor, recovery.kind, line.id, recovery.resolved, detail=pack(detail))


async def tell(phases: Phases, recovery: Recovery) -> None:
    """Have the agent know of a recovery."""
    phases.recoveries.append(recovery)
    handler = phases.keeper.method("handle_recovery")
    if handler is not None:
        await called(handler, recovery)


# A live agent -------------------------------------------------------------------------------------------------


async def recover(phases: Phases, how: OnIncomplete | None = None) -> list[Recovery]:
    """Resolve what is found half-done: as the caller says, or as the policy does. An empty list if nothing is."""
    if how is not None:
        check_how(how)
    begun = phases.keeper.data.pending
    await phases.settle()
    pending = phases.keeper.data.pending
    if phases.done is not None and (pending is None or how != "back"):
        return [await _finished(phases, phases.done)]
    if pending is None:
        return await _crashed(phases) if begun is None else []  # that it failed is saved by now
    with tracing.correlation(pending.correlation or None):
        return [await _resolved(phases, pending, how)]


async def _finished(phases: Phases, done: Done) -> Recovery:
    """The action was done by this very object, and only that it was could not be saved."""
    keeper = phases.keeper
    recovery = _found(phases, done.change.pending, "forward", ran=True)
    with tracing.correlation(done.change.pending.correlation or None):
        if keeper.data.pending is None:
            await keeper.commit("recovery", [told(keeper.line, recovery)])
            phases.done = None
        else:
            await phases.finish(done, [told(keeper.line, recovery)])
    await tell(phases, recovery)
    return recovery


async def _crashed(phases: Phases) -> list[Recovery]:
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


async def _resolved(phases: Phases, pending: Pending, how: OnIncomplete | None) -> Recovery:
    keeper = phases.keeper
    # What the action has changed so far was never saved, and does not count. A transfer has none.
    await phases.renew(always=pending.kind != "transfer")
    if keeper.data.pending != pending:
        raise Conflict(
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
        return await _transfer(phases, pending, policy)
    if policy == "forward":
        return await _forward(phases, pending)
    recovery = _found(phases, pending, "back")
    events = [phases.event(pending, clocks.perf_counter_ns(), _BACK), told(keeper.line, recovery)]
    standing = _back(keeper.data.standing, pending, live=phases.ours)
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


async def _forward(phases: Phases, pending: Pending) -> Recovery:
    """Do the action again, and finish it."""
    keeper, started = phases.keeper, clocks.perf_counter_ns()
    way = _way(phases, pending)
    if way is None:
        raise incomplete(
            pending,
            phases.where,
            f"The machine knows it no more. Resolve it: store.agents.resolve({keeper.line.id!r}, 'back' or 'forward')",
        )
    change: Change = (phases.transiting if pending.kind == "transition" else phases.living)(way, pending)
    if pending.kind == "transition" and not phases.ours:
        change = _at_rest(change)
    recovery, failed = (_found(phases, pending, each, ran=True) for each in ("forward", "back"))
    try:
        await phases.act(change, started, [told(keeper.line, failed)])
    except Exception:
        if keeper.data.pending is None:  # that it failed again is saved
            phases.recoveries.append(failed)
        raise
    await phases.finish(Done(change, started, ""), [told(keeper.line, recovery)])
    phases.ours = phases.ours or pending.kind == "lifecycle"
    await tell(phases, recovery)
    return recovery


async def _transfer(phases: Phases, pending: Pending, how: OnIncomplete) -> Recovery:
    from holdfast.agents.transfer import recover_transfer  # it rests on this module

    found = _found(phases, pending, "none")
    resolved, ran = await recover_transfer(phases.keeper, "forward" if how == "forward" else "back")
    recovery = Recovery(found.agent, "transfer", resolved, found.time, found.since, found.version, pending, ran)
    await tell(phases, recovery)
    return recovery


def _found(phases: Phases, pending: Pending, how: Literal["back", "forward", "none"], *, ran: bool = False) -> Recovery:
    keeper = phases.keeper
    return Recovery(keeper.line.id, kind_of(pending), how, keeper.now(), pending.time, keeper.version, pending, ran)


def _policy(phases: Phases, pending: Pending) -> OnIncomplete:
    way = _way(phases, pending) if pending.kind == "transition" else None
    return (None if way is None else way.on_incomplete) or phases.keeper.settings.on_incomplete


def _way(phases: Phases, pending: Pending) -> Transition | None:
    """The transition that was under way, if it is still declared."""
    if pending.kind == "lifecycle":
        # A start after a recovery goes from whichever status that left.
        return next((way for way in LIFECYCLE.transitions if way.trigger == pending.trigger), None)
    machine = phases.keeper.spec.machine
    return None if machine is None else way_of(machine, pending)


def _at_rest(change: Change) -> Change:
    """The same, of an agent that nobody runs any more."""
    return change._replace(after=_rested(change.after), failed=_rested(change.failed))


def _back(standing: Standing, pending: Pending, *, live: bool) -> Standing:
    """Where an agent stands after something was taken back."""
    if pending.kind == "lifecycle":
        standing = standing._replace(status=status_of(pending.source))
    else:
        standing = standing._replace(state=pending.source)
    return standing._replace(pending=None) if live else _rested(standing._replace(pending=None))


def _rested(standing: Standing) -> Standing:
    return standing if standing.status in _AT_REST else standing._replace(status="stopped")


_AT_REST: tuple[Status, ...] = ("created", "paused", "stopped", "failed")
"""What the record of an agent says that nobody runs."""

_BACK = "interrupted, and taken back"


# By hand ------------------------------------------------------------------------------------------------------


def check_how(how: str) -> None:
    """`Invalid` if that is no way to resolve something."""
    if how not in POLICIES:
        raise Invalid(f"something half-done is resolved by 'back' or 'forward', not {how!r}")


def kind_of(pending: Pending) -> Kind:
    """The kind of recovery that it takes."""
    return {"transition": "transition", "transfer": "transfer"}.get(pending.kind, "lifecycle")  # type: ignore[return-value]


async def resolve(line: AgentLine, how: Literal["back", "forward"]) -> Recovery:
    """Resolve what is half-done in the record of an agent, without its code: taken back, or finished without its action
    being run. `NotFound` if nothing is half-done.

    If the agent is alive after all, and in the middle of it, it gets `Conflict` when it wants to finish.
    """
    if how not in ("back", "forward"):
        raise Invalid(f"something half-done is resolved by 'back' or 'forward', not {how!r}")
    permit = await line.allow("write")
    point = await line.point()
    record = await line.record(point)
    pending = record.pending
    if pending is None:
        raise NotFound("nothing is half-done", where=f"agent {line.id!r}", hint="There is nothing to resolve")
    if pending.kind == "transfer":
        return await _transfer_by_hand(line, record, pending, how)
    recovery = Recovery(
        line.id, kind_of(pending), how, to_datetime(line.handle.now()), pending.time, record.version, pending
    )
    with tracing.correlation(pending.correlation or None):
        standing = _by_hand(record, pending, how)
        events = [_changed(line, pending, how), told(line, recovery)]
        begun = point if how == "forward" else await beginning(line, point, f"{pending.kind}.begin")
        if begun.id == point.id:
            about = notes(line, record, standing)
            await line.save(line.saving("recovery", _moved(line, standing), point, about, events, permit))
        else:
            await become(line, begun, point, standing, "recovery", events, permit)
    return recovery


def _moved(line: AgentLine, standing: Standing) -> Delta:
    packed = pack_state(line.handle.codec, {"status": standing.status, "state": standing.state})
    return Delta({unpack_name(name): Set(flatten(value)) for name, value in packed.items()}, [PENDING])


def _by_hand(record: AgentRecord, pending: Pending, how: str) -> Standing:
    standing = Standing(record.status, record.state, pending)
    if how == "back":
        return _back(standing, pending, live=True)
    if pending.kind == "lifecycle":
        return Standing(status_of(pending.target), record.state)
    return Standing(record.status, pending.target)


def _changed(line: AgentLine, pending: Pending, how: str) -> Event:
    """The row that tells what became of the change itself."""
    detail: dict[str, Any] = {"from": pending.source, "to": pending.target, "data": pending.data}
    detail |= {"error": _BACK} if how == "back" else {"unrun": True}
    outcome = "error" if how == "back" else "ok"
    target = f"{pending.source} → {pending.target}"
    handle = line.handle
    return Event(pending.kind, handle.guard.actor, pending.trigger, target, outcome, detail=handle.codec.pack(detail))


async def _transfer_by_hand(
    line: AgentLine, record: AgentRecord, pending: Pending, how: Literal["back", "forward"]
) -> Recovery:
    from holdfast.agents.reviving import inert
    from holdfast.agents.transfer import recover_transfer

    resolved, ran = await recover_transfer(await inert(line), how)
    since = pending.time
    return Recovery(line.id, "transfer", resolved, to_datetime(line.handle.now()), since, record.version, pending, ran)
