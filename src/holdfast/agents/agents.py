"""The agents of a store: saved, loaded, brought back to life, listed."""

from __future__ import annotations

from typing import Any

from holdfast.agents.keeper import Keeper
from holdfast.agents.lines import AgentLine
from holdfast.agents.record import AgentRecord
from holdfast.agents.specs import registry
from holdfast.engine.drivers import Async, Sync, operation
from holdfast.state.handles import Handle


class AgentsOperations:
    """What can be done with agents. `Agents` and `AsyncAgents` have these as methods."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @operation
    async def load(self, id: str, *, version: int | None = None) -> AgentRecord:
        """An agent as it was saved last, or as an older version. Raises `NotFound`."""
        line = AgentLine(self._handle, id)
        await line.allow("read")
        return await line.record(await line.point(version))

    @operation
    async def restore(self, id: str) -> Any:
        """The live agent: made anew by the class that is registered, and with the state that was saved last."""
        line = AgentLine(self._handle, id)
        await line.allow("read")
        point = await line.point()
        record = await line.record(point)
        spec = registry.get(record.kind)
        agent = spec.make(**record.configuration)
        keeper = Keeper(line, agent, spec, agent._data)
        agent._keeper = keeper
        await keeper.load(point)
        return agent


class Agents(Sync, AgentsOperations):
    """The agents of a store: `store.agents`."""


class AsyncAgents(Async, AgentsOperations):
    """The same, for asyncio."""
