"""Agents without the application's code: what stands in for one, and what brings one back to life that is not here."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from holdfast.agents.definition.spec import Spec
from holdfast.agents.runtime.data import AgentData
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.security.handle import StoreHandle


class Revive(Protocol):
    """Brings an agent back to life by its id, with the application's code. If its class is not known here and that will
    do, something stands in for it."""

    def __call__(self, handle: StoreHandle, id: str, *, inert_too: bool = False) -> Awaitable[AgentPersister]: ...


class Placeholder:
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


async def inert(line: AgentLine) -> AgentPersister:
    """A keeper of an agent without the application's code."""
    point = await line.point()
    record = await line.record(point)
    keeper = AgentPersister(line, Placeholder(), Spec(record.kind, Placeholder, record.schema), AgentData())
    await keeper.load(point)
    return keeper
