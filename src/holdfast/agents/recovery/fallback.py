"""Taking on what was saved last; or, where that is damaged, the last state that reads well.

An agent that falls back goes on by a branch of its line that has a name: of two who fall back at once, one is first,
and the other takes on what that one made. The damaged steps stay where they are, for whoever repairs the store.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.recovery_report import Recovery, tell, told
from holdfast.agents.runtime.two_phase import Lifecycle
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import AgentRecord
from holdfast.engine.branch_graph import BranchGraph
from holdfast.engine.row_format import StepRef
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, NotFoundError

_ATTEMPTS = 1000
"""How often an agent is read anew because others changed it meanwhile."""


class ReadableStep(NamedTuple):
    """The last step that reads well, and the ids of those after it, the newest first."""

    point: StepRef
    record: AgentRecord
    lost: tuple[str, ...]


async def read_whole(line: AgentLine, point: StepRef) -> AgentRecord:
    """An agent as a step left it; `CorruptError` if any of that cannot be read, be it an old message."""
    record = await line.record(point)
    await line.messages(point)
    return record


async def last_good(line: AgentLine, newest: StepRef, error: CorruptError) -> ReadableStep:
    """The last state of an agent that reads well before its newest, which does not. Raises the error if there is
    none."""
    layout = BranchGraph(await line.handle.engine.lines.branches(line.line))
    lost = [newest.id]
    for depth in range(newest.depth - 1, -1, -1):
        try:
            point = await line.handle.engine.lines.find(line.line, layout.along(newest.branch, depth))
        except NotFoundError:
            continue  # it was pruned
        try:
            return ReadableStep(point, await read_whole(line, point), tuple(lost))
        except CorruptError:
            lost.append(point.id)
    raise error


async def _fall_back(keeper: AgentPersister, newest: StepRef, error: CorruptError) -> AgentRecord | None:
    """Have an agent take on the last state that reads well, and save it as the newest. None if another was first."""
    line = keeper.line
    permit = await line.allow("write")
    good = await last_good(line, newest, error)
    record = await keeper.load(good.point)
    since = to_datetime(newest.time)
    version, lost = newest.depth + 1, good.lost
    found = Recovery(line.id, "fell-back", "back", keeper.now(), since, version, record.pending, lost=lost)
    try:
        await keeper.sent(keeper.attempt("recovery", keeper.take(), [told(line, found)], permit, instead_of=newest))
    except ConflictError:
        return None
    await tell(keeper.phases, found)
    return record


async def reload(keeper: AgentPersister) -> AgentRecord | None:
    """Have an agent take on what was saved last, if anything was. Where that is damaged, it is as was agreed: an error,
    or the last state that reads well."""
    line, last_good = keeper.line, keeper.settings.on_corrupt == "last-good"
    for _ in range(_ATTEMPTS):
        newest = await line.newest()
        if newest is None:
            return None
        try:
            if last_good:
                await line.messages(newest)  # what cannot be read is found now, and not later
            return await keeper.load(newest)
        except NotFoundError:
            if await line.newest() == newest:
                raise
            continue  # it was pruned or deleted meanwhile
        except CorruptError as error:
            if not last_good:
                raise
            record = await _fall_back(keeper, newest, error)
            if record is not None:
                return record
    raise ConflictError("the agent changes all the time", where=keeper.where, hint="Try again", code="agent-conflict")


async def renew(phases: Lifecycle, *, always: bool = False) -> None:
    """Have an agent take on what was saved last, if this object does not know of it; or always."""
    keeper = phases.keeper
    await phases.settle()
    newest = await keeper.line.newest()
    same = newest is None or (keeper.point is not None and keeper.point.id == newest.id)
    if always or not same:
        await reload(keeper)
        phases.ours, phases.done = phases.ours and same, None
