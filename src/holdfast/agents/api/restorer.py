"""Agents that are brought back to life for what others do with them."""

from __future__ import annotations

from holdfast.agents.definition.spec import registry
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.placeholder import inert
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.runtime.drivers import AsyncApi
from holdfast.security.handle import StoreHandle


async def revived(handle: StoreHandle, id: str, *, inert_too: bool = False) -> AgentPersister:
    """The keeper of an agent that is brought back to life; or, if its class is not known here and that will do, of what
    stands in for it."""
    from holdfast.agents.api.agents import Agents, AgentsOperations, AsyncAgents

    line = AgentLine(handle, id)
    await line.allow("read")
    kind = (await line.record(await line.point())).kind
    if inert_too and kind not in registry:
        return await inert(line)
    make = registry.get(kind).make
    face = AsyncAgents if isinstance(make, type) and issubclass(make, AsyncApi) else Agents
    agent = await AgentsOperations.restore(face(handle), id, autosave=None)
    keeper: AgentPersister = agent.keeper
    return keeper
