"""Resolve by hand what an agent left half-done, without its code."""

from __future__ import annotations

from typing import Literal

from holdfast.agents.recovery.rollback import append_old_state, find_step, summarize_record
from holdfast.agents.recovery.startup import UNDONE_ERROR, position_before
from holdfast.agents.runtime.placeholder import RestoreAgent, load_placeholder
from holdfast.agents.runtime.two_phase import Recovery, change_event, parse_status, recovery_event, recovery_kind
from holdfast.agents.storage.agent_line import AgentLine, Delta
from holdfast.agents.storage.record import PENDING, AgentPosition, AgentRecord, PendingChange
from holdfast.agents.transfer.transfer import recover_transfer
from holdfast.engine import trace_context
from holdfast.engine.model.operations import Set
from holdfast.engine.model.packed_state import flatten, pack_state, unpack_name
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError


async def resolve_manually(line: AgentLine, how: Literal["back", "forward"], restore: RestoreAgent) -> Recovery:
    """Resolve the half-done change in the record of an agent, without its code: undo it, or finish it without running
    its action. Raises `NotFoundError` if nothing is half-done.

    If a live agent is in the middle of the change after all, it gets `ConflictError` when it tries to finish.
    """
    if how not in ("back", "forward"):
        raise InvalidError(f"something half-done is resolved by 'back' or 'forward', not {how!r}")
    permit = await line.allow("write")
    point = await line.require_step()
    record = await line.read_record(point)
    pending = record.pending
    if pending is None:
        raise NotFoundError("nothing is half-done", where=line.where, hint="There is nothing to resolve")
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
