"""Resolving by hand what an agent left half-done: without its code."""

from __future__ import annotations

from typing import Any, Literal

from holdfast.agents.recovery.rollback import become, beginning, notes
from holdfast.agents.recovery.startup import TAKEN_BACK, taken_back
from holdfast.agents.runtime.placeholder import Revive, inert
from holdfast.agents.runtime.recovery_report import Recovery, kind_of, told
from holdfast.agents.runtime.two_phase import status_of
from holdfast.agents.storage.agent_line import AgentLine, Delta
from holdfast.agents.storage.record import PENDING, AgentPosition, AgentRecord, PendingChange
from holdfast.agents.transfer.recovery import recover_transfer
from holdfast.engine import trace_context
from holdfast.engine.events import Event
from holdfast.engine.model.operations import Set
from holdfast.engine.model.packed_state import flatten, pack_state, unpack_name
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError


async def resolve(line: AgentLine, how: Literal["back", "forward"], revive: Revive) -> Recovery:
    """Resolve what is half-done in the record of an agent, without its code: taken back, or finished without its action
    being run. `NotFoundError` if nothing is half-done.

    If the agent is alive after all, and in the middle of it, it gets `ConflictError` when it wants to finish.
    """
    if how not in ("back", "forward"):
        raise InvalidError(f"something half-done is resolved by 'back' or 'forward', not {how!r}")
    permit = await line.allow("write")
    point = await line.point()
    record = await line.record(point)
    pending = record.pending
    if pending is None:
        raise NotFoundError("nothing is half-done", where=f"agent {line.id!r}", hint="There is nothing to resolve")
    if pending.kind == "transfer":
        return await _transfer_by_hand(line, record, pending, how, revive)
    recovery = Recovery(
        line.id, kind_of(pending), how, to_datetime(line.handle.now()), pending.time, record.version, pending
    )
    with trace_context.correlation(pending.correlation or None):
        standing = _by_hand(record, pending, how)
        events = [_changed(line, pending, how), told(line, recovery)]
        begun = point if how == "forward" else await beginning(line, point, f"{pending.kind}.begin")
        if begun.id == point.id:
            about = notes(line, record, standing)
            await line.save(line.saving("recovery", _moved(line, standing), point, about, events, permit))
        else:
            await become(line, begun, point, standing, "recovery", events, permit)
    return recovery


def _moved(line: AgentLine, standing: AgentPosition) -> Delta:
    packed = pack_state(line.handle.codec, {"status": standing.status, "state": standing.state})
    return Delta({unpack_name(name): Set(flatten(value)) for name, value in packed.items()}, [PENDING])


def _by_hand(record: AgentRecord, pending: PendingChange, how: str) -> AgentPosition:
    standing = AgentPosition(record.status, record.state, pending)
    if how == "back":
        return taken_back(standing, pending, live=True)
    if pending.kind == "lifecycle":
        return AgentPosition(status_of(pending.target), record.state)
    return AgentPosition(record.status, pending.target)


def _changed(line: AgentLine, pending: PendingChange, how: str) -> Event:
    """The row that tells what became of the change itself."""
    detail: dict[str, Any] = {"from": pending.source, "to": pending.target, "data": pending.data}
    detail |= {"error": TAKEN_BACK} if how == "back" else {"unrun": True}
    outcome = "error" if how == "back" else "ok"
    target = f"{pending.source} → {pending.target}"
    handle = line.handle
    return Event(pending.kind, handle.guard.actor, pending.trigger, target, outcome, detail=handle.codec.pack(detail))


async def _transfer_by_hand(
    line: AgentLine, record: AgentRecord, pending: PendingChange, how: Literal["back", "forward"], revive: Revive
) -> Recovery:
    resolved, ran = await recover_transfer(await inert(line), how, revive)
    since = pending.time
    return Recovery(line.id, "transfer", resolved, to_datetime(line.handle.now()), since, record.version, pending, ran)
