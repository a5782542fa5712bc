"""Shared resources: how topics, requests, pipelines and documents are named, and who may use them.

A shared resource has lines of its own, whose names no scope has. Another scope decides who may use it:
`custom:topic/news` for the topic `news`, or `agent:writer/custom:topic/news` if it was named with parts. Whoever owns
that scope, or was granted it, may use the resource, but only through its own operations: the scope's state is separate.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from holdfast.backends.runtime.drivers import Pause
from holdfast.engine import validation
from holdfast.engine.guard import Action, Guard, Permit
from holdfast.engine.model.scopes import MAX_LINE, Scope, ScopePart
from holdfast.engine.rewrite.rewriter import RewritePlan
from holdfast.engine.row_format import Branch, StepRef
from holdfast.errors import InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.state.reader import ScopeView, read_scope
from holdfast.state.writer import Writes, WrittenKey, write
from holdfast.time_parser import Duration, parse_seconds

NOT_REMOTE = "Open the store itself for topics, requests, pipelines and documents."

T = TypeVar("T")

Pattern = Literal["topic", "requests", "pipeline", "document", "steps"]
"""The kinds of shared resources. None of them is a kind of scope."""

RETAINED_STEPS = 1000
"""How many steps `trim` retains by default."""

_RESERVED = 64
"""How many bytes of the name of a line are reserved for its last parts."""

_SHORTEST, _LONGEST = 0.002, 0.25
"""The first and the longest pause between two polls, in seconds."""


class _ResourceGuard(Guard):
    """Checks the scope of a shared resource, whichever line of it is used."""

    def __init__(self, guard: Guard, scope: Scope, action: Action | None, keys: Sequence[str]) -> None:
        self.actor = guard.actor
        self._guard = guard
        self._scope = scope
        self._action = action
        self._keys = tuple(keys)

    async def allow(self, action: Action, scope: Scope, keys: Sequence[str]) -> Permit:  # noqa: ARG002
        if action == "write" and self._action == "read":
            await self._guard.allow_change(self._scope, self._keys)
        return await self._guard.allow(self._action or action, self._scope, self._keys)

    async def saw(self, scope: Scope, keys: Sequence[str]) -> None:  # noqa: ARG002
        await self._guard.saw(self._scope, self._keys)


@dataclass(frozen=True, slots=True)
class SharedResource:
    """A shared resource: its name, and the scope that decides who may use it."""

    handle: StoreHandle
    name: Scope
    """The name of its lines; not a scope that a caller can name."""
    scope: Scope

    def below(self, *parts: tuple[str, str]) -> Scope:
        """Return the name of a line that belongs to the resource."""
        return _check_length(Scope((*self.name.parts, *(ScopePart(*part) for part in parts))))

    def handle_for(self, key: str, action: Action | None = None) -> StoreHandle:
        """Return a handle for its lines that requires the right to read or write this key of the scope; or always the
        right to one of both."""
        return replace(self.handle, guard=_ResourceGuard(self.handle.guard, self.scope, action, (key,)))

    async def require(self, action: Action, key: str) -> Permit:
        """Raise `DeniedError` unless the caller may do this."""
        return await self.handle.guard.allow(action, self.scope, (key,))

    async def trim_history(self, keep: int) -> int:
        """Remove all steps of its line but the last; its state stays. Returns the number of removed steps."""
        count = max(validation.require_count(keep, "number of steps to keep"), 1)
        await self.handle.guard.allow("write", self.scope, ())
        engine, line, dropped = self.handle.engine, self.handle.line(self.name), 0
        if await engine.lines.load_tip(line) is None:
            return 0

        async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:  # noqa: ARG001
            nonlocal dropped
            removed = frozenset(point[:2] for point in points[:-count] if not point.pruned)
            dropped = len(removed)
            return RewritePlan(removed)

        await engine.rewriter.rewrite(line, choose)
        return dropped


class SharedOperations:
    """The part that all kinds of shared resources have in common."""

    def __init__(self, resource: SharedResource) -> None:
        self._resource = resource

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._resource.name}>"

    @property
    def scope(self) -> Scope:
        """The scope that decides who may use it: the class says which rights to it allow what."""
        return self._resource.scope

    async def _read(self, look: Callable[[ScopeView], Awaitable[T]]) -> T:
        """Read the state of the resource's line."""
        return await read_scope(self._resource.handle, self._resource.name, look)

    async def _write(self, key: str, writes: Writes) -> list[WrittenKey]:
        """Change the state of the resource's line, which needs the right to write a key of the scope."""
        return await write(self._resource.handle_for(key), {self._resource.name: writes})


def find_resource(handle: StoreHandle, pattern: Pattern, name: str, scope: Scope) -> SharedResource:
    """Return the shared resource of a name in a scope."""
    checked = handle.guard.key(scope, name)
    if any(part.kind == "custom" for part in scope.parts):
        raise InvalidError(
            f"a {pattern} cannot be in a custom scope",
            where=str(scope)[:80],
            hint=f"Put the custom part into its own name: {pattern}('team/news')",
        )
    parts: dict[str, Any] = {part.kind: part.name for part in scope.parts}
    own = _check_length(Scope((*scope.parts, ScopePart(pattern, checked))))
    return SharedResource(handle, own, handle.guard.scope({**parts, "custom": f"{pattern}/{checked}"}))


def _check_length(name: Scope) -> Scope:
    if len(name.line.encode()) + _RESERVED > MAX_LINE:
        raise InvalidError(f"the whole name takes at most {MAX_LINE - _RESERVED} bytes of UTF-8", where=str(name)[:80])
    return name


async def wait_until(poll: Callable[[], Awaitable[T | None]], timeout: Duration | None) -> T | None:
    """Poll until there is a result, at least once, with growing pauses. None after the timeout, which may be None for
    no limit."""
    end = None if timeout is None else time.monotonic() + parse_seconds(timeout, "timeout")
    pause = _SHORTEST
    while True:
        result = await poll()
        left = _LONGEST if end is None else end - time.monotonic()
        if result is not None or left <= 0:
            return result
        await Pause(min(pause, left))
        pause = min(2 * pause, _LONGEST)
