"""Where shared things lie, and who may use them.

A topic, a set of requests, a pipeline or a document lies in lines of its own, whose names are those of no scope. Who
may use it is decided by a scope that stands for it: `custom:topic/news` for the topic `news`, and below a scope, where
it was named with parts: `agent:writer/custom:topic/news`. Whoever owns that scope, or was granted it, may use it, and
in no other way than the pattern's own: the scope's state is something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from holdfast.engine.guard import Action, Guard, Permit
from holdfast.engine.model.scopes import MAX_LINE, Scope, ScopePart
from holdfast.errors import InvalidError
from holdfast.security.handle import StoreHandle

Pattern = Literal["topic", "requests", "pipeline", "document"]
"""What can be shared. None of these is a kind of scope."""

_RESERVED = 64
"""How many bytes of the name of a line are left for what it is made of."""


class _ResourceGuard(Guard):
    """Asks another guard about the scope that stands for a shared thing, whichever line of it is used."""

    def __init__(self, guard: Guard, scope: Scope, action: Action | None, keys: Sequence[str]) -> None:
        self.actor = guard.actor
        self._guard = guard
        self._scope = scope
        self._action = action
        self._keys = tuple(keys)

    async def allow(self, action: Action, scope: Scope, keys: Sequence[str]) -> Permit:  # noqa: ARG002
        return await self._guard.allow(self._action or action, self._scope, self._keys)

    async def saw(self, scope: Scope, keys: Sequence[str]) -> None:  # noqa: ARG002
        await self._guard.saw(self._scope, self._keys)


@dataclass(frozen=True, slots=True)
class SharedResource:
    """A shared thing: its own name, and the scope that stands for it."""

    handle: StoreHandle
    name: Scope
    """How its lines are named; no scope that a user can name."""
    scope: Scope

    def below(self, *parts: tuple[str, str]) -> Scope:
        """How a line is named that belongs to it."""
        scope = Scope((*self.name.parts, *(ScopePart(*part) for part in parts)))
        if len(scope.line.encode()) + _RESERVED > MAX_LINE:
            raise InvalidError(
                f"the names that lead to it take at most {MAX_LINE - _RESERVED} bytes of UTF-8", where=str(scope)[:80]
            )
        return scope

    def handle_for(self, key: str, action: Action | None = None) -> StoreHandle:
        """A handle for what is done with its lines, which takes the right to read or to write (or always one of them)
        that key of the scope that stands for it."""
        return replace(self.handle, guard=_ResourceGuard(self.handle.guard, self.scope, action, (key,)))

    async def require(self, action: Action, key: str) -> Permit:
        """`DeniedError` unless the caller may."""
        return await self.handle.guard.allow(action, self.scope, (key,))


def find_resource(handle: StoreHandle, pattern: Pattern, name: str, scope: Scope) -> SharedResource:
    """Where something shared lies, in a scope."""
    checked = handle.guard.key(scope, name)
    if any(part.kind == "custom" for part in scope.parts):
        raise InvalidError(
            f"a {pattern} lies in no custom scope",
            where=str(scope)[:80],
            hint=f"Name it so that it has the custom part in its own name: {pattern}('team/news')",
        )
    named: dict[str, Any] = {part.kind: part.name for part in scope.parts}
    own = Scope((*scope.parts, ScopePart(pattern, checked)))
    if len(own.line.encode()) + _RESERVED > MAX_LINE:
        raise InvalidError(
            f"the names that lead to a {pattern} take at most {MAX_LINE - _RESERVED} bytes of UTF-8",
            where=str(own)[:80],
        )
    return SharedResource(handle, own, handle.guard.scope({**named, "custom": f"{pattern}/{checked}"}))
