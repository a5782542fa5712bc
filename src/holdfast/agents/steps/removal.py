"""Deletion of agents, with their durable steps and timers."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.agents.steps.records import StepLine
from holdfast.agents.steps.timers import row_removals
from holdfast.agents.storage import listing
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.interface import Change, Expect
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine import trace_context
from holdfast.engine.guard import Permit, both_preconditions
from holdfast.engine.optimistic import ConcurrentChange
from holdfast.security.audit.retain import remove_lines
from holdfast.security.handle import StoreHandle


async def delete_agent(handle: StoreHandle, id: str, unchanged: Sequence[Change] = ()) -> None:
    """Delete an agent; or the steps and timers of one that was never saved. With conditions that it is `unchanged`,
    `ConcurrentChange` if one does not hold."""
    line = AgentLine(handle, id)
    with trace_context.correlation():
        permit = await line.allow("write")
        if await line.latest_step() is None and await _delete_steps(line, permit):
            return
        newest = await line.require_step()
        summary = listing.read_summary(newest)
        metadata = {name: summary.get(name, "") for name in ("class", "status", "state")}
        hooks = await line.call_hooks("agent.delete", metadata)

        async def require_unchanged(again: bool) -> list[Change]:
            if again and unchanged:
                raise ConcurrentChange
            last = await handle.engine.lines.latest_step(line.line) if again else newest
            if last is None:
                raise line.not_found_error()
            timers = await row_removals(handle.engine, steps)
            return [*unchanged, Expect(STEPS, (*line.line, last.branch, last.seq + 1), None), *timers]

        guards, steps = both_preconditions(permit.guards, require_unchanged), StepLine(line).line
        lines = [line.line, *([steps] if await handle.engine.lines.latest_step(steps) is not None else [])]
        await remove_lines(handle.engine, lines, handle.guard.actor, guards)
        hooks.call_after(newest.depth + 1, newest.id)


async def _delete_steps(line: AgentLine, permit: Permit) -> bool:
    """Delete the steps and timers of an agent that was never saved. Returns whether there are any."""
    handle, steps = line.handle, StepLine(line).line
    if await handle.engine.lines.latest_step(steps) is None:
        return False

    async def guards(again: bool) -> list[Change]:
        allowed = [] if permit.guards is None else await permit.guards(again)
        return [*allowed, Expect(LINES, tuple(line.line), None), *await row_removals(handle.engine, steps)]

    await remove_lines(handle.engine, [steps], handle.guard.actor, guards)
    return True
