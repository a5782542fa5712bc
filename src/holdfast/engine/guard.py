"""Guards: they stand between whoever acts and the state of scopes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from holdfast.backends.interface import Change
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.errors import DeniedError

Action: TypeAlias = Literal["read", "write"]

Guards: TypeAlias = Callable[[bool], Awaitable[Sequence[Change]]]
"""Conditions on which something is done, worked out at every attempt; told whether one has failed already."""


def both_guards(one: Guards | None, other: Guards | None) -> Guards | None:
    """The conditions of both."""
    if one is None or other is None:
        return one or other

    async def guards(again: bool) -> list[Change]:
        return [*await one(again), *await other(again)]

    return guards


class Permit(NamedTuple):
    """That something may be done, as long as some conditions hold."""

    guards: Guards | None = None


FREELY = Permit()


class Guard:
    """Lets everything pass: that of the store's owner, who is nobody in particular."""

    actor = ""
    """Who acts, as events name it."""

    def scope(self, parts: Mapping[str, str | None] | Scope | str) -> Scope:
        """The scope that a caller names by its parts, or by its text. `InvalidError` if it is none."""
        if isinstance(parts, Scope):
            return parts
        return Scope.of(**parts) if isinstance(parts, Mapping) else Scope.parse(parts)

    def key(self, where: Scope | str, text: object, what: str = "key") -> str:  # noqa: ARG002
        """The key that a caller names in a scope, or the id of some other thing, in its normal form. `InvalidError` if
        it is none."""
        return check_key(text, what)

    async def allow(self, action: Action, scope: Scope, keys: Sequence[str]) -> Permit:  # noqa: ARG002
        """Whether this may be done with these keys of a scope, or with the scope as a whole if there are none.

        `DeniedError` if not; that was then noted.
        """
        return FREELY

    async def allow_named(self, action: Action, scope: Scope, keys: Sequence[str], name: str) -> Permit:
        """The same, of something that the caller knows by a name: the error tells neither where it is, nor that it is
        there at all."""
        try:
            return await self.allow(action, scope, keys)
        except DeniedError as error:
            denied = error
        # Here, and not above: or else the error would have the other one for its context.
        raise DeniedError(denied.what, where=name, hint=denied.hint, code=denied.code)

    async def visible(self, scopes: Sequence[Scope]) -> list[Scope]:
        """Those of some scopes that may be read as a whole. Only a question: nothing is noted."""
        return list(scopes)

    async def saw(self, scope: Scope, keys: Sequence[str]) -> None:
        """Keys were read, as `allow` allowed. Noted, where reads are; `DeniedError` if that is allowed no longer: what
        was read is then not handed out."""
