"""The records of sessions, how they are found, and when a session expires."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from holdfast.backends.interface import Change, Expect, Get, Query, Scan
from holdfast.backends.tables import LINES, LINKS, STEPS
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.row_format import Line, LineInfo, StepRef, info_of
from holdfast.engine.system_line import Link
from holdfast.security.handle import StoreHandle
from holdfast.state.described_records import DescribedRecord, DescribedTable
from holdfast.state.session_guard import EXPIRY, inside_key

LINE = MARK + "sessions"
"""The name of the system line that holds the records."""

OnEnd: TypeAlias = Literal["delete", "archive", "keep"]
Status: TypeAlias = Literal["active", "expired", "ended", "archived"]


_BACK = 64


@dataclass
class SessionRecord(DescribedRecord):
    """The record of a session. Times are in nanoseconds since 1970, durations in nanoseconds; 0 for none."""

    scope: str
    """The scope of the session, which ends with it, and so do all scopes inside."""
    state: str
    """The scope whose state the session uses: the same, or one inside it."""
    started: int
    ttl: int
    idle: int
    on_end: OnEnd
    retention: int
    by: str = ""
    owner: str = ""
    """The identity that owns it by a grant of its scope; empty for none."""
    grant: str = ""
    """The id of that grant."""
    ended: int = 0
    archived: bool = False
    reason: str = ""
    lines: dict[str, int] = field(default_factory=dict)
    """The lines of an archived session, and how many steps each had when it ended."""
    due: int = 0
    """When to check it again: it may expire then at the earliest. 0 for never."""
    held: bool = False
    """Whether it has expired, and could not be ended."""
    version: int = 0
    """The step that wrote the record; 0 before. It is not stored. A cached record is out of date if this differs;
    its values would not tell, since 1 equals True, and NaN does not equal itself."""

    @property
    def root(self) -> Scope:
        """The session's scope."""
        return Scope.parse(self.scope)

    @property
    def user(self) -> str:
        """The user; empty for none."""
        return next((part.name for part in self.root.parts if part.kind == "user"), "")

    def expires(self, active: int) -> int:
        """Return when the session expires, given its last activity; 0 for never."""
        ends = [self.started + self.ttl] * bool(self.ttl) + [max(active, self.started) + self.idle] * bool(self.idle)
        return min(ends, default=0)

    def links(self, id: str) -> list[Link]:
        """Return the links by which it is found."""
        kind = "active" if not self.ended else "archived" if self.archived else "ended"
        found: list[Link] = [("status", kind, id)]
        if self.user:
            found.append(("user", self.user, id))
        if self.owner:
            found.append(("owner", self.owner, id))
        if self.due:
            found.append(("due", time_key(self.due), id))
        if self.held and not self.ended:
            found.append(("status", "held", id))
        return found


def time_key(time: int) -> str:
    """Return a time as text that sorts like it."""
    return f"{time:020d}"


class SessionLine(NamedTuple):
    """A line of a session, as it was read."""

    line: Line
    info: LineInfo | None
    point: StepRef | None
    active: int
    """When it was last written; 0 for never."""
    inside_condition: Expect | None = None
    """For the line of the session's own scope: the condition that no scope was created inside since."""

    def unchanged(self) -> list[Change]:
        """Return the conditions that the line is unchanged."""
        after = 0 if self.point is None else self.point.seq + 1
        return [
            Expect(LINES, tuple(self.line), None if self.info is None else self.info.columns),
            Expect(STEPS, (*self.line, 0, after), None),
        ]


class SessionRecords(DescribedTable[SessionRecord]):
    """The records of sessions."""

    def __init__(self, handle: StoreHandle) -> None:
        super().__init__(handle, "session", LINE, SessionRecord, "Start it, or see sessions.list() for others")

    async def list_due(self) -> list[str]:
        """List the ids of sessions that may have expired, in order: few, as long as sessions are collected."""
        due = Scan(LINKS, (*self.system_line.line, "due"), stop=(time_key(self.handle.now() + 1),), bodies=False)
        held = Scan(LINKS, (*self.system_line.line, "status", "held"), bodies=False)
        pages = await self.handle.engine.context.backend.read([due, held])
        return sorted({str(row.key[4]) for rows in pages for row in rows}, key=str.encode)

    async def lines(self, roots: Sequence[Scope]) -> list[list[SessionLine]]:
        """Return the current lines of each session: first that of its own scope, which may not exist, then those of
        the scopes inside."""
        if not roots:
            return []
        engine, tenant = self.handle.engine, self.handle.tenant
        traces = await self.inside_conditions(roots)  # first: what is made while the rest is read shows in them
        named = []
        for root in roots:
            below = await engine.lines.names(tenant, root.line + "/")
            named.append([self.handle.line(root), *below])
        queries: list[Query] = []
        for lines in named:
            for line in lines:
                queries += [Get(LINES, [tuple(line)]), _last_steps(line, 1)]
        found = iter(await engine.context.backend.read(queries))
        seen = [[await self._session_line(line, next(found), next(found)) for line in lines] for lines in named]
        return [
            [lines[0]._replace(inside_condition=trace), *lines[1:]] for lines, trace in zip(seen, traces, strict=True)
        ]

    async def inside_conditions(self, roots: Sequence[Scope]) -> list[Expect]:
        """Return for each session the condition that no scope is created inside it from now on."""
        keys = [inside_key(self.handle, root) for root in roots]
        (rows,) = await self.handle.engine.context.backend.read([Get(LINKS, keys)])
        there = {row.key: row.columns for row in rows}
        return [Expect(LINKS, key, there.get(key)) for key in keys]

    async def _session_line(self, line: Line, infos: list[Any], last: list[Any]) -> SessionLine:
        point = StepRef.of(last[0]) if last else None
        info = info_of(infos[0]) if infos else None
        active = point
        if point is not None and point.kind == EXPIRY:
            active = await self._last_activity(line)
        return SessionLine(line, info, point, 0 if active is None else active.time)

    async def _last_activity(self, line: Line) -> StepRef | None:
        """Return the last step that does not delete expired keys."""
        stop: tuple[int, ...] = ()
        while True:
            (rows,) = await self.handle.engine.context.backend.read([_last_steps(line, _BACK)._replace(stop=stop)])
            for row in rows:
                if (point := StepRef.of(row)).kind != EXPIRY:
                    return point
            if len(rows) < _BACK:
                return None
            stop = (int(rows[-1].key[3]),)

    async def expiries(self, records: Sequence[SessionRecord]) -> list[tuple[int, list[SessionLine]]]:
        """Return when each session expires, 0 for never, and its current lines."""
        seen = await self.lines([record.root for record in records])
        return [
            (record.expires(max(each.active for each in lines)), lines)
            for record, lines in zip(records, seen, strict=True)
        ]

    async def status(self, records: Sequence[SessionRecord]) -> list[Status]:
        """Return the status of each session."""
        now = self.handle.now()
        waiting = [record for record in records if not record.ended and (record.held or 0 < record.due <= now)]
        ends = {id(each): when for each, (when, _) in zip(waiting, await self.expiries(waiting), strict=True)}
        found: list[Status] = []
        for record in records:
            if record.ended:
                found.append("archived" if record.archived else "ended")
            else:
                found.append("expired" if 0 < ends.get(id(record), 0) <= now else "active")
        return found


def _last_steps(line: Line, limit: int) -> Scan:
    return Scan(STEPS, (*line, 0), reverse=True, limit=limit, bodies=False)
