"""Acting as somebody: scoped state as an identity sees it, and nothing else of the store."""

from __future__ import annotations

from typing import Unpack

from holdfast.agents.entry import AGENTS
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine.model.scopes import Scope
from holdfast.errors import InvalidError
from holdfast.security.access.grant import BELOW_OWN, GrantRecord
from holdfast.security.access.identity import Identity
from holdfast.security.access.identity_guard import MODES, DenialReason, GuardMode, IdentityGuard, Mode
from holdfast.security.access.policy import Policy, Right
from holdfast.security.access.registry import AccessRegistry
from holdfast.security.handle import ScopeParts, StoreHandle, parse_scope
from holdfast.state.access_api import Grant, Until, Who, build_request, grant_id, to_grant
from holdfast.state.api import ScopedOperations


def how_of(mode: Mode, policy: Policy | str | None, children: str | None, window: float, *, waits: bool) -> GuardMode:
    """How somebody is to act, as a caller says it."""
    if mode not in MODES:
        raise InvalidError(f"the mode is 'strict', 'read-only' or 'custom', not {mode!r}")
    if children not in ("read", None):
        raise InvalidError(f"children is 'read' or None, not {children!r}")
    if type(window) not in (int, float) or not 0 <= window <= 3600:
        raise InvalidError(f"the window of reads is a number of seconds from 0 to 3600, not {window!r}")
    if (mode == "custom") is (policy is None):
        raise InvalidError(
            "a policy is given with the mode custom, and with no other", hint="Give a Policy, or a role's name"
        )
    if policy is not None and not isinstance(policy, Policy | str):
        raise InvalidError(f"a policy is a Policy, or the name of a role, not {type(policy).__name__}")
    given = policy if isinstance(policy, Policy) else None
    role = policy if isinstance(policy, str) else ""
    return GuardMode(mode, given, role, children == "read", float(window), waits)


class IdentityOperations(ScopedOperations):
    """What an identity can do. `IdentityView` and `AsyncIdentityView` have these as methods.

    Every operation is checked, each time: what is denied raises `DeniedError`, and is noted in the audit before that.
    """

    agents = AGENTS

    def __init__(self, handle: StoreHandle, guard: IdentityGuard) -> None:
        super().__init__(StoreHandle(handle.engine, handle.tenant, guard))
        self._guard = guard
        self._access = AccessRegistry(handle.engine, handle.tenant, guard.actor)

    @property
    def identity(self) -> Identity:
        """Who acts."""
        return self._guard.identity

    @property
    def mode(self) -> Mode:
        """How: `strict`, `read-only` or `custom`."""
        return self._guard.guard_mode.mode

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.identity}, {self.mode}>"

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
        """Let another identity, or a group, read or write a scope of one's own, or both; without a scope, the one that
        has the identity's path.

        What was granted to oneself cannot be passed on. `keys`, `below` and `until` are as in `store.access.grant`;
        below a scope, only what is one's own is granted.
        """
        mine = self.identity.scope if scope is None and not parts else parse_scope(self._handle, scope, parts)
        await self._check_own("grant", mine)
        asked = build_request(self._handle, to, right, mine, keys, BELOW_OWN if below else "", until)
        return to_grant(await self._access.grant(asked), self._handle.now())

    @sync_and_async
    async def revoke(self, grant: Grant | str) -> Grant:
        """Take a grant of a scope of one's own back, whoever gave it. To whoever does not own the scope there is no
        such grant: `NotFoundError`."""
        await self._check_own("revoke", self.identity.scope)
        id = grant_id(grant)
        mine = [each for each in await self._of_own(dead=True) if each.id == id]
        if not mine:
            await self._guard.denied_error("revoke", self.identity.scope, (), _NOT_OWN)
        return to_grant(await self._access.revoke(mine[0].id if mine else ""), self._handle.now())

    @sync_and_async
    async def grants(self, *, dead: bool = False) -> list[Grant]:
        """Who was granted what of one's own scopes; with `dead`, also what was revoked or has expired in the last
        weeks."""
        return [to_grant(each, self._handle.now()) for each in await self._of_own(dead=dead)]

    @sync_and_async
    async def granted(self, *, dead: bool = False) -> list[Grant]:
        """What one was granted oneself, not counting what groups were."""
        found = await self._access.grants(str(self.identity), dead=dead)
        return [to_grant(each, self._handle.now()) for each in found]

    async def _of_own(self, *, dead: bool) -> list[GrantRecord]:
        found = await self._access.grants(dead=dead)
        return [each for each in found if self.identity.owns(Scope.parse(each.scope))]

    async def _check_own(self, action: str, scope: Scope) -> None:
        """Only who owns a scope grants it, and only in a mode that is not narrower than owning is."""
        if self.mode != "strict":
            raise await self._guard.denied_error(action, scope, (), _NARROW)
        if not self.identity.owns(scope):
            raise await self._guard.denied_error(action, scope, (), _NOT_OWN)


class IdentityView(SyncApi, IdentityOperations):
    """A store as an identity sees it. See `Store.as_identity`."""


class AsyncIdentityView(AsyncApi, IdentityOperations):
    """The same for asyncio: operations are awaited."""


_NARROW = DenialReason("rights are given and taken in the mode strict only", "Act in that mode")
_NOT_OWN = DenialReason("it is not its own", "Whoever owns the scope, or the store, can do it")
