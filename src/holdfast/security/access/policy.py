"""Rights: policies, and grants.

A policy has ordered rules. The first that matches decides; if none matches, access is denied.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, Self, TypeAlias, get_args

import msgspec

from holdfast._structs import convert
from holdfast.engine.guard import Action
from holdfast.engine.model.scopes import THREAD, Scope
from holdfast.engine.namespaces import ACCESS
from holdfast.engine.patterns import KeyPattern, matcher
from holdfast.errors import CorruptError, InvalidError
from holdfast.security.access.identity import owns

Right: TypeAlias = Literal["read", "write", "delete", "erase", "keys", "admin"]
"""A right. There are no others."""

Rights: TypeAlias = "Right | Iterable[Right]"
"""How callers name rights: one, or several."""

RIGHTS: tuple[Right, ...] = get_args(Right)

OWNER_RIGHTS: frozenset[Right] = frozenset({"read", "write", "delete", "erase"})
"""The rights that the owner of a thread has, and may grant. Holds and keys are the store's owner's."""

ALL = "**"
"""The pattern that matches every key and every scope."""

_MAX_RULES = 1000


def check_rights(rights: object) -> str:
    """Return rights as text, in their order: `read,write`. They are given one by one, as several, or as such text."""
    named = rights.split(",") if isinstance(rights, str) else list(rights) if isinstance(rights, Iterable) else [rights]
    for each in named or [rights]:
        if each not in RIGHTS:
            raise InvalidError(f"a right must be one of {', '.join(RIGHTS)}, not {ascii(each)[:80]}")
    return ",".join(right for right in RIGHTS if right in named)


@lru_cache(256)
def rights_of(text: str) -> frozenset[str]:
    """Return the rights in their text."""
    return frozenset(text.split(","))


def check_pattern(pattern: object, what: str) -> str:
    """Return a pattern of scopes or keys, in the normal form of names."""
    if not isinstance(pattern, str):
        raise InvalidError(f"the {what} must be a pattern, not {type(pattern).__name__}", where=ascii(pattern)[:80])
    plain = unicodedata.normalize("NFC", pattern)
    matcher(plain)
    return plain


class Rule(msgspec.Struct, frozen=True):
    """A rule: whether an action on some scopes and keys is allowed."""

    allows: bool
    rights: str
    """Rights, separated by commas."""
    scope: str = ALL
    keys: str = ALL

    def decides(self, action: str, scope: str, key: str | None) -> bool:
        """Whether this rule matches a key of a scope, or the whole scope."""
        if action not in rights_of(self.rights) or not matcher(self.scope)(scope):
            return False
        if key is None:
            # Nobody has all of a scope who has some keys of it, or is denied some.
            return self.keys == ALL or not self.allows
        if isinstance(key, KeyPattern):
            # Nor all keys of a pattern who is denied some, which may be among them.
            return not self.allows or key.is_within(self.keys)
        return self.keys == ALL or matcher(self.keys)(key)


class Policy(msgspec.Struct, frozen=True):
    """Ordered rules: `Policy().deny(["read", "write"], "agent:*", keys="secret/**").allow("read", "agent:*")`.

    A pattern of scopes matches their text: `agent:*` all agents, `user:alice/**` all below Alice's scope, `**` all. In
    patterns `*` matches any text without a slash, `**` any text, `?` one character.
    """

    rules: tuple[Rule, ...] = ()

    def allow(self, right: Rights, scope: str = ALL, *, keys: str = ALL) -> Policy:
        """Return the policy with a further rule that allows."""
        return self._with(True, right, scope, keys)

    def deny(self, right: Rights, scope: str = ALL, *, keys: str = ALL) -> Policy:
        """Return the policy with a further rule that denies."""
        return self._with(False, right, scope, keys)

    def _with(self, allows: bool, right: Rights, scope: object, keys: object) -> Policy:
        if len(self.rules) >= _MAX_RULES:
            raise InvalidError(f"a policy has at most {_MAX_RULES} rules")
        rule = Rule(
            allows, check_rights(right), check_pattern(scope, "scope of a rule"), check_pattern(keys, "keys of a rule")
        )
        return Policy((*self.rules, rule))

    def verdict(self, action: Action, scope: Scope, keys: Sequence[str]) -> bool | None:
        """Whether an action is allowed; None if no rule matches some of the keys, and none denies the others."""
        return self._verdict(action, str(scope), keys)

    def thread_verdict(self, right: str, thread: str) -> bool | None:
        """Whether a right to a thread is allowed; None if no rule matches. Its text is `thread:` and its name."""
        return self._verdict(right, f"{THREAD}:{thread}", ())

    def _verdict(self, action: str, text: str, keys: Sequence[str]) -> bool | None:
        found: bool | None = True
        for key in keys or (None,):
            one = next((rule.allows for rule in self.rules if rule.decides(action, text, key)), None)
            if one is False:
                return False
            found = found if one else None
        return found

    def to_list(self) -> list[dict[str, Any]]:
        """Return the plain form, which is stored and fits JSON."""
        return [
            {"effect": "allow" if rule.allows else "deny", "right": rule.rights, "scope": rule.scope, "keys": rule.keys}
            for rule in self.rules
        ]

    @classmethod
    def of(cls, rules: object) -> Policy:
        """Build a policy from its plain form: a list of dicts with effect, right, scope and keys."""
        if not isinstance(rules, list | tuple):
            raise InvalidError("a policy must be a list of rules", where=ascii(rules)[:80])
        policy = cls()
        for rule in rules:
            if not isinstance(rule, Mapping) or set(rule) - {"effect", "right", "scope", "keys"}:
                raise InvalidError("a rule has an effect, a right, a scope and keys", where=ascii(rule)[:80])
            effect = rule.get("effect")
            if effect not in ("allow", "deny"):
                raise InvalidError("the effect of a rule must be 'allow' or 'deny'", where=ascii(rule)[:80])
            policy = policy._with(effect == "allow", rule.get("right"), rule.get("scope", ALL), rule.get("keys", ALL))  # type: ignore[arg-type]
        return policy


def load_policy(rules: object, _version: int = 0) -> Policy:
    """Build the policy of a role from its stored form. `CorruptError` if it is not one."""
    try:
        return Policy.of(rules)
    except InvalidError as error:
        raise CorruptError(f"the policy of a role cannot be decoded: {error.what}", where=ACCESS) from error


# Grant ----------------------------------------------------------------------------------------------------------------
#
# Grants: the right of an identity or a group to read or write a scope, or some keys of it, perhaps for a time.

BELOW_OWN, BELOW_ALL = "own", "all"
"""How far a grant reaches below its scope: to what the owner of the scope owns, or to everything."""

RETENTION = 30 * 86400 * 10**9
"""How long a right that was revoked or has expired is retained, in nanoseconds."""


class EndingRight(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stored right that can be revoked, and may expire. Times are in nanoseconds since 1970, 0 for never."""

    id: str
    until: int = 0
    """When it expires."""
    revoked: int = 0
    """When it was revoked."""

    def is_live(self, now: int) -> bool:
        """Whether it is neither revoked nor expired."""
        return not self.revoked and not 0 < self.until <= now

    def end_time(self) -> int:
        """Return when it was revoked or expires; 0 for never."""
        return min(filter(None, (self.revoked, self.until)), default=0)

    def is_past(self, now: int) -> bool:
        """Whether it ended so long ago that it is not retained."""
        return 0 < self.end_time() < now - RETENTION

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form."""
        return msgspec.structs.asdict(self)

    @classmethod
    def load(cls, found: object, _version: int = 0) -> Self:
        """Build a right from its stored form. `CorruptError` if it is not one."""
        try:
            return convert(found, cls)
        except msgspec.ValidationError as error:
            raise CorruptError(f"a stored right cannot be decoded: {error}", where=ACCESS) from error


class GrantRecord(EndingRight, frozen=True, kw_only=True):
    """A stored grant."""

    to: str
    """The identity that has it, or `group:` and a group."""
    right: str
    """Rights, separated by commas: `read,write`."""
    scope: str
    keys: str
    """The pattern of keys; empty for the scope as a whole."""
    below: str
    """Whether scopes below are covered: empty for none; `own` for those that belong to the owner of the scope; `all`.
    """
    by: str
    """The identity that granted it; empty for the store's owner."""
    given: int
    """When it was granted."""
    revoked_by: str = ""
    thread: str = ""
    """The pattern of names of threads; empty for a grant of a scope, which has none."""

    def covers_thread(self, right: str, thread: str, owner: str) -> bool:
        """Whether it concerns a right to a thread with this owner; also if it has ended. What an identity grants covers
        its own threads only, and no right that it does not have as their owner."""
        return self.names_thread(right, thread) and (not self.by or (self.by == owner and right in OWNER_RIGHTS))

    def names_thread(self, right: str, thread: str) -> bool:
        """Whether it is one of a right to threads with such a name, whoever owns them."""
        return bool(self.thread) and right in rights_of(self.right) and matcher(self.thread)(thread)

    def reaches_below(self, action: Action, mine: Scope, scope: Scope) -> bool:
        """Whether it concerns a scope below its own, `mine`, and this action; also if it has ended."""
        if not self.below or action not in rights_of(self.right):
            return False
        return self.below == BELOW_ALL or owns(mine, scope)

    def covers(self, key: str | None) -> bool:
        """Whether it covers a key, or all keys of a pattern, or, for None, the whole scope."""
        if not self.keys or key is None:
            return not self.keys
        return key.is_within(self.keys) if isinstance(key, KeyPattern) else matcher(self.keys)(key)
