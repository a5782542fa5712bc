"""Identities: who acts. An identity is a path of parts, as a scope is, and owns the scope of the same path."""

from __future__ import annotations

from typing import NamedTuple, Self

from holdfast.engine.model.scopes import Scope, ScopePart, check_key
from holdfast.errors import InvalidError

OWN_KINDS = frozenset({"step", "tool", "hook", "custom"})
"""Scopes below an identity's own are its own too, where their further parts are of these kinds. The others are those of
its children: they may be identities of their own."""

GROUP = "group:"
"""What the names of groups start with, where an identity could stand as well."""

EVERYONE = "everyone"
"""The group that everybody is in."""


class Identity(NamedTuple):
    """Somebody who acts: `agent:researcher`, `user:alice/agent:writer`. `str` and `parse` are each other's inverse."""

    scope: Scope

    @classmethod
    def of(cls, **parts: str | None) -> Self:
        """The identity of these parts; those that are None are left out."""
        return cls.at(Scope.of(**parts))

    @classmethod
    def parse(cls, text: str) -> Self:
        """An identity from its text, such as `agent:researcher`."""
        return cls.at(Scope.parse(text))

    @classmethod
    def at(cls, scope: Scope) -> Self:
        """The identity that owns a scope of the same path."""
        if not scope.parts:
            raise InvalidError("an identity has a part at least", hint="Such as agent:researcher")
        return cls(scope)

    def __str__(self) -> str:
        return str(self.scope)

    def owns(self, scope: Scope) -> bool:
        """Whether a scope is its own."""
        return owns(self.scope, scope)

    def is_parent_of(self, scope: Scope) -> bool:
        """Whether a scope is that of a child."""
        return self.scope.contains(scope) and not self.owns(scope)


def owns(mine: Scope, scope: Scope) -> bool:
    """Whether who owns one scope owns the other."""
    own = mine.parts
    parts = scope.parts
    length = len(own)
    if parts[:length] != own:
        return False
    return all(part.kind in OWN_KINDS for part in parts[length:])


def require_scope(scope: object) -> Scope:
    """A scope that is one and nothing else: not something that says another name each time it is asked."""
    if type(scope) is Scope and type(scope.parts) is tuple:
        for part in scope.parts:
            if type(part) is not ScopePart or type(part.kind) is not str or type(part.name) is not str:
                break
        else:
            return scope
    raise InvalidError(
        "this is no scope", where=ascii(type(scope))[:80], hint='Give its text, such as "agent:researcher"'
    )


def parse_holder(to: object) -> str:
    """Who is given a right: the text of an identity, or `group:` and the name of a group."""
    if isinstance(to, Identity):
        return str(to)
    if isinstance(to, Scope):
        return str(Identity.at(Scope.of(**dict(to.parts))))
    if not isinstance(to, str):
        raise InvalidError(
            f"a right is given to an identity or a group, not to {type(to).__name__}",
            hint='Such as "agent:researcher", or "group:editors"',
        )
    if to.startswith(GROUP):
        return GROUP + check_group(to[len(GROUP) :])
    return str(Identity.parse(to))


def check_group(name: object) -> str:
    """The name of a group, in its normal form."""
    return check_key(name, "name of a group")


def parse_identity(who: Identity | Scope | str) -> Identity:
    """The identity that is named; no group."""
    text = parse_holder(who)
    if text.startswith(GROUP):
        raise InvalidError("this is for identities, not for groups", where=text)
    return Identity.parse(text)
