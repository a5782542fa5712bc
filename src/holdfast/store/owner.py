"""What a store's owner has besides scoped state and checkpoints: others to act as, and agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from holdfast.agents.entry import AGENTS
from holdfast.backends.runtime.drivers import sync_or_async
from holdfast.state.api import ScopeParts
from holdfast.state.owner_api import OwnerOperations

if TYPE_CHECKING:
    from holdfast.security.access.identity import Identity
    from holdfast.security.access.identity_guard import Mode
    from holdfast.security.access.policy import Policy
    from holdfast.store.identity_view import AsyncIdentityView, IdentityView

_WINDOW = 5.0


class OwnerStore(OwnerOperations):
    """Scoped state as its owner has it, identities, and agents."""

    agents = AGENTS

    def _acting_as(
        self,
        identity: Identity | str | None = None,
        /,
        *,
        mode: Mode = "strict",
        policy: Policy | str | None = None,
        children: str | None = "read",
        read_window: float = _WINDOW,
        **parts: Unpack[ScopeParts],
    ) -> IdentityView:
        """The store as an identity sees it: `store.acting_as(agent="researcher")`, or by its text.

        It has scoped state, and nothing else of the store. In the mode `strict` an identity has the scope of its own
        path, and those below it whose further parts are steps, tools, hooks or custom; what was granted to it, to its
        groups and by its roles; and it reads its children's scopes, where `store.access.allow_children` allows it and
        `children` is not None. `read-only` is the same without any change. In `custom` a policy decides on everything:
        a `Policy`, or the name of a role, as the store has it at the time.

        Everything it does is in the audit. What it changes and what it is denied is there at once; what it reads, after
        `read_window` seconds at the latest; with 0, before it is handed out.
        """
        from holdfast.store.identity_view import IdentityView, how_of

        how = how_of(mode, policy, children, read_window, waits=True)
        return IdentityView(self._handle, self._guard_of(identity, parts, how))

    def _async_acting_as(
        self,
        identity: Identity | str | None = None,
        /,
        *,
        mode: Mode = "strict",
        policy: Policy | str | None = None,
        children: str | None = "read",
        read_window: float = _WINDOW,
        **parts: Unpack[ScopeParts],
    ) -> AsyncIdentityView:
        from holdfast.store.identity_view import AsyncIdentityView, how_of

        how = how_of(mode, policy, children, read_window, waits=False)
        return AsyncIdentityView(self._handle, self._guard_of(identity, parts, how))

    acting_as = sync_or_async(_acting_as, _async_acting_as)
