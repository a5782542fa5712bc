"""Agents whose class is not registered: a placeholder for the object, and the protocol of restoring either."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from holdfast.agents.definition.spec import Spec
from holdfast.agents.runtime.data import AgentData
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.security.handle import StoreHandle


class RestoreAgent(Protocol):
    """Restores an agent by its id, with the application's code; or, if its class is not registered and that is allowed,
    a placeholder for it."""

    def __call__(
        self, handle: StoreHandle, id: str, *, allow_placeholder: bool = False
    ) -> Awaitable[AgentPersister]: ...


class Placeholder:
    """Stands in for an agent whose class is not registered: its fields stay as they are."""

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


async def load_placeholder(line: AgentLine) -> AgentPersister:
    """Load an agent without the application's code."""
    point = await line.require_step()
    record = await line.read_record(point)
    persister = AgentPersister(line, Placeholder(), Spec(record.kind, Placeholder, record.schema), AgentData())
    await persister.load(point)
    return persister
