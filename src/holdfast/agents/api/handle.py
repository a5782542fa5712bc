"""What a plain object is worked with once it is kept: an object that inherits nothing of ours has no such methods."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from holdfast.agents.api.agent import AgentOperations
from holdfast.agents.api.context import AsyncChangeContext, ChangeContext
from holdfast.agents.definition.options import AgentOptions
from holdfast.agents.definition.spec import Spec
from holdfast.agents.runtime.data import AgentData
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi
from holdfast.errors import InvalidError

T = TypeVar("T")


class AgentHandleOperations(AgentOperations, Generic[T]):
    """A plain object that is kept, and what can be done with it."""

    def __init__(
        self, line: AgentLine, agent: T, spec: Spec, configuration: dict[str, Any], settings: AgentOptions
    ) -> None:
        data = AgentData(configuration, state=spec.machine.initial if spec.machine is not None else "")
        self._keeper = AgentPersister(line, agent, spec, data, settings)
        self._keeper.autosave(sync=isinstance(self, SyncApi))

    @property
    def agent(self) -> T:
        """The object itself."""
        found: T = self.keeper.agent
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}: {self.agent!r}>"

    def announce(self) -> None:
        """Have the object know what it is kept by, where it has an `on_attach`: it gets at its conversation, its
        context and so on through that."""
        hook = self.keeper.method("on_attach")
        if hook is not None and hook(self) is not None:
            raise InvalidError("on_attach is a plain function that returns nothing", where=self.keeper.where)


class AgentHandle(SyncApi, ChangeContext, AgentHandleOperations[T]):
    """A plain object that is kept in a `Store`::

    kept = store.agents.attach(Plain(), "plain-1")
    kept.start()
    kept.agent.work()
    kept.stop()
    """


class AsyncAgentHandle(AsyncApi, AsyncChangeContext, AgentHandleOperations[T]):
    """The same for asyncio: operations are awaited, and hooks and actions may be coroutine functions."""
