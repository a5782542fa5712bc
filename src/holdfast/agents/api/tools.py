"""The tools of an agent: their permissions, and statistics of their use.

Names, permissions and statistics are stored; never a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from time import perf_counter_ns
from typing import Any, Self

from holdfast._fields import Hidden
from holdfast.agents.definition.state_machine import invoke
from holdfast.agents.runtime.data import AgentData
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.storage.record import AgentRecord, error_text
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine import validation
from holdfast.engine.model.scopes import check_key
from holdfast.errors import DeniedError, NotFoundError
from holdfast.recording.journal import current_journal

_MAX_ERROR = 500
"""How many characters of an error are stored."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that an agent declared, and the statistics of its use."""

    name: str
    description: Hidden[str] = ""
    permissions: tuple[str, ...] = ()
    """The permissions that the agent needs to use it."""
    is_denied: Hidden[bool] = False
    """Whether the tool itself was denied, whatever its permissions."""
    uses: int = 0
    failures: int = 0
    denied: int = 0
    """How often its use was denied."""
    seconds: float = 0.0
    """The time of all its uses, and of the last one."""
    last_seconds: Hidden[float] = 0.0
    last_used: Hidden[datetime | None] = None
    last_error: str = ""
    """The error of the last failure; it stays when later uses succeed."""


class DataPart:
    """A part of an agent's data, which is another dict once the agent loads a saved state."""

    def __init__(self, data: AgentData, persister: AgentPersister | None = None) -> None:
        self._agent_data = data
        self._persister = persister

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Change the data in a block of which no save sees half."""
        if self._persister is None:
            yield
            return
        with self._persister.lock:
            yield
        self._persister.mark_changed()

    def _now(self) -> datetime:
        return datetime.now(UTC) if self._persister is None else self._persister.now()


@declare(not_remote="An agent runs where its code is.")
class ToolsOperations(DataPart):
    """Operations on tools. `Tools` and `AsyncTools` have these as methods.

    A tool may be used if all of its permissions were allowed, and neither they nor the tool were denied. Permissions
    are denied by default. A tool without permissions may always be used.
    """

    # Declarations ---------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tool:
        """Return a tool. Raises `NotFoundError`."""
        entry = self._declared.get(name)
        if entry is None:
            raise NotFoundError(
                f"the agent has no tool {name!r}",
                hint=f"It has {', '.join(self)}" if self._declared else "Declare it first: tools.declare(name)",
            )
        fields = {field: entry[field] for field in Tool.__slots__ if field in entry}
        fields |= {"permissions": tuple(entry.get("permissions", ())), "is_denied": entry.get("refused", False)}
        return Tool(**{**fields, "name": name})

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
        """The permissions that were allowed (True) and denied (False)."""
        return dict(self._data.get("permissions", {}))

    def declare(self, name: str, permissions: tuple[str, ...] | list[str] = (), description: str = "") -> Tool:
        """Declare a tool and the permissions that it needs. A tool that exists is changed, and keeps its statistics."""
        check_key(name, "name of a tool")
        required = [check_key(each, "permission") for each in validation.require_names(permissions, "permissions")]
        with self._change():
            declared = self._data.setdefault("declared", {})
            declared[name] = {**declared.get(name, {}), "permissions": required, "description": str(description)}
        return self[name]

    def forget(self, name: str) -> None:
        """Remove a tool and its statistics."""
        tool = self[name]
        with self._change():
            self._declared.pop(tool.name, None)

    # Permissions ----------------------------------------------------------------------------------------------

    def allow(self, *permissions: str, tool: str | None = None) -> None:
        """Allow permissions; or a tool that was denied."""
        self._set_allowed(permissions, tool, allowed=True)

    def deny(self, *permissions: str, tool: str | None = None) -> None:
        """Deny permissions; or a tool, whatever its permissions."""
        self._set_allowed(permissions, tool, allowed=False)

    def _set_allowed(self, permissions: tuple[str, ...], tool: str | None, *, allowed: bool) -> None:
        changes = {check_key(each, "permission"): allowed for each in permissions}
        if tool is not None:
            tool = self[tool].name
        with self._change():
            self._data.setdefault("permissions", {}).update(changes)
            if tool is not None:
                self._declared[tool]["refused"] = not allowed

    def may(self, name: str) -> bool:
        """Return whether a tool may be used."""
        return not self._denial_reason(self[name])

    def _denial_reason(self, tool: Tool) -> str:
        """Return why a tool may not be used; empty if it may."""
        if tool.is_denied:
            return "the tool is denied"
        permissions = self._data.get("permissions", {})
        missing = [each for each in tool.permissions if permissions.get(each) is not True]
        return f"it takes {', '.join(missing)}" if missing else ""

    # Uses -----------------------------------------------------------------------------------------------------

    @contextmanager
    def use(self, name: str) -> Iterator[Tool]:
        """Count and time a block that uses a tool; as a failure, if the block raises an error. Raises `DeniedError`,
        code `tool-denied`, before the block, if the tool may not be used."""
        tool = self[name]
        reason = self._denial_reason(tool)
        if reason:
            self._count(name, denied=1)
            raise DeniedError(
                f"the agent may not use the tool {name!r}: {reason}",
                where="" if self._persister is None else self._persister.where,
                hint="Allow it with tools.allow(permission)",
                code="tool-denied",
            )
        started, error = perf_counter_ns(), ""
        try:
            yield tool
        except BaseException as raised:
            error = error_text(raised, _MAX_ERROR)
            raise
        finally:
            self._count(name, uses=1, error=error, seconds=(perf_counter_ns() - started) / 1e9)

    @operation(changes=True)
    async def call(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function that is the tool, or uses it, and return its result; checked, counted and timed as in `use`.
        Under asyncio it may be a coroutine function."""
        journal = current_journal.get()
        with self.use(name):
            if journal is None:
                result = await invoke(function, *args, **kwargs)
            else:
                call = partial(invoke, function, *args, **kwargs)
                result = await journal.ainvoke("tool", name, [list(args), kwargs], call)
        if self._persister is not None:
            await self._persister.write_through()
        return result

    def _count(self, name: str, *, uses: int = 0, denied: int = 0, error: str = "", seconds: float = 0.0) -> None:
        with self._change():
            entry = self._declared.get(name)
            if entry is None:
                return  # it was removed during its use
            entry["uses"] = entry.get("uses", 0) + uses
            entry["denied"] = entry.get("denied", 0) + denied
            if uses:
                entry["seconds"] = entry.get("seconds", 0.0) + seconds
                entry["last_seconds"] = seconds
                entry["last_used"] = self._now()
            if error:
                entry["failures"] = entry.get("failures", 0) + 1
                entry["last_error"] = error

    @property
    def _data(self) -> dict[str, Any]:
        return self._agent_data.tools

    @property
    def _declared(self) -> dict[str, dict[str, Any]]:
        declared: dict[str, dict[str, Any]] = self._data.get("declared", {})
        return declared


class Tools(SyncApi, ToolsOperations):
    """The tools of an agent: `agent.tools`."""

    @classmethod
    def of(cls, record: AgentRecord) -> Self:
        """Return the tools in the record of an agent."""
        return cls(AgentData(tools=dict(record.tools)))


class AsyncTools(AsyncApi, ToolsOperations):
    """The asyncio form of `Tools`: `call` is awaited."""
