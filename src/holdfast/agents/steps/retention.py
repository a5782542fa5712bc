"""Deletion of durable steps: of records that ended long ago, with what came and was never waited for, and of agents
with their steps and timers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from holdfast._fields import count
from holdfast.agents.steps.once import ENDED
from holdfast.agents.steps.records import RecordedStep, StepLine
from holdfast.agents.steps.runs import list_runs
from holdfast.agents.steps.timers import cancel_timer, row_removals
from holdfast.agents.storage import listing
from holdfast.agents.storage.agent_line import AgentLine, agent_id
from holdfast.backends.interface import Change, Expect
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine import trace_context
from holdfast.engine.guard import Permit, both_preconditions
from holdfast.engine.namespaces import agent_of
from holdfast.engine.optimistic import ConcurrentChange
from holdfast.engine.row_format import Line
from holdfast.engine.run_rows import place_removals, record_scan
from holdfast.errors import DeniedError
from holdfast.security.audit.retain import remove_lines
from holdfast.security.handle import StoreHandle
from holdfast.state.reader import ScopeView, StateItem
from holdfast.state.writer import KeyWrite

_AT_ONCE = 200
"""How many keys are deleted in one step."""


class PrunedSteps(msgspec.Struct, frozen=True):
    """How many records of durable steps were deleted, or would be."""

    agents: int = 0
    """The agents that had some."""
    steps: int = 0
    waits: int = 0
    """Sleeps that are over, and waits that ended."""
    signals: int = 0
    """Signals that nobody waited for."""
    timers: int = 0
    """Timers that were due, and that nobody delivered."""


async def prune_agents(handle: StoreHandle, before: int, *, dry_run: bool) -> PrunedSteps:
    """Delete old records of all agents whose steps the caller may write."""
    total = PrunedSteps()
    async for line in _step_lines(handle):
        with suppress(DeniedError):
            await prune_line(line, before, total, dry_run=dry_run)
    return total


async def _step_lines(handle: StoreHandle) -> AsyncIterator[StepLine]:
    async for row in scan_rows(handle.engine.context.backend, LINES, (handle.tenant,), bodies=False):
        agent = agent_of(Line(*map(str, row.key)))
        id = None if agent is None else agent_id(agent)
        if id is not None:
            yield StepLine(AgentLine(handle, id))


async def prune_line(line: StepLine, before: int, total: PrunedSteps, *, dry_run: bool) -> None:
    """Delete what ended before a time, in nanoseconds since 1970, and count it."""
    await line.require("write")
    items = await line.read(lambda view: view.items())
    old = {kind: [each for each in items if _is_old(each, kind, before)] for kind in _KINDS}
    count(
        total,
        agents=any(old.values()),
        steps=len(old["step"]),
        waits=len(old["wait"]) + len(old["sleep"]),
        signals=len(old["signal"]),
        timers=len(old["timer"]),
    )
    if dry_run:
        return
    found = [item for kind in ("step", "wait", "sleep", "signal") for item in old[kind]]
    for start in range(0, len(found), _AT_ONCE):
        await _delete(line, found[start : start + _AT_ONCE])
    for item in old["timer"]:
        await cancel_timer(line, item.key.partition("/")[2])


async def find_pending(line: StepLine) -> str:
    """Return what an agent is doing or has yet to do: a step that a process runs, or something with a time that is to
    come. Empty if there is nothing."""
    now = line.agent.handle.now()
    for run in await list_runs(line):
        if not await run.has_lapsed():
            return f"step {run.key!r} is running"
    for item in await line.read(lambda view: view.items()):
        kind, _, key = item.key.partition("/")
        if kind in _KINDS and _number(_time_to_come(kind, item)) > now:
            return f"{kind} {key!r} is not over"
    return ""


def _time_to_come(kind: str, item: StateItem) -> int | datetime:
    """Return when something is due or over that has not ended; 0 if there is no such time."""
    if kind == "step":
        step = RecordedStep.of(item.key, item.value).step
        return step.due if step.state == "waiting" else 0
    value: dict[str, Any] = item.value
    if kind in ("wait", "sleep"):
        return 0 if value["ended"] else value["deadline" if kind == "wait" else "due"] or 0
    return value["due"] if kind == "timer" else 0


_KINDS = ("step", "wait", "sleep", "signal", "timer")


def _is_old(item: StateItem, kind: str, before: int) -> bool:
    if item.key.partition("/")[0] != kind:
        return False
    if kind == "step":
        step = RecordedStep.of(item.key, item.value).step
        return step.state in ENDED and 0 < step.ended < before
    value: dict[str, Any] = item.value
    if kind == "wait":
        signal = value["signal"] or {}
        return bool(value["ended"]) and 0 < _number(signal.get("time") or value["deadline"]) < before
    if kind == "sleep":
        return bool(value["ended"]) and value["due"] < before
    return bool(value["time" if kind == "signal" else "due"] < before)


def _number(time: int | datetime) -> int:
    return time if isinstance(time, int) else int(time.timestamp() * 1e9)


async def _delete(line: StepLine, items: list[StateItem]) -> None:
    """Delete keys that are still as they were, with the results of steps."""

    async def writes(view: ScopeView) -> list[KeyWrite]:
        made = []
        for item in items:
            current = await view.item(item.key)
            if current is None or current.version != item.version:
                continue
            made.append(KeyWrite(item.key, "delete"))
            result = f"result/{item.key.partition('/')[2]}"
            if item.key.startswith("step/") and await view.item(result) is not None:
                made.append(KeyWrite(result, "delete"))
        return made

    await line.write(writes)


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
            (runs,) = await handle.engine.context.backend.read([record_scan(line.line)])
            end = Expect(STEPS, (*line.line, last.branch, last.seq + 1), None)
            return [*unchanged, end, *timers, *place_removals(runs)]

        guards, steps = both_preconditions(permit.guards, require_unchanged), StepLine(line).line
        lines = [line.line, *([steps] if await handle.engine.lines.load_tip(steps) is not None else [])]
        await remove_lines(handle.engine, lines, handle.guard.actor, guards)
        hooks.call_after(newest.depth + 1, newest.id)


async def _delete_steps(line: AgentLine, permit: Permit) -> bool:
    """Delete the steps and timers of an agent that was never saved. Returns whether there are any."""
    handle, steps = line.handle, StepLine(line).line
    if await handle.engine.lines.load_tip(steps) is None:
        return False

    async def guards(again: bool) -> list[Change]:
        allowed = [] if permit.guards is None else await permit.guards(again)
        return [*allowed, Expect(LINES, tuple(line.line), None), *await row_removals(handle.engine, steps)]

    await remove_lines(handle.engine, [steps], handle.guard.actor, guards)
    return True
