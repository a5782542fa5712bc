"""Rights as programs give and take them: `store.access`."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, TypeAlias, Unpack

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine.guard import Action
from holdfast.engine.model.scopes import Scope
from holdfast.engine.types import to_datetime, to_time
from holdfast.errors import InvalidError
from holdfast.security.access.grant import BELOW_ALL, GrantRecord
from holdfast.security.access.identity import Identity, group_name, holder, identity_of
from holdfast.security.access.identity_guard import GuardMode, IdentityGuard
from holdfast.security.access.policy import Policy, Right, check_pattern, check_right
from holdfast.security.access.registry import AccessRegistry, GrantRequest
from holdfast.security.audit.recorder import AuditRecorder
from holdfast.security.handle import StoreHandle
from holdfast.state.scope_parts import ScopeParts, named
from holdfast.time_parsing import Duration, parse_deadline

Until: TypeAlias = "datetime | Duration | None"
"""When a grant expires: at a time, or so long from now: `timedelta(hours=1)`, `3600`, `"1h"`. None for never."""

Who: TypeAlias = "Identity | Scope | str"
"""An identity, by itself or by its text; or, where that is told, `group:` and a group."""


class Grant(NamedTuple):
    """A grant: who may do what, since when, until when, and who gave it. `revoke` takes it or its `id`."""

    id: str
    to: str
    right: Right
    scope: str
    keys: str
    """The pattern of the keys that are granted; empty for the scope as a whole."""
    below: str
    """`own` or `all`, where scopes below are granted too."""
    until: datetime | None
    by: str
    """Who gave it; empty for the store's owner."""
    given: datetime
    revoked: datetime | None
    revoked_by: str
    live: bool


def shown(grant: GrantRecord, now: int) -> Grant:
    """A grant as callers are given it."""
    return Grant(
        *grant[:6],
        to_datetime(grant.until) if grant.until else None,
        grant.by,
        to_datetime(grant.given),
        to_datetime(grant.revoked) if grant.revoked else None,
        grant.revoked_by,
        grant.is_live(now),
    )


def wanted(
    handle: StoreHandle, to: Who, right: Right, scope: Scope, keys: str, below: str, until: Until
) -> GrantRequest:
    """The grant that a caller asks for."""
    pattern = check_pattern(keys, "keys of a grant") if keys else ""
    return GrantRequest(holder(to), check_right(right), scope, pattern, below, _moment(handle, until))


def _moment(handle: StoreHandle, until: Until) -> int:
    if until is None:
        return 0
    return to_time(parse_deadline(until, to_datetime(handle.now()).astimezone()))


def grant_id(grant: Grant | str) -> str:
    """The id of a grant that is named."""
    id = grant.id if isinstance(grant, Grant) else grant
    if not isinstance(id, str):
        raise InvalidError(f"a grant is named by its id, not by {type(id).__name__}")
    return id


class AccessOperations:
    """The rights of identities, for the store's owner to give and take. `store.access` has these as methods."""

    def __init__(self, handle: StoreHandle, notes: AuditRecorder) -> None:
        self._handle = handle
        self._notes = notes
        self._access = AccessRegistry(handle.engine, handle.tenant)

    @sync_and_async
    async def grant(
        self,
        to: Who,
        right: Right = "read",
        scope: Scope | str | None = None,
        *,
        keys: str = "",
        below: bool = False,
        until: Until = None,
        **parts: Unpack[ScopeParts],
    ) -> Grant:
        """Let an identity, or a group, read or write a scope, or both.

        `to` is an identity (`"agent:writer"`) or a group (`"group:editors"`; everybody is in `"group:everyone"`). The
        scope is named as in `Store.state`. With `keys`, only keys that match that pattern are granted; with `below`,
        all scopes below, too; with `until`, it expires.
        """
        found = named(self._handle, scope, parts)
        asked = wanted(self._handle, to, right, found, keys, BELOW_ALL if below else "", until)
        return shown(await self._access.grant(asked), self._handle.now())

    @sync_and_async
    async def revoke(self, grant: Grant | str) -> Grant:
        """Take a grant back, by itself or by its id: at once, also for handles that are open. Raises
        `NotFoundError`."""
        return shown(await self._access.revoke(grant_id(grant)), self._handle.now())

    @sync_and_async
    async def grants(
        self,
        to: Who | None = None,
        scope: Scope | str | None = None,
        *,
        dead: bool = False,
        **parts: Unpack[ScopeParts],
    ) -> list[Grant]:
        """Grants, the oldest first: all, those to somebody, those of a scope. With `dead`, also those that were revoked
        or have expired in the last weeks."""
        at = None if scope is None and not parts else named(self._handle, scope, parts)
        found = await self._access.grants("" if to is None else holder(to), at, dead=dead)
        return [shown(each, self._handle.now()) for each in found]

    @sync_and_async
    async def cut_off(self, who: Who) -> int:
        """Take from an identity, or a group, all it was ever given: grants, roles, groups, the sight of its children.

        As one change, at once. Its own scopes stay its own. Returns how many rights that were.
        """
        return await self._access.cut_off(holder(who))

    @sync_and_async
    async def may(
        self,
        who: Who,
        action: Action,
        scope: Scope | str | None = None,
        key: str | None = None,
        **parts: Unpack[ScopeParts],
    ) -> bool:
        """Whether an identity that acts in the mode strict may do this now, with a key or with the whole scope. Only a
        question: nothing is noted."""
        if action not in ("read", "write"):
            raise InvalidError(f"what is done is 'read' or 'write', not {action!r}")
        at = named(self._handle, scope, parts)
        keys = () if key is None else (self._handle.guard.key(at, key),)
        identity = identity_of(who)
        if identity.owns(at):
            return True
        guard = IdentityGuard(self._handle.engine, self._handle.tenant, identity, GuardMode(), self._notes)
        rights = await self._access.rights(await self._access.fresh(), identity)
        return guard.decide(rights, action, at, keys) is None

    # Children, groups, roles ----------------------------------------------------------------------------------

    @sync_and_async
    async def allow_children(self, who: Who) -> None:
        """Let an identity read the scopes of its children: those below its own that may be identities themselves, as
        `user:alice/agent:writer` is below `user:alice`."""
        await self._access.authorize(identity_of(who))

    @sync_and_async
    async def forbid_children(self, who: Who) -> None:
        """Let it do so no longer. Raises `NotFoundError` if it could not."""
        await self._access.unauthorize(identity_of(who))

    @sync_and_async
    async def parents(self) -> list[str]:
        """The identities that may read their children's scopes."""
        return await self._access.parents()

    @sync_and_async
    async def join(self, group: str, *members: Who) -> None:
        """Take identities into a group; it is made by that."""
        await self._access.join(group_name(group), _members(members))

    @sync_and_async
    async def leave(self, group: str, *members: Who) -> None:
        """Take identities out of a group. Raises `NotFoundError` if one is not in it."""
        await self._access.leave(group_name(group), _members(members))

    @sync_and_async
    async def groups(self) -> dict[str, list[str]]:
        """Groups, and the identities in them."""
        return await self._access.groups()

    @sync_and_async
    async def define_role(self, role: str, policy: Policy) -> None:
        """Keep a policy under a name, in place of what was there. Whoever has the role is under it at once."""
        if not isinstance(policy, Policy):
            raise InvalidError(
                f"a role is a Policy, not {type(policy).__name__}", hint='Such as Policy().allow("read")'
            )
        await self._access.define(role, policy)

    @sync_and_async
    async def drop_role(self, role: str) -> None:
        """Forget a role. Raises `NotFoundError`."""
        await self._access.undefine(role)

    @sync_and_async
    async def roles(self) -> dict[str, Policy]:
        """Roles, and their policies."""
        return await self._access.roles()

    @sync_and_async
    async def assign(self, role: str, to: Who) -> None:
        """Give an identity, or a group, a role. Raises `NotFoundError` if there is none of that name."""
        await self._access.assign(role, holder(to))

    @sync_and_async
    async def unassign(self, role: str, to: Who) -> None:
        """Take a role from an identity, or a group. Raises `NotFoundError` if it does not have it."""
        await self._access.unassign(role, holder(to))

    @sync_and_async
    async def assignments(self) -> dict[str, list[str]]:
        """Who has which roles."""
        return await self._access.assignments()


class StoreAccess(SyncApi, AccessOperations):
    """The rights of identities, given and taken. See `Store.access`."""


class AsyncStoreAccess(AsyncApi, AccessOperations):
    """The same for asyncio: operations are awaited."""


def _members(members: tuple[Who, ...]) -> list[str]:
    if not members:
        raise InvalidError("a group is joined or left by an identity at least")
    return [str(identity_of(each)) for each in members]
