"""The transitions that an agent went through, as they were recorded: told by the rows that rode in its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.interface import Row, Scan
from holdfast.backends.tables import EVENTS
from holdfast.engine.row_format import open_event
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError

ROLLBACK = "rollback"
"""The trigger of a rollback, in the rows of transitions."""


Kind: TypeAlias = Literal["transition", "lifecycle", "recovery"]


_PAGE = 256


@dataclass(frozen=True, slots=True)
class TransitionRecord:
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
) -> list[TransitionRecord]:
    """The transitions of an agent, the newest first, or the oldest.

    A page follows the last one by the cursor of its last: given as `before` where the newest come first, and as `after`
    where the oldest do. Nothing beyond the page is read.
    """
    if type(limit) is not int or limit < 1:
        raise InvalidError(f"the limit is a number from 1 on, not {limit!r}")
    await line.allow("read")
    if before is None and after is None and await line.newest() is None:
        raise line.unknown()
    found: list[TransitionRecord] = []
    pages = TransitionPages(line, before, after, oldest_first=oldest_first, size=min(_PAGE, 2 * limit))
    while len(found) < limit and (rows := await pages.next()):
        meant = (row for row in rows if row.columns[1] == kind)
        meant = (row for row in meant if trigger in (None, row.columns[3]) and outcome in (None, row.columns[5]))
        found += [opened(line, row) for row in islice(meant, limit - len(found))]
    return found


class TransitionPages:
    """The rows of an agent's events, a page at a time."""

    def __init__(
        self, line: AgentLine, before: str | None = None, after: str | None = None, *, oldest_first: bool, size: int
    ) -> None:
        self._line = line
        self._start: tuple[Any, ...] = () if after is None else _behind(place(after))
        self._stop: tuple[Any, ...] = () if before is None else place(before)
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


def place(cursor: str) -> tuple[str, int]:
    """Where a cursor points."""
    id, between, number = cursor.rpartition(" ")
    if not between or not number.isdecimal():
        raise InvalidError("this is no cursor of transitions", where=ascii(cursor)[:80], hint="Give the cursor of one")
    return id, int(number)


def _behind(place: tuple[str, int]) -> tuple[str, int]:
    return place[0], place[1] + 1


def opened(line: AgentLine, row: Row) -> TransitionRecord:
    """What a row tells."""
    id, number = str(row.key[2]), int(row.key[3])
    time, kind, actor, action, _, outcome, correlation, cause, duration = row.columns
    detail: Mapping[str, Any] = {}
    if row.body:
        packed = open_event(line.line, id, number, row.body, line.handle.engine.ground.max_bytes)
        detail = line.handle.codec.unpack(packed)
    known: Kind = "lifecycle" if kind == "lifecycle" else "recovery" if kind == "recovery" else "transition"
    return TransitionRecord(
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


class TransitionKey(NamedTuple):
    """From where, by what, to where."""

    source: str
    trigger: str
    target: str


@dataclass(frozen=True, slots=True)
class TransitionCounts:
    """How often an agent took each transition, failed to, and came into each state."""

    taken: Counter[TransitionKey]
    failed: Counter[TransitionKey]
    entered: Counter[str]


def counts(changes: Iterable[TransitionRecord]) -> TransitionCounts:
    """Count what was recorded."""
    found = TransitionCounts(Counter(), Counter(), Counter())
    for each in changes:
        way = TransitionKey(each.source, each.trigger, each.target)
        if each.ok:
            found.taken[way] += 1
            found.entered[each.target] += 1
        else:
            found.failed[way] += 1
    return found


async def counted(line: AgentLine, kind: Kind = "transition") -> TransitionCounts:
    """Count all transitions of an agent. They are read a page at a time."""
    await line.allow("read")
    total, pages = counts(()), TransitionPages(line, oldest_first=True, size=_PAGE)
    while rows := await pages.next():
        more = counts(opened(line, row) for row in rows if row.columns[1] == kind)
        total.taken.update(more.taken)
        total.failed.update(more.failed)
        total.entered.update(more.entered)
    return total
