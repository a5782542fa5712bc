"""The view of a store that an identity has: threads, scoped state and agents, as far as it has rights to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, overload

from holdfast.backends.runtime.drivers import AsyncApi, Part, SyncApi, operation
from holdfast.engine.model.scopes import Scope
from holdfast.engine.types import S
from holdfast.errors import InvalidError
from holdfast.security.access.identity import Identity
from holdfast.security.access.identity_guard import MODES, DenialReason, GuardMode, IdentityGuard, Mode
from holdfast.security.access.policy import (
    BELOW_OWN,
    OWNER_RIGHTS,
    GrantRecord,
    Policy,
    Rights,
    check_rights,
    rights_of,
)
from holdfast.security.access.registry import AccessRegistry
from holdfast.security.handle import ScopeParts, StoreHandle, parse_scope
from holdfast.state.access_api import Grant, Until, Who, build_request, grant_id, thread_request, to_grant
from holdfast.state.api import ScopedOperations
from holdfast.store.thread import AsyncThread, Thread, check_schema
from holdfast.store.thread_access import ThreadListing
from holdfast.time_parser import Duration, parse_seconds

if TYPE_CHECKING:
    from holdfast.store.erasure import AsyncIdentityErasure, IdentityErasure
    from holdfast.store.identity_runs import AsyncIdentityRuns, IdentityRuns
    from holdfast.store.redaction import AsyncIdentityRedaction, IdentityRedaction


def guard_mode(
    mode: Mode, policy: Policy | str | None, children: str | None, window: Duration, *, waits: bool
) -> GuardMode:
    """Return the mode of a guard from the arguments of `as_identity`."""
    if mode not in MODES:
        raise InvalidError(f"the mode must be 'strict', 'read-only' or 'custom', not {mode!r}")
    if children not in ("read", None):
        raise InvalidError(f"children must be 'read' or None, not {children!r}")
    seconds = parse_seconds(window, "read_window")
    if seconds > 3600:
        raise InvalidError(f"read_window must be at most an hour, not {window!r}")
    if (mode == "custom") is (policy is None):
        raise InvalidError(
            "a policy goes with the mode custom, and with no other", hint="Give a Policy, or a role's name"
        )
    if policy is not None and not isinstance(policy, Policy | str):
        raise InvalidError(f"the policy must be a Policy or the name of a role, not {type(policy).__name__}")
    given = policy if isinstance(policy, Policy) else None
    role = policy if isinstance(policy, str) else ""
    return GuardMode(mode, given, role, children == "read", seconds, waits)


class IdentityOperations(ThreadListing, ScopedOperations):
    """Operations of an identity. `IdentityView` and `AsyncIdentityView` have these as methods.

    Every operation is checked each time. One that is denied is recorded in the audit, and raises `DeniedError`.
    """

    def __init__(self, handle: StoreHandle, guard: IdentityGuard) -> None:
        super().__init__(StoreHandle(handle.engine, handle.tenant, guard))
        self._guard = guard
        self._access = AccessRegistry(handle.engine, handle.tenant, guard.actor)

    redaction: Part[IdentityRedaction, AsyncIdentityRedaction] = Part(
        "holdfast.store.redaction.IdentityRedaction",
        "Tokens of sensitive data, which an identity with the right `keys` can reveal.",
    )

    erasure: Part[IdentityErasure, AsyncIdentityErasure] = Part(
        "holdfast.store.erasure.IdentityErasure",
        "Erasing the data of one person, for an identity with the right `erase` to all of it.",
    )

    runs: Part[IdentityRuns, AsyncIdentityRuns] = Part(
        "holdfast.store.identity_runs.IdentityRuns",
        "Runs of threads that the identity may read, and of those that it may write.",
    )

    @property
    def identity(self) -> Identity:
        """The identity."""
        return self._guard.identity

    @property
    def mode(self) -> Mode:
        """The mode: `strict`, `read-only` or `custom`."""
        return self._guard.guard_mode.mode

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.identity}, {self.mode}>"

    @operation(changes=True, confirm=True, rights=())
    async def grant(
        self,
        to: Who,
        right: Rights = "read",
        scope: Scope | str | None = None,
        *,
        thread: str | None = None,
        keys: str = "",
        below: bool = False,
        until: Until = None,
        **parts: Unpack[ScopeParts],
    ) -> Grant:
        """Grant another identity, or a group, the right to read or write a scope that this identity owns, or both; or a
        right to its threads whose names match a pattern, `thread`, as long as it owns them.

        Without a scope, it is the one with the identity's own path. Rights that were granted to this identity cannot be
        passed on. `keys`, `below` and `until` are those of `store.access.grant`; `below` covers only scopes that this
        identity owns.
        """
        if thread is not None:
            await self._check_own("grant", self.identity.scope)
            if not rights_of(check_rights(right)) <= OWNER_RIGHTS:
                raise await self._guard.denied_error("grant", self.identity.scope, (), _NOT_OF_OWNERS)
            asked = thread_request(self._handle, to, right, thread, until, scope, parts, keys, below=below)
            return to_grant(await self._access.grant(asked), self._handle.now())
        mine = self.identity.scope if scope is None and not parts else parse_scope(self._handle, scope, parts)
        await self._check_own("grant", mine)
        asked = build_request(self._handle, to, right, mine, keys, BELOW_OWN if below else "", until)
        return to_grant(await self._access.grant(asked), self._handle.now())

    @operation(changes=True, confirm=True, rights=())
    async def revoke(self, grant: Grant | str) -> Grant:
        """Revoke a grant of a scope that this identity owns, whoever gave it. `NotFoundError` for any other grant."""
        await self._check_own("revoke", self.identity.scope)
        id = grant_id(grant)
        mine = [each for each in await self._of_own(dead=True) if each.id == id]
        if not mine:
            await self._guard.denied_error("revoke", self.identity.scope, (), _NOT_OWN)
        return to_grant(await self._access.revoke(mine[0].id if mine else ""), self._handle.now())

    @operation(rights=())
    async def grants(self, *, dead: bool = False) -> list[Grant]:
        """List the grants of scopes that this identity owns, and those of its threads that it gave; with `dead`, also
        those revoked or expired in the last weeks."""
        await self._guard.require_active("grants")
        return [to_grant(each, self._handle.now()) for each in await self._of_own(dead=dead)]

    @operation(rights=())
    async def granted(self, *, dead: bool = False) -> list[Grant]:
        """List the grants that this identity was given itself, without those of its groups."""
        await self._guard.require_active("granted")
        found = await self._access.grants(str(self.identity), dead=dead)
        return [to_grant(each, self._handle.now()) for each in found]

    async def _of_own(self, *, dead: bool) -> list[GrantRecord]:
        found = await self._access.grants(dead=dead)
        me = str(self.identity)
        return [
            each for each in found if (each.by == me if each.thread else self.identity.owns(Scope.parse(each.scope)))
        ]

    async def _check_own(self, action: str, scope: Scope) -> None:
        """Deny it unless the identity owns the scope and acts in the mode strict."""
        if self.mode != "strict":
            raise await self._guard.denied_error(action, scope, (), _NARROW)
        if not self.identity.owns(scope):
            raise await self._guard.denied_error(action, scope, (), _NOT_OWN)
        await self._guard.require_active(action)


class IdentityView(SyncApi, IdentityOperations):
    """A store as an identity sees it. See `Store.as_identity`."""

    @overload
    def thread(self, name: str) -> Thread: ...
    @overload
    def thread(self, name: str, schema: type[S]) -> Thread[S]: ...
    def thread(self, name: str, schema: type[Any] | None = None) -> Thread[Any]:
        """Return the handle of a thread. Its first save makes the identity the owner of the thread. See
        `Store.thread`."""
        check_schema(schema)
        return Thread(self._handle, name)


class AsyncIdentityView(AsyncApi, IdentityOperations):
    """A store as an identity sees it, for asyncio: operations are awaited. See `AsyncStore.as_identity`."""

    @overload
    def thread(self, name: str) -> AsyncThread: ...
    @overload
    def thread(self, name: str, schema: type[S]) -> AsyncThread[S]: ...
    def thread(self, name: str, schema: type[Any] | None = None) -> AsyncThread[Any]:
        """Return the handle of a thread. Its first save makes the identity the owner of the thread. See
        `AsyncStore.thread`."""
        check_schema(schema)
        return AsyncThread(self._handle, name)


_NARROW = DenialReason("rights are given and taken in the mode strict only", "Act in that mode")
_NOT_OF_OWNERS = DenialReason("the owner of a thread does not have this right", "The store's owner can grant it")
_NOT_OWN = DenialReason("it is not its own", "Whoever owns the scope, or the store, can do it")
