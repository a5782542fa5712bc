"""Which agents there are, and how they came to be as they are, told without reading their states.

What a list shows of an agent is in the row of its newest step: its class, its status, its state, its metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from msgspec import MsgspecError
from msgspec.json import decode as decode_json

from holdfast.agents.storage.agent_line import LARGE, PREFIX, AgentLine, id_of
from holdfast.agents.storage.record import STATUSES, Status
from holdfast.backends.interface import Row, Scan
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.model.scopes import Scope, normal, quoted
from holdfast.engine.row_format import Line, StepRef, info_of
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError, InvalidError
from holdfast.security.handle import StoreHandle

_LAST = "\U0010ffff"
_LEAST = 64
"""How many are looked at at a time at least: some are not shown."""


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent at a glance."""

    id: str
    kind: str
    """The name under which its class is registered."""
    status: Status
    state: str
    version: int
    created: datetime
    updated: datetime
    messages: int = 0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """As it would be in JSON."""
    damaged: bool = False
    """What its newest step says of it cannot be read; verify the store."""
    pending: str = ""
    """What is half-done of it, such as `transition commit`: somebody is at it, or a crash left it so."""


@dataclass(frozen=True, slots=True)
class AgentStep:
    """A step of an agent at a glance."""

    version: int
    id: str
    time: datetime
    kind: str
    """What made it: `create`, `save`, `autosave`, `transition`, `lifecycle`, `transfer.given`, and so on."""
    status: str
    state: str
    actor: str = ""
    correlation: str = ""
    cause: str = ""
    messages: int = 0


@dataclass(frozen=True, slots=True)
class AgentFilter:
    """Which agents are asked for."""

    kind: str | None = None
    status: str | None = None
    state: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    pending: bool | None = None

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in STATUSES:
            raise InvalidError(f"the status is one of {', '.join(STATUSES)}, not {self.status!r}")

    def shows(self, info: AgentInfo, metadata: Mapping[str, Any]) -> bool:
        """Whether an agent is one of them, given the wanted metadata as JSON has it."""
        return (
            self.kind in (None, info.kind)
            and self.status in (None, info.status)
            and self.state in (None, info.state)
            and self.pending in (None, bool(info.pending))
            and (self.since is None or info.updated >= self.since)
            and (self.until is None or info.updated < self.until)
            and all(name in info.metadata and info.metadata[name] == value for name, value in metadata.items())
        )


async def agents(handle: StoreHandle, wanted: AgentFilter, prefix: str, after: str, limit: int) -> list[AgentInfo]:
    """A page of agents in the order of their ids. Who may not read one is not told that it is there."""
    prefix, after = quoted(normal(prefix, "prefix")), quoted(normal(after, "id"))
    metadata = handle.codec.to_plain(dict(wanted.metadata))
    first, stop = PREFIX + max(prefix, after + "\0" if after else ""), PREFIX + prefix + _LAST
    found: list[AgentInfo] = []
    page = max(limit, _LEAST)
    backend = handle.engine.ground.backend
    while len(found) < limit:
        (rows,) = await backend.read([Scan(LINES, (handle.tenant,), (first,), (stop,), limit=page)])
        named = {Scope.of(agent=id): row for row in rows if (id := id_of(Line(*map(str, row.key)))) is not None}
        seen = await handle.guard.visible(list(named))
        heads = await backend.read([_newest(Line(*map(str, named[scope].key))) for scope in seen])
        for scope, steps in zip(seen, heads, strict=True):
            if steps and len(found) < limit:
                info = await _info(handle, scope.parts[0].name, named[scope], StepRef.of(steps[0]))
                found += [info] if wanted.shows(info, metadata) else []
        if len(rows) < page:
            break
        first = str(rows[-1].key[1]) + "\0"
    return found


def _newest(line: Line) -> Scan:
    return Scan(STEPS, tuple(line), reverse=True, limit=1, by="id", bodies=False)


async def _info(handle: StoreHandle, id: str, row: Row, point: StepRef) -> AgentInfo:
    said = said_by(point)
    metadata = said.get("metadata", {})
    damaged = not said or said.get("status") not in STATUSES or not isinstance(metadata, dict)
    if said.get(LARGE):
        line = AgentLine(handle, id)
        try:
            metadata = handle.codec.to_plain(await handle.engine.partial(line.line, point).value(("metadata",)))
        except CorruptError:
            metadata, damaged = {}, True
    return AgentInfo(
        id,
        str(said.get("class", "")),
        said.get("status", "failed"),
        str(said.get("state", "")),
        point.depth + 1,
        to_datetime(info_of(row).created),
        to_datetime(point.time),
        _count(said),
        metadata if isinstance(metadata, dict) else {},
        damaged,
        str(said.get("pending", "")),
    )


async def steps(line: AgentLine, newest: StepRef, before: str | None, limit: int) -> list[AgentStep]:
    """The steps of an agent, the newest first: those on the way to it, and not such as were passed over."""
    lines = line.handle.engine.lines
    layout = BranchGraph(await lines.branches(line.line))
    ends = {each.branch: each.seq for each in layout.stretches(Position(newest.branch, newest.seq))}
    found: list[AgentStep] = []
    start = before or ""
    while len(found) < limit:
        points = [StepRef.of(row) for row in await lines.history(line.line, before=start, limit=limit)]
        found += [_step(each) for each in points if each.seq <= ends.get(each.branch, -1)]
        if len(points) < limit:
            break
        start = points[-1].id
    return found[:limit]


def _step(point: StepRef) -> AgentStep:
    said = said_by(point)
    status, state, actor, correlation, cause = (str(said.get(name, "")) for name in _TOLD)
    time, count = to_datetime(point.time), _count(said)
    return AgentStep(point.depth + 1, point.id, time, point.kind, status, state, actor, correlation, cause, count)


_TOLD = ("status", "state", "actor", "correlation", "cause")


def _count(said: Mapping[str, Any]) -> int:
    count = said.get("messages", 0)
    return count if isinstance(count, int) else 0


def said_by(point: StepRef) -> dict[str, Any]:
    """What the row of a step says of the agent; nothing, if that cannot be read."""
    try:
        found = decode_json(point.metadata)
    except MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}
