"""Grants: the right of an identity or a group to read or write a scope, or some keys of it, perhaps for a time."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from holdfast.engine.guard import Action
from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import ACCESS
from holdfast.engine.patterns import KeyPattern, matcher
from holdfast.errors import CorruptError
from holdfast.security.access.identity import owns
from holdfast.security.access.policy import OWNER_RIGHTS, rights_of

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
            return msgspec.convert(found, cls)
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
