"""Falling back: where the newest state of an agent is damaged, it goes on from the last one that reads well.

It goes on by a branch of its line that has a name: of two who fall back at once, one is first, and the other takes on
what that one made. The damaged steps stay where they are, for whoever repairs the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.agents.record import AgentRecord
from holdfast.checkpoints import to_datetime
from holdfast.engine.layout import Layout
from holdfast.engine.records import Point
from holdfast.errors import Conflict, Corrupt, NotFound

if TYPE_CHECKING:
    from holdfast.agents.keeper import Keeper
    from holdfast.agents.lines import AgentLine


class Good(NamedTuple):
    """The last step that reads well, and the ids of those after it, the newest first."""

    point: Point
    record: AgentRecord
    lost: tuple[str, ...]


async def read_whole(line: AgentLine, point: Point) -> AgentRecord:
    """An agent as a step left it; `Corrupt` if any of that cannot be read, be it an old message."""
    record = await line.record(point)
    await line.messages(point)
    return record


async def last_good(line: AgentLine, newest: Point, error: Corrupt) -> Good:
    """The last state of an agent that reads well before its newest, which does not. Raises the error if there is
    none."""
    layout = Layout(await line.handle.engine.lines.branches(line.line))
    lost = [newest.id]
    for depth in range(newest.depth - 1, -1, -1):
        try:
            point = await line.handle.engine.lines.find(line.line, layout.along(newest.branch, depth))
        except NotFound:
            continue  # it was pruned
        try:
            return Good(point, await read_whole(line, point), tuple(lost))
        except Corrupt:
            lost.append(point.id)
    raise error


async def fall_back(keeper: Keeper, newest: Point, error: Corrupt) -> AgentRecord | None:
    """Have an agent take on the last state that reads well, and save it as the newest. None if another was first."""
    from holdfast.agents.recovery import Recovery, tell, told  # it rests on the keeper

    line = keeper.line
    permit = await line.allow("write")
    good = await last_good(line, newest, error)
    record = await keeper.load(good.point)
    since = to_datetime(newest.time)
    version, lost = newest.depth + 1, good.lost
    found = Recovery(line.id, "fell-back", "back", keeper.now(), since, version, record.pending, lost=lost)
    try:
        await keeper.sent(keeper.attempt("recovery", keeper.take(), [told(line, found)], permit, instead_of=newest))
    except Conflict:
        return None
    await tell(keeper.phases, found)
    return record
