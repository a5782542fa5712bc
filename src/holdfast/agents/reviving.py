"""Agents that are brought back to life for what others do with them: with the application's code, or without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.agents.data import AgentData
from holdfast.agents.keeper import Keeper
from holdfast.agents.lines import AgentLine
from holdfast.agents.specs import Spec, registry
from holdfast.engine.drivers import Async
from holdfast.state.handles import Handle


async def revived(handle: Handle, id: str, *, inert_too: bool = False) -> Keeper:
    """The keeper of an agent that is brought back to life; or, if its class is not known here and that will do, of what
    stands in for it."""
    from holdfast.agents.agents import Agents, AgentsOperations, AsyncAgents

    line = AgentLine(handle, id)
    await line.allow("read")
    kind = (await line.record(await line.point())).kind
    if inert_too and kind not in registry:
        return await inert(line)
    make = registry.get(kind).make
    face = AsyncAgents if isinstance(make, type) and issubclass(make, Async) else Agents
    agent = await AgentsOperations.restore(face(handle), id, autosave=None)
    keeper: Keeper = agent.keeper
    return keeper


class StandIn:
    """Stands in for an agent whose class is not known: its fields stay as they are."""

    def __init__(self) -> None:
        self._fields: Mapping[str, Any] = {}

    def persist(self) -> Mapping[str, Any]:
        return self._fields

    def restore(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def validate(self, fields: Mapping[str, Any]) -> None:
        pass

    def handle_recovery(self, recovery: Any) -> None:
        pass


async def inert(line: AgentLine) -> Keeper:
    """A keeper of an agent without the application's code."""
    point = await line.point()
    record = await line.record(point)
    keeper = Keeper(line, StandIn(), Spec(record.kind, StandIn, record.schema), AgentData())
    await keeper.load(point)
    return keeper
