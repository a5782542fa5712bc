"""The records of sessions that are restored: a session without its record would not be found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.engine.append import AppendRequest
from holdfast.engine.engine import Engine
from holdfast.engine.events import Event
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import line_kind
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import LineChange, SystemLine, SystemLineEntries
from holdfast.state.sessions.records import LINE as SESSIONS
from holdfast.state.sessions.records import SessionRecord

_Records: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]


class SessionPlan(NamedTuple):
    """The lines of sessions that were deleted since, which are left out; and the steps that add the records of the
    others."""

    over: frozenset[Line]
    requests: Sequence[AppendRequest]


async def plan_sessions(engine: Engine, newest: Engine, then: Engine, lines: Sequence[Line]) -> SessionPlan:
    """Plan what to do with the sessions among some lines. `newest` has the newest records that are known, and `then`
    those of the backup that is restored. What a record says is never set back."""
    over, requests = set[Line](), list[AppendRequest]()
    of_sessions = [line for line in lines if line_kind(line.name) == "session"]
    for tenant in sorted({line.tenant for line in of_sessions}):
        own, last, first = [await _records(each, tenant) for each in (engine, newest, then)]
        missing: dict[str, Mapping[str, Any]] = {}
        for line in (line for line in of_sessions if line.tenant == tenant):
            if _find(line, own) is not None:
                continue
            if (found := _find(line, last)) is not None:
                missing[found[0]] = found[1]
            elif _find(line, first) is not None:
                over.add(line)
        records = Line(tenant, SESSIONS)
        comes_whole = records in lines and await engine.lines.load_tip(records) is None
        if missing and not comes_whole:
            requests.append(_add_records(engine, records, missing))
    return SessionPlan(frozenset(over), requests)


async def _records(engine: Engine, tenant: str) -> _Records:
    """Return the records of sessions by the names of their lines, with their ids."""
    found = await SystemLine(engine, Line(tenant, SESSIONS)).read(lambda entries: entries.with_prefix(""))
    return {
        MARK + str(stored["scope"]): (id, stored)
        for id, stored in found.items()
        if isinstance(stored, Mapping) and "scope" in stored
    }


def _find(line: Line, records: _Records) -> tuple[str, Mapping[str, Any]] | None:
    """Return the id and the record of the session that a line belongs to."""
    parts = line.name.split("/")
    for length in range(len(parts), 0, -1):
        if (found := records.get("/".join(parts[:length]))) is not None:
            return found
    return None


def _add_records(engine: Engine, line: Line, missing: Mapping[str, Mapping[str, Any]]) -> AppendRequest:
    records = SystemLine(engine, line)

    async def edit(entries: SystemLineEntries) -> LineChange:
        new = {id: stored for id, stored in missing.items() if not await entries.has(id)}
        time = engine.context.clock()
        links = [link for id, stored in new.items() for link in SessionRecord.of(stored, 0).links(id)]
        events = [Event("session", "", "restore", id) for id in new]
        return LineChange(records.pack(new), events=events, rows=records.link_changes([], links, time))

    return records.request("restore", edit)
