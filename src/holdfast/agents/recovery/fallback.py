"""Load the newest state of an agent, or the last readable one if the newest is damaged.

An agent that falls back continues on a branch of its line that is named after the damaged step: of two processes
that fall back at once, one is first, and the other loads what that one saved. The damaged steps stay in the store, for
a repair.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.two_phase import Recovery, recovery_event
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import AgentRecord
from holdfast.backends.runtime.metric_families import RECOVERIES
from holdfast.engine.branch_graph import BranchGraph
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import StepRef
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, NotFoundError


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
