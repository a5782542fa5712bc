"""The entry point to the agents of a store: `store.agents`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.state.api import ScopedOperations, sync_or_async_property

if TYPE_CHECKING:
    from holdfast.agents.api.agents import Agents, AsyncAgents


def _agents(owner: ScopedOperations) -> Agents:
    """The agents of a store. See `holdfast.agents`."""
    from holdfast.agents.api.agents import Agents

    return Agents(owner._handle)


def _async_agents(owner: ScopedOperations) -> AsyncAgents:
    from holdfast.agents.api.agents import AsyncAgents

    return AsyncAgents(owner._handle)


AGENTS = sync_or_async_property(_agents, _async_agents)
"""The property `agents` of a `Store`, and of the result of `store.as_identity(…)`."""
