"""What an agent went through: its transitions as they were recorded, going back to an older state, and replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

from holdfast.agents.fallback import read_whole
from holdfast.agents.lines import AgentLine, Delta
from holdfast.agents.machine import Machine
from holdfast.agents.phases import incomplete
from holdfast.agents.record import PENDING, AgentRecord, Standing
from holdfast.backends.port import Row, Scan
from holdfast.backends.spaces import EVENTS
from holdfast.checkpoints import to_datetime
from holdfast.engine.ids import new_id
from holdfast.engine.records import Point, open_event
from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.model.packed import pack_name, pack_state
from holdfast.security.events import Event
from holdfast.security.guard import Permit

ROLLBACK = "rollback"
"""The trigger of a rollback, in the rows of transitions."""

Kind: TypeAlias = Literal["transition", "lifecycle", "recovery"]

_PAGE = 256


@dataclass(frozen=True, slots=True)
class Changed:
    """A change that an agent went through, or failed to: a transition, a change of its life, or a recovery."""

    kind: Kind
    trigger: str
    """What it was called by; of a recovery, what was found."""
    source: str
    target: str
    outcome: str
    """`ok` or `error`; of a recovery, how it was resolved."""
    time: datetime
    duration: float
    """In seconds."""
    error: str
    data: Any
    actor: str
    correlation: str
    cause: str
    checkpoint: str
    """The id of the step that it was made by."""
    begun: str
    """The id of the step that said that it was to come; empty if there was none."""
    cursor: str
    """Where it is: what `before` and `after` take."""

    @property
    def ok(self) -> bool:
        """Whether it was made."""
        return self.outcome == "ok"


# Reading ------------------------------------------------------------------------------------------------------


async def transitions(
    line: AgentLine,
    *,
    limit: int = 100,
    before: str | None = None,
    after: str | None = None,
    trigger: str | None = None,
    outcome: str | None = None,
    oldest_first: bool = False,
    kind: Kind = "transition",
) -> list[Changed]:
    """The transitions of an agent, the newest first, or the oldest.

    A page follows the last one by the cursor of its last: given as `before` where the newest come first, and as `after`
    where the oldest do. Nothing beyond the page is read.
    """
    if type(limit) is not int or limit < 1:
        raise Invalid(f"the limit is a number from 1 on, not {limit!r}")
    await line.allow("read")
    if before is None and after is None and await line.newest() is None:
        raise line.unknown()
    found: list[Changed] = []
    pages = _Pages(line, before, after, oldest_first=oldest_first, size=min(_PAGE, 2 * limit))
    while len(found) < limit and (rows := await pages.next()):
        meant = (row for row in rows if row.columns[1] == kind)
        meant = (row for row in meant if trigger in (None, row.columns[3]) and outcome in (None, row.columns[5]))
        found += [_opened(line, row) for row in islice(meant, limit - len(found))]
    return found


class _Pages:
    """The rows of an agent's events, a page at a time."""

    def __init__(
        self, line: AgentLine, before: str | None = None, after: str | None = None, *, oldest_first: bool, size: int
    ) -> None:
        self._line = line
        self._start: tuple[Any, ...] = () if after is None else _behind(_place(after))
        self._stop: tuple[Any, ...] = () if before is None else _place(before)
        self._oldest_first = oldest_first
        self._size = size
        self._more = True

    async def next(self) -> list[Row]:
        """The next page; an empty one after the last."""
        if not self._more:
            return []
        prefix, size = tuple(self._line.line), self._size
        query = Scan(EVENTS, prefix, start=self._start, stop=self._stop, reverse=not self._oldest_first, limit=size)
        (rows,) = await self._line.handle.engine.ground.backend.read([query])
        self._more, self._size = len(rows) == size, _PAGE
        if rows:
            last = (str(rows[-1].key[2]), int(rows[-1].key[3]))
            if self._oldest_first:
                self._start = _behind(last)
            else:
                self._stop = last
        return rows


def _place(cursor: str) -> tuple[str, int]:
    id, between, number = cursor.rpartition(" ")
    if not between or not number.isdecimal():
        raise Invalid("this is no cursor of transitions", where=ascii(cursor)[:80], hint="Give the cursor of one")
    return id, int(number)


def _behind(place: tuple[str, int]) -> tuple[str, int]:
    return place[0], place[1] + 1


def _opened(line: AgentLine, row: Row) -> Changed:
    id, number = str(row.key[2]), int(row.key[3])
    time, kind, actor, action, _, outcome, correlation, cause, duration = row.columns
    detail: Mapping[str, Any] = {}
    if row.body:
        packed = open_event(line.line, id, number, row.body, line.handle.engine.ground.max_bytes)
        detail = line.handle.codec.unpack(packed)
    known: Kind = "lifecycle" if kind == "lifecycle" else "recovery" if kind == "recovery" else "transition"
    return Changed(
        known,
        str(action),
        str(detail.get("from", "")),
        str(detail.get("to", "")),
        str(outcome),
        to_datetime(int(time)),
        int(duration) / 1e9,
        str(detail.get("error", "")),
        detail.get("data"),
        str(actor),
        str(correlation),
        str(cause),
        id,
        str(detail.get("begun", "")),
        f"{id} {number}",
    )


# Counting -----------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """From where, by what, to where."""

    source: str
    trigger: str
    target: str


@dataclass(frozen=True, slots=True)
class Counts:
    """How often an agent took each transition, failed to, and came into each state."""

    taken: Counter[Way]
    failed: Counter[Way]
    entered: Counter[str]


def counts(changes: Iterable[Changed]) -> Counts:
    """Count what was recorded."""
    found = Counts(Counter(), Counter(), Counter())
    for each in changes:
        way = Way(each.source, each.trigger, each.target)
        if each.ok:
            found.taken[way] += 1
            found.entered[each.target] += 1
        else:
            found.failed[way] += 1
    return found


async def counted(line: AgentLine, kind: Kind = "transition") -> Counts:
    """Count all transitions of an agent. They are read a page at a time."""
    await line.allow("read")
    total, pages = counts(()), _Pages(line, oldest_first=True, size=_PAGE)
    while rows := await pages.next():
        more = counts(_opened(line, row) for row in rows if row.columns[1] == kind)
        total.taken.update(more.taken)
        total.failed.update(more.failed)
        total.entered.update(more.entered)
    return total


# Replay -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replayed:
    """What recorded triggers come to, on a machine as it is declared now."""

    path: tuple[str, ...]
    """The states, from the first on."""
    state: str
    """The last of them."""
    matches: bool
    """Whether all went as it was recorded."""
    diverged: Changed | None = None
    """The first that did not."""
    reason: str = ""


def replay(changes: Iterable[Changed], machine: Machine) -> Replayed:
    """Apply recorded triggers to a machine, and see whether they lead where they led. Nothing is called: where guards
    decide between several ways, any of them will do.

    It ends with the first that leads elsewhere, as it may after the machine was changed. Those that failed are passed
    over; a rollback is followed.
    """
    path: list[str] = []
    for each in sorted(changes, key=lambda each: _place(each.cursor)):
        if not each.ok:
            continue
        path = path or [each.source]
        reason = _against(each, machine, path[-1])
        if reason:
            return Replayed(tuple(path), path[-1], False, each, reason)
        path.append(each.target)
    path = path or [machine.initial]
    return Replayed(tuple(path), path[-1], True)


def _against(change: Changed, machine: Machine, state: str) -> str:
    """What is not as it was recorded; empty if nothing is."""
    if change.source != state:
        return f"it is recorded from the state {change.source!r}, and the one before led to {state!r}"
    if change.target not in machine.states or state not in machine.states:
        return f"the machine has no state {(state if state not in machine.states else change.target)!r}"
    if change.trigger == ROLLBACK:
        return ""
    try:
        targets = dict.fromkeys(way.target for way in machine.ways(change.trigger, state))
    except Invalid as error:
        return error.what
    if change.target not in targets:
        return f"{change.trigger!r} leads from {state!r} to {' or '.join(map(repr, targets))}, not {change.target!r}"
    return ""


# Rollback -----------------------------------------------------------------------------------------------------


async def rollback(
    line: AgentLine,
    to: str | int,
    fits: Callable[[str, Mapping[str, Any]], None] | None = None,
    newest: Point | None = None,
) -> Point:
    """Make an agent what it was: as a version, at a checkpoint (by its id), or when it was last in a state (by its
    name). A new step is appended; nothing is rewritten, and the rollback can be rolled back.

    Its life goes on: the status stays. What is half-done has to be resolved before, and what was half-done then is not
    begun again. `fits` is asked about the state and the fields before anything is saved. If another one follows what is
    given as the newest step, `Conflict` is raised. If the newest is damaged, it is passed over: the new step goes on
    from the one that is gone back to, and the status is that of then.
    """
    permit = await line.allow("write")
    newest = newest or await line.point()
    now: AgentRecord | None = None
    with suppress(Corrupt):
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
    standing = Standing(status, state)
    return await become(line, point, newest, standing, ROLLBACK, [event], permit, passing=now is None)


async def become(
    line: AgentLine,
    old: Point,
    newest: Point,
    standing: Standing,
    kind: str,
    events: Sequence[Event],
    permit: Permit,
    *,
    passing: bool = False,
) -> Point:
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


def notes(line: AgentLine, record: AgentRecord, standing: Standing) -> dict[str, Any]:
    """What a step says of an agent that is as a record says, but stands elsewhere, in the middle of nothing."""
    standing = standing._replace(pending=None)
    return line.about(record.kind, standing, record.messages, line.handle.codec.pack(dict(record.metadata)))


async def beginning(line: AgentLine, newest: Point, kind: str) -> Point:
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


async def _point(line: AgentLine, to: str | int) -> tuple[Point, str]:
    """The step that is meant; and the state, where one is."""
    if isinstance(to, int):
        return await line.point(to), ""
    lines = line.handle.engine.lines
    row = await lines.existing(line.line, to, None)
    if row is not None:
        return Point.of(row), ""
    pages = _Pages(line, oldest_first=False, size=_PAGE)
    while rows := await pages.next():
        for found in rows:
            if found.columns[1] == "transition" and found.columns[5] == "ok":
                change = _opened(line, found)
                if change.source == to:
                    return await _left(line, change), to
    raise NotFound(
        f"the agent has no checkpoint {to!r}, and never left a state of that name",
        where=f"agent {line.id!r}",
        hint="See its transitions, or its history",
    )


async def _left(line: AgentLine, change: Changed) -> Point:
    """The last step in a state, of the transition out of it: with what was changed in that state, and without what the
    action changed."""
    lines = line.handle.engine.lines
    point = await lines.find(line.line, change.begun or change.checkpoint)
    if change.begun:
        return point
    head = await line.handle.engine.heads.head(line.line, point)
    if head.parent is None:
        raise NotFound("the step in that state was pruned", where=f"agent {line.id!r}", hint="Name another one")
    return await lines.find(line.line, head.parent)
