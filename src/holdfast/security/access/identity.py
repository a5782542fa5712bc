"""Identities. An identity is a path of parts, like a scope, and owns the scope of the same path."""

from __future__ import annotations

from typing import Self

from holdfast._named_tuple import NamedTuple
from holdfast.engine.model.scopes import Scope, ScopePart, check_key
from holdfast.errors import InvalidError

OWN_KINDS = frozenset({"step", "tool", "hook", "custom", "items"})
"""An identity also owns the scopes below its own whose further parts are of these kinds. Other scopes are those of its
children, which may be identities themselves."""

GROUP = "group:"
"""The prefix of groups, where an identity is possible as well."""

EVERYONE = "everyone"
"""The group of all identities."""


class Identity(NamedTuple):
    """An identity: `agent:researcher`, `user:alice/agent:writer`. `parse` is the inverse of `str`."""

    scope: Scope

    @classmethod
    def of(cls, **parts: str | None) -> Self:
        """Return the identity of these parts, without those that are None."""
        return cls.at(Scope.of(**parts))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the identity of a text such as `agent:researcher`."""
        return cls.at(Scope.parse(text))

    @classmethod
    def at(cls, scope: Scope) -> Self:
        """Return the identity that owns a scope of the same path."""
        if not scope.parts:
            raise InvalidError("an identity must have at least one part", hint="Such as agent:researcher")
        return cls(scope)

    def __str__(self) -> str:
        return str(self.scope)

    def owns(self, scope: Scope) -> bool:
        """Whether the identity owns a scope."""
        return owns(self.scope, scope)

    def is_parent_of(self, scope: Scope) -> bool:
        """Whether a scope belongs to a child of the identity."""
        return self.scope.contains(scope) and not self.owns(scope)


def owns(mine: Scope, scope: Scope) -> bool:
    """Whether the owner of one scope owns the other."""
    own = mine.parts
    parts = scope.parts
    length = len(own)
    if parts[:length] != own:
        return False
    return all(part.kind in OWN_KINDS for part in parts[length:])


def require_scope(scope: object) -> Scope:
    """Return a scope that is a plain value, and not a subclass whose text may change."""
    if type(scope) is Scope and type(scope.parts) is tuple:
        for part in scope.parts:
            if type(part) is not ScopePart or type(part.kind) is not str or type(part.name) is not str:
                break
        else:
            return scope
    raise InvalidError(
        "this is not a scope", where=ascii(type(scope))[:80], hint='Give its text, such as "agent:researcher"'
    )


def parse_holder(to: object) -> str:
    """Return the holder of a right as text: an identity, or `group:` and the name of a group."""
    if isinstance(to, Identity):
        return str(to)
    if isinstance(to, Scope):
        return str(Identity.at(Scope.of(**dict(to.parts))))
    if not isinstance(to, str):
        raise InvalidError(
            f"a right must be given to an identity or a group, not to {type(to).__name__}",
            hint='Such as "agent:researcher", or "group:editors"',
        )
    if to.startswith(GROUP):
        return GROUP + check_group(to[len(GROUP) :])
    return str(Identity.parse(to))


def check_group(name: object) -> str:
    """Return the normal form of the name of a group."""
    return check_key(name, "name of a group")


def parse_identity(who: Identity | Scope | str) -> Identity:
    """Return the identity that a caller names. Groups are refused."""
    text = parse_holder(who)
    if text.startswith(GROUP):
        raise InvalidError("this is for identities, not for groups", where=text)
    return Identity.parse(text)
