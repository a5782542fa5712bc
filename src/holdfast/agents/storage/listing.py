"""List agents and their steps without reading states.

The summary of an agent is in the row of its newest step: its class, its status, its state, its metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import MsgspecError
from msgspec.json import decode as decode_json

from holdfast._fields import Hidden, Label
from holdfast.agents.storage.agent_line import LARGE, PREFIX, AgentLine, agent_id
from holdfast.agents.storage.record import STATUSES, Status
from holdfast.backends.interface import Get, Row, Scan
from holdfast.backends.tables import LINES, STEPS
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.model.scopes import Scope, normal, quoted
from holdfast.engine.namespaces import agent_of, steps_of
from holdfast.engine.row_format import Line, StepRef, info_of
from holdfast.engine.types import to_datetime
from holdfast.errors import CorruptError, InvalidError
from holdfast.security.handle import StoreHandle

_LAST_CHARACTER = "\U0010ffff"
_SCANNED = 1000
_MIN_PAGE = 64
"""How many agents are read at a time, at least: some do not match."""


class AgentInfo(msgspec.Struct, frozen=True):
    """The summary of an agent in a list."""

    id: Annotated[str, Label("agent")]
    kind: Annotated[str, Label("class")]
    """The name under which its class is registered."""
    status: Status
    state: str
    version: int
    created: Hidden[datetime]
    updated: Annotated[datetime, Label("saved")]
    messages: int = 0
    metadata: Mapping[str, Any] = {}
    """The metadata, as JSON values."""
    damaged: Hidden[bool] = False
    """Whether the summary of the newest step cannot be read; verify the store."""
    pending: str = ""
    """The change that is half-done, such as `transition commit`: it is under way, or was left by a crash."""


class AgentStep(msgspec.Struct, frozen=True):
    """The summary of a step of an agent."""

    version: int
    id: Hidden[str]
    time: datetime
    kind: str
    """The operation: `create`, `save`, `autosave`, `transition`, `lifecycle`, `transfer.given`, and so on."""
    status: str
    state: str
    actor: str = ""
    correlation: Hidden[str] = ""
    cause: Hidden[str] = ""
    messages: int = 0


@dataclass(frozen=True, slots=True)
class AgentFilter:
    """The conditions of a list of agents."""

    kind: str | None = None
    status: str | None = None
    state: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    pending: bool | None = None

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in STATUSES:
            raise InvalidError(f"the status must be one of {', '.join(STATUSES)}, not {self.status!r}")

    def matches(self, info: AgentInfo, metadata: Mapping[str, Any]) -> bool:
        """Whether an agent meets the conditions, those on metadata given as JSON values."""
        return (
            self.kind in (None, info.kind)
            and self.status in (None, info.status)
            and self.state in (None, info.state)
            and self.pending in (None, bool(info.pending))
            and (self.since is None or info.updated >= self.since)
            and (self.until is None or info.updated < self.until)
            and all(name in info.metadata and info.metadata[name] == value for name, value in metadata.items())
        )


async def list_agents(
    handle: StoreHandle, conditions: AgentFilter, prefix: str, after: str, limit: int
) -> list[AgentInfo]:
    """Return a page of agents in the order of their ids, without those that the identity may not read."""
    prefix, after = quoted(normal(prefix, "prefix")), quoted(normal(after, "cursor"))
    metadata = handle.codec.to_plain(dict(conditions.metadata))
    first, stop = PREFIX + max(prefix, after + "\0" if after else ""), PREFIX + prefix + _LAST_CHARACTER
    agents: list[AgentInfo] = []
    page = max(limit, _MIN_PAGE)
    backend = handle.engine.context.backend
    while len(agents) < limit:
        (rows,) = await backend.read([Scan(LINES, (handle.tenant,), (first,), (stop,), limit=page, bodies=False)])
        by_scope = {Scope.of(agent=id): row for row in rows if (id := agent_id(Line(*map(str, row.key)))) is not None}
        visible = await handle.guard.visible(list(by_scope))
        heads = await backend.read([_newest_step(Line(*map(str, by_scope[scope].key))) for scope in visible])
        for scope, steps in zip(visible, heads, strict=True):
            if steps and len(agents) < limit:
                info = await _info(handle, scope.parts[0].name, by_scope[scope], StepRef.of(steps[0]))
                agents += [info] if conditions.matches(info, metadata) else []
        if len(rows) < page:
            break
        first = str(rows[-1].key[1]) + "\0"
    return agents


async def list_unsaved(handle: StoreHandle, limit: int, after: str) -> list[str]:
    """Return the ids of agents that have durable steps and were never saved, without those that the identity may not
    read."""
    found: list[str] = []
    first, last = (steps_of(Line(handle.tenant, PREFIX + text)).name for text in (quoted(after), _LAST_CHARACTER))
    first = first + "\0" if after else first.partition(":")[0]
    backend = handle.engine.context.backend
    while len(found) < limit:
        query = Scan(LINES, (handle.tenant,), (first,), (last,), limit=_SCANNED, bodies=False)
        (rows,) = await backend.read([query])
        agents = [agent for row in rows if (agent := agent_of(Line(*map(str, row.key)))) is not None]
        (saved,) = await backend.read([Get(LINES, [tuple(agent) for agent in agents])]) if agents else ([],)
        known = {row.key for row in saved}
        ids = [agent_id(agent) for agent in agents if tuple(agent) not in known]
        visible = await handle.guard.visible([Scope.of(agent=id) for id in ids if id is not None])
        found += [scope.parts[0].name for scope in visible]
        if len(rows) < _SCANNED:
            break
        first = str(rows[-1].key[1]) + "\0"
    return found[:limit]


def _newest_step(line: Line) -> Scan:
    return Scan(STEPS, tuple(line), reverse=True, limit=1, by="id", bodies=False)


async def _info(handle: StoreHandle, id: str, row: Row, point: StepRef) -> AgentInfo:
    summary = read_summary(point)
    metadata = summary.get("metadata", {})
    damaged = not summary or summary.get("status") not in STATUSES or not isinstance(metadata, dict)
    if summary.get(LARGE):
        line = AgentLine(handle, id)
        try:
            metadata = handle.codec.to_plain(await handle.engine.state_reader(line.line, point).value(("metadata",)))
        except CorruptError:
            metadata, damaged = {}, True
    return AgentInfo(
        id,
        str(summary.get("class", "")),
        summary.get("status", "failed"),
        str(summary.get("state", "")),
        point.depth + 1,
        to_datetime(info_of(row).created),
        to_datetime(point.time),
        _message_count(summary),
        metadata if isinstance(metadata, dict) else {},
        damaged,
        str(summary.get("pending", "")),
    )


async def list_steps(line: AgentLine, newest: StepRef, before: str, limit: int) -> list[AgentStep]:
    """Return the steps that lead to the newest, the newest first, without skipped ones."""
    lines = line.handle.engine.lines
    branches = BranchGraph(await lines.branches(line.line))
    ends = {each.branch: each.seq for each in branches.stretches(Position(newest.branch, newest.seq))}
    steps: list[AgentStep] = []
    while len(steps) < limit:
        rows = await lines.history(line.line, before=before, limit=limit, bodies=False)
        points = list(map(StepRef.of, rows))
        steps += [_step(each) for each in points if each.seq <= ends.get(each.branch, -1)]
        if len(points) < limit:
            break
        before = points[-1].id
    return steps[:limit]


def _step(point: StepRef) -> AgentStep:
    summary = read_summary(point)
    status, state, actor, correlation, cause = (str(summary.get(name, "")) for name in _STEP_FIELDS)
    time, count = to_datetime(point.time), _message_count(summary)
    return AgentStep(point.depth + 1, point.id, time, point.kind, status, state, actor, correlation, cause, count)


_STEP_FIELDS = ("status", "state", "actor", "correlation", "cause")


def _message_count(summary: Mapping[str, Any]) -> int:
    count = summary.get("messages", 0)
    return count if isinstance(count, int) else 0


def read_summary(point: StepRef) -> dict[str, Any]:
    """Return the summary of the agent in the row of a step; empty if it cannot be read."""
    try:
        summary = decode_json(point.metadata)
    except MsgspecError:
        return {}
    return summary if isinstance(summary, dict) else {}
