"""Looking at the audit: what was done and tried, by whom, the newest first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.backends.port import Row, Scan
from holdfast.backends.spaces import EVENTS
from holdfast.checkpoints import to_datetime
from holdfast.engine.records import Line
from holdfast.errors import Invalid
from holdfast.model.scopes import MARK, Scope
from holdfast.security.access import ACCESS
from holdfast.security.audit import detail_of
from holdfast.security.events import BETWEEN
from holdfast.security.noting import AUDIT
from holdfast.state.handles import Handle

_PAGE = 256
_FEW = 4
"""How many rows of each line are read at first, where there are many lines."""

_AT_ONCE = 200
"""How many lines are asked at a time."""

_LATE = 2 * 3600 * 10**9
"""How much earlier than the step that it is written with, at most, a read or a try was; in nanoseconds."""


class Audited(NamedTuple):
    """Something that was done or tried.

    `kind` is `change`, `hook`, `access` (rights that were given or taken), `read` or `denied`; `action` what was done,
    `outcome` how it ended. `actor` is who; empty for the store's owner. `scope` is where: a scope, or what else the
    store keeps, such as `sessions`, or `agent:writer/topic:news`. `id` is the step that it was written with; `cursor`
    is where a later look goes on.
    """

    time: datetime
    kind: str
    actor: str
    action: str
    scope: str
    key: str
    outcome: str
    correlation: str
    cause: str
    duration: float
    """In seconds."""
    detail: Mapping[str, Any]
    id: str
    cursor: str


class Question(NamedTuple):
    """What somebody wants to know. None, or an empty text, for everything."""

    actor: str | None = None
    scope: str = ""
    key: str = ""
    kind: str = ""
    action: str = ""
    outcome: str = ""
    correlation: str = ""
    since: int = 0
    until: int = 0

    def fits(self, time: int, found: Audited) -> bool:
        """Whether something is what is asked for."""
        return (
            (self.actor is None or self.actor == found.actor)
            and self.scope in ("", found.scope)
            and self.key in ("", found.key)
            and self.kind in ("", found.kind)
            and self.action in ("", found.action)
            and self.outcome in ("", found.outcome)
            and self.correlation in ("", found.correlation)
            and time >= self.since
            and (not self.until or time <= self.until)
        )


class _Place(NamedTuple):
    """Where a row is, in the order of the whole audit."""

    id: str
    line: str
    number: int

    def __str__(self) -> str:
        return f"{self.id} {self.number} {self.line}"

    @classmethod
    def parse(cls, text: object) -> _Place:
        parts = text.split(" ", 2) if isinstance(text, str) else []
        if len(parts) != 3 or not parts[1].isdecimal():
            raise Invalid("this is no cursor of the audit", where=ascii(text)[:80], hint="Give the cursor of a row")
        return cls(parts[0], parts[2], int(parts[1]))


class _Later:
    """Sorts what is newer first."""

    __slots__ = ("place", "row", "stream")

    def __init__(self, place: _Place, row: Row, stream: _Stream) -> None:
        self.place, self.row, self.stream = place, row, stream

    def __lt__(self, other: _Later) -> bool:
        return self.place > other.place


class _Stream:
    """The rows of a line, the newest first."""

    def __init__(self, handle: Handle, line: Line, after: _Place | None) -> None:
        self._handle = handle
        self.line = line
        self._rows: list[Row] = []
        self._asked = 0
        self._stop: tuple[Any, ...] = ()
        if after is not None:
            # All before a place in the order of id, line and number.
            same = (after.id, after.number) if line.name == after.line else (after.id,)
            self._stop = (after.id + "\0",) if line.name < after.line else same

    def query(self, limit: int) -> Scan:
        self._asked = limit
        return Scan(EVENTS, tuple(self.line), stop=self._stop, reverse=True, limit=limit)

    def take(self, rows: list[Row]) -> None:
        self._rows = rows[::-1]
        if len(rows) < self._asked:
            self._asked = 0
        else:
            self._stop = rows[-1].key[2:]

    async def next(self) -> _Later | None:
        if not self._rows and self._asked:
            (found,) = await self._handle.engine.ground.backend.read([self.query(_PAGE)])
            self.take(found)
        if not self._rows:
            return None
        row = self._rows.pop()
        return _Later(_Place(str(row.key[2]), self.line.name, int(row.key[3])), row, self)


async def look(handle: Handle, question: Question, limit: int, after: str | None) -> list[Audited]:
    """A page of the audit, the newest first, by when it was written."""
    place = None if after is None else _Place.parse(after)
    if question.scope:
        names: Iterable[str] = sorted({Scope.parse(question.scope).line, ACCESS, AUDIT})
        lines = [Line(handle.tenant, name) for name in names]
    else:
        lines = await handle.engine.lines.names(handle.tenant, MARK)
    streams = [_Stream(handle, line, place) for line in lines]
    first = _PAGE if len(streams) <= _FEW else _FEW
    heap: list[_Later] = []
    for start in range(0, len(streams), _AT_ONCE):
        some = streams[start : start + _AT_ONCE]
        found = await handle.engine.ground.backend.read([stream.query(first) for stream in some])
        for stream, rows in zip(some, found, strict=True):
            stream.take(rows)
            newest = await stream.next()
            if newest is not None:
                heap.append(newest)
    heapq.heapify(heap)
    page: list[Audited] = []
    while heap and len(page) < limit:
        latest = heapq.heappop(heap)
        time = int(latest.row.columns[0])
        if time < question.since - (_LATE if latest.stream.line.name == AUDIT else 0):
            continue  # and all before it in its line
        told = _told(handle, latest.stream.line, latest.row, latest.place)
        if question.fits(time, told):
            page.append(told)
        following = await latest.stream.next()
        if following is not None:
            heapq.heappush(heap, following)
    return page


def _told(handle: Handle, line: Line, row: Row, place: _Place) -> Audited:
    time, kind, actor, action, target, outcome, correlation, cause, duration = row.columns
    scope, between, key = str(target).partition(BETWEEN)
    if not between:
        scope, key = line.name.removeprefix(MARK), str(target)
    return Audited(
        to_datetime(int(time)),
        str(kind),
        str(actor),
        str(action),
        scope,
        key,
        str(outcome),
        str(correlation),
        str(cause),
        int(duration) / 1e9,
        detail_of(handle.codec, line, row, handle.engine.ground.max_bytes),
        place.id,
        str(place),
    )
