"""Going back to an older state of an agent, by a new step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from holdfast.agents.recovery.fallback import read_whole
from holdfast.agents.runtime.two_phase import Lifecycle, incomplete
from holdfast.agents.storage.agent_line import AgentLine, Delta
from holdfast.agents.storage.record import PENDING, AgentPosition, AgentRecord
from holdfast.agents.storage.transition_log import ROLLBACK, TransitionPages, TransitionRecord, opened
from holdfast.engine.events import Event
from holdfast.engine.guard import Permit
from holdfast.engine.ids import new_id
from holdfast.engine.model.packed_state import pack_name, pack_state
from holdfast.engine.row_format import StepRef
from holdfast.errors import CorruptError, NotFoundError

_PAGE = 256


async def roll_back(phases: Lifecycle, to: str | int) -> None:
    """Make a live agent what it was. What was not saved of it is gone."""
    async with phases.exclusive("the rollback"):
        await phases.nothing_pending()
        keeper = phases.keeper
        async with keeper.turns.turn():
            await keeper.settle()
            await keeper.load(await rollback(keeper.line, to, keeper.fits, keeper.point))


async def rollback(
    line: AgentLine,
    to: str | int,
    fits: Callable[[str, Mapping[str, Any]], None] | None = None,
    newest: StepRef | None = None,
) -> StepRef:
    """Make an agent what it was: as a version, at a checkpoint (by its id), or when it was last in a state (by its
    name). A new step is appended; nothing is rewritten, and the rollback can be rolled back.

    Its life goes on: the status stays. What is half-done has to be resolved before, and what was half-done then is not
    begun again. `fits` is asked about the state and the fields before anything is saved. If another one follows what is
    given as the newest step, `ConflictError` is raised. If the newest is damaged, it is passed over: the new step goes
    on from the one that is gone back to, and the status is that of then.
    """
    permit = await line.allow("write")
    newest = newest or await line.point()
    now: AgentRecord | None = None
    with suppress(CorruptError):
        now = await read_whole(line, newest)
    if now is not None and now.pending is not None:
        raise incomplete(now.pending, line.where, "Have it resolved first")
    point, state = await _point(line, to)
    old = await line.record(point)
    state = state or old.state
    if fits is not None:
        fits(state, old.fields)
    went: dict[str, Any] = {"version": old.version, "checkpoint": point.id}
    went |= {"damaged": newest.id} if now is None else {}
    source, status = ("", old.status) if now is None else (now.state, now.status)
    detail = line.handle.codec.pack({"from": source, "to": state, "data": went})
    event = Event("transition", line.handle.guard.actor, ROLLBACK, f"{source} → {state}", detail=detail)
    standing = AgentPosition(status, state)
    return await become(line, point, newest, standing, ROLLBACK, [event], permit, passing=now is None)


async def become(
    line: AgentLine,
    old: StepRef,
    newest: StepRef,
    standing: AgentPosition,
    kind: str,
    events: Sequence[Event],
    permit: Permit,
    *,
    passing: bool = False,
) -> StepRef:
    """Append a step whose channels are those of an older one, but for where the agent stands. It follows the newest;
    or the older one, if the newest is to be passed over."""
    record = await line.record(old)
    values = dict(await line.handle.engine.states.values(line.line, old))
    values.pop(pack_name(PENDING), None)
    values |= pack_state(line.handle.codec, {"status": standing.status, "state": standing.state})
    parent, passed, id = (old, newest, new_id(line.handle.now(), newest.id)) if passing else (newest, None, "")
    saving = line.saving(kind, Delta(), parent, notes(line, record, standing), events, permit, id, passed)
    (made,) = await line.save(replace(saving, state=values))
    return made


def notes(line: AgentLine, record: AgentRecord, standing: AgentPosition) -> dict[str, Any]:
    """What a step says of an agent that is as a record says, but stands elsewhere, in the middle of nothing."""
    standing = standing._replace(pending=None)
    return line.about(record.kind, standing, record.messages, line.handle.codec.pack(dict(record.metadata)))


async def beginning(line: AgentLine, newest: StepRef, kind: str) -> StepRef:
    """The last step of a kind, of those before the newest on its branch; the newest, if there is none."""
    last = newest
    while True:
        points = await line.handle.engine.lines.run_up(line.line, last, _PAGE)
        for point in points:
            if point.kind == kind:
                return point
        if len(points) < _PAGE:
            return newest
        last = last._replace(seq=points[-1].seq - 1)


async def _point(line: AgentLine, to: str | int) -> tuple[StepRef, str]:
    """The step that is meant; and the state, where one is."""
    if isinstance(to, int):
        return await line.point(to), ""
    lines = line.handle.engine.lines
    row = await lines.existing(line.line, to, None)
    if row is not None:
        return StepRef.of(row), ""
    pages = TransitionPages(line, oldest_first=False, size=_PAGE)
    while rows := await pages.next():
        for found in rows:
            if found.columns[1] == "transition" and found.columns[5] == "ok":
                change = opened(line, found)
                if change.source == to:
                    return await _left(line, change), to
    raise NotFoundError(
        f"the agent has no checkpoint {to!r}, and never left a state of that name",
        where=f"agent {line.id!r}",
        hint="See its transitions, or its history",
    )


async def _left(line: AgentLine, change: TransitionRecord) -> StepRef:
    """The last step in a state, of the transition out of it: with what was changed in that state, and without what the
    action changed."""
    lines = line.handle.engine.lines
    point = await lines.find(line.line, change.begun or change.checkpoint)
    if change.begun:
        return point
    head = await line.handle.engine.heads.head(line.line, point)
    if head.parent is None:
        raise NotFoundError("the step in that state was pruned", where=f"agent {line.id!r}", hint="Name another one")
    return await lines.find(line.line, head.parent)
