"""The tools of an agent: which there are, which it may use, and how their use went.

What is kept are names, permissions and figures; never a function.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.agents.definition.callbacks import called
from holdfast.agents.runtime.data import AgentData
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine import validation
from holdfast.engine.model.scopes import check_key
from holdfast.errors import DeniedError, NotFoundError

_LONGEST = 500
"""So many characters of an error are kept."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that an agent declared, and how its use went so far."""

    name: str
    description: str = ""
    permissions: tuple[str, ...] = ()
    """What the agent must be allowed to use it."""
    refused: bool = False
    """The tool itself was denied, whatever its permissions."""
    uses: int = 0
    failures: int = 0
    denied: int = 0
    """How often it was to be used and was not allowed."""
    seconds: float = 0.0
    """How long all its uses took, and the last one."""
    last_seconds: float = 0.0
    last_used: datetime | None = None
    last_error: str = ""
    """What the last failure was; it stays when later uses go well."""


class ToolsOperations:
    """What can be done with tools. `Tools` and `AsyncTools` have these as methods.

    A tool may be used if each of its permissions was allowed, and neither they nor the tool were denied. What nobody
    has allowed is not allowed. A tool without permissions is free.
    """

    def __init__(self, data: AgentData, keeper: AgentPersister | None = None) -> None:
        self._agent = data
        self._keeper = keeper

    # What there is --------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tool:
        """A tool. Raises `NotFoundError`."""
        found = self._declared.get(name)
        if found is None:
            raise NotFoundError(
                f"the agent has no tool {name!r}",
                hint=f"It has {', '.join(self)}" if self._declared else "Declare it first: tools.declare(name)",
            )
        known = {field: found[field] for field in Tool.__slots__ if field in found}
        return Tool(**{**known, "name": name, "permissions": tuple(found.get("permissions", ()))})

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._declared))

    def __len__(self) -> int:
        return len(self._declared)

    def __contains__(self, name: object) -> bool:
        return name in self._declared

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(self) or 'none'}>"

    @property
    def permissions(self) -> dict[str, bool]:
        """What was allowed and what was denied."""
        return dict(self._data.get("permissions", {}))

    def declare(self, name: str, permissions: tuple[str, ...] | list[str] = (), description: str = "") -> Tool:
        """Say that there is a tool, and what it takes to use it. Again, it changes that and keeps the figures."""
        check_key(name, "name of a tool")
        needed = [check_key(each, "permission") for each in validation.names(permissions, "permissions")]
        with self._changing():
            declared = self._data.setdefault("declared", {})
            declared[name] = {**declared.get(name, {}), "permissions": needed, "description": str(description)}
        return self[name]

    def forget(self, name: str) -> None:
        """Have a tool be there no more, nor its figures."""
        tool = self[name]
        with self._changing():
            self._declared.pop(tool.name, None)

    # What may be used -----------------------------------------------------------------------------------------

    def allow(self, *permissions: str, tool: str | None = None) -> None:
        """Allow permissions; or a tool again that was denied."""
        self._say(permissions, tool, allowed=True)

    def deny(self, *permissions: str, tool: str | None = None) -> None:
        """Deny permissions; or a tool, whatever its permissions."""
        self._say(permissions, tool, allowed=False)

    def _say(self, permissions: tuple[str, ...], tool: str | None, *, allowed: bool) -> None:
        named = {check_key(each, "permission"): allowed for each in permissions}
        if tool is not None:
            tool = self[tool].name
        with self._changing():
            self._data.setdefault("permissions", {}).update(named)
            if tool is not None:
                self._declared[tool]["refused"] = not allowed

    def may(self, name: str) -> bool:
        """Whether a tool may be used."""
        return not self._missing(self[name])

    def _missing(self, tool: Tool) -> str:
        """Why a tool may not be used; empty if it may."""
        if tool.refused:
            return "the tool is denied"
        said = self._data.get("permissions", {})
        lacking = [each for each in tool.permissions if said.get(each) is not True]
        return f"it takes {', '.join(lacking)}" if lacking else ""

    # Using ----------------------------------------------------------------------------------------------------

    @contextmanager
    def use(self, name: str) -> Iterator[Tool]:
        """A block in which a tool is used: counted and timed, and as a failure if the block raises an error. Raises
        `DeniedError`, code `tool-denied`, before it, if the tool may not be used."""
        tool = self[name]
        why = self._missing(tool)
        if why:
            self._count(name, denied=1)
            raise DeniedError(
                f"the agent may not use the tool {name!r}: {why}",
                where="" if self._keeper is None else f"agent {self._keeper.line.id!r}",
                hint="Allow it with tools.allow(permission)",
                code="tool-denied",
            )
        started, error = clocks.perf_counter_ns(), ""
        try:
            yield tool
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"[:_LONGEST]
            raise
        finally:
            self._count(name, uses=1, error=error, taken=(clocks.perf_counter_ns() - started) / 1e9)

    @sync_and_async
    async def call(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """What a function returns that is the tool, or uses it; checked, counted and timed as in `use`. Under asyncio
        it may be a coroutine function."""
        with self.use(name):
            found = await called(function, *args, **kwargs)
        if self._keeper is not None:
            await self._keeper.written()
        return found

    def _count(self, name: str, *, uses: int = 0, denied: int = 0, error: str = "", taken: float = 0.0) -> None:
        with self._changing():
            entry = self._declared.get(name)
            if entry is None:
                return  # it was forgotten while it was used
            entry["uses"] = entry.get("uses", 0) + uses
            entry["denied"] = entry.get("denied", 0) + denied
            if uses:
                entry["seconds"] = entry.get("seconds", 0.0) + taken
                entry["last_seconds"] = taken
                entry["last_used"] = datetime.now(UTC) if self._keeper is None else self._keeper.now()
            if error:
                entry["failures"] = entry.get("failures", 0) + 1
                entry["last_error"] = error

    @property
    def _data(self) -> dict[str, Any]:
        """What is kept of them: another dict, once the agent took on what was saved."""
        return self._agent.tools

    @property
    def _declared(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self._data.get("declared", {})
        return found

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with changing(self._keeper):
            yield


class Tools(SyncApi, ToolsOperations):
    """The tools of an agent: `agent.tools`."""


class AsyncTools(AsyncApi, ToolsOperations):
    """The same, for asyncio: `call` is awaited."""


@contextmanager
def changing(keeper: AgentPersister | None) -> Iterator[None]:
    """A block in which what an agent carries is changed: no save sees half of it."""
    if keeper is None:
        yield
        return
    with keeper.lock:
        yield
    keeper.changed()


def of_record(tools: Mapping[str, Any]) -> Tools:
    """The tools of an agent's record."""
    return Tools(AgentData(tools=dict(tools)))
