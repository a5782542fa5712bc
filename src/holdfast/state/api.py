"""The API of scoped state: `store.state(agent="researcher")`, and transactions over it.

A `Store` has these operations as the owner; a view from `store.as_identity(…)` has them, too, and may do less.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from holdfast.backends.runtime.drivers import Part, Pause, SyncApi, arun, operation, run, sync_or_async
from holdfast.engine import validation
from holdfast.engine.model.scopes import Scope
from holdfast.engine.pages import Page, paged
from holdfast.engine.rng import rng
from holdfast.errors import ConflictError, InvalidError
from holdfast.security.handle import ScopeParts, StoreHandle, parse_scope

if TYPE_CHECKING:  # whoever only looks at threads starts sooner without these
    from holdfast.state.artifacts.api import Artifacts, AsyncArtifacts
    from holdfast.state.scope_state import AsyncState, State
    from holdfast.state.scopes import ScopeInfo
    from holdfast.state.sessions.api import AsyncSessions, Sessions
    from holdfast.state.sharing.api import AsyncSharing, Sharing
    from holdfast.state.writer import WrittenKey

T = TypeVar("T")

ATTEMPTS = 1000
"""How often a transaction is attempted by default. Each time, another writer succeeded."""


class ScopedOperations:
    """Scoped state, and transactions over it."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    def _state(self, scope: Scope | str | None = None, /, **parts: Unpack[ScopeParts]) -> State:
        """Return the state of a scope: of an agent, of a step in a workflow, and so on; without any, the global one.

        Parts nest: `state(workflow="w1", step="fetch")` is a scope inside `state(workflow="w1")`. Their order makes no
        difference. A scope can also be given as text: `state("workflow:w1/step:fetch")`.
        """
        from holdfast.state.scope_state import State

        return State(self._handle, parse_scope(self._handle, scope, parts))

    @sync_or_async(_state)
    def state(self, scope: Scope | str | None = None, /, **parts: Unpack[ScopeParts]) -> AsyncState:
        from holdfast.state.scope_state import AsyncState

        return AsyncState(self._handle, parse_scope(self._handle, scope, parts))

    @operation
    @paged
    async def scopes(
        self, prefix: str = "", *, pattern: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[ScopeInfo]:
        """List the scopes that have state, or had some, in the order of their text, a page of them: those that start
        with a prefix (`user:alice/`), those that match a pattern (`agent:*`). An identity gets those that it may
        read."""
        from holdfast.state.scopes import list_scopes

        count = validation.require_count(limit, "limit")
        found = await list_scopes(self._handle, prefix, pattern, validation.cursor_text(cursor), count + 1)
        return Page.cut(found, count, lambda info: str(info.scope))

    @overload
    def transaction(self) -> StateTransaction: ...
    @overload
    def transaction(self, function: Callable[[StateTransaction], T], *, attempts: int = ...) -> T: ...
    def transaction(self, function: Callable[[Any], Any] | None = None, *, attempts: int = ATTEMPTS) -> Any:
        """Change several keys in one scope or many, all or none: in a block, `with view.transaction() as together:`, or
        by a function, which is called again while others change what it has read.

        The function gets the transaction, may be called several times, and must do nothing that cannot be repeated.
        Returns its result.
        """
        return self._run(function, attempts)

    def _begin(self) -> StateTransaction:
        return StateTransaction(self._handle, self)

    def _run(self, function: Callable[[Any], Any] | None, attempts: int) -> Any:
        """Return a transaction, or run a function in one."""
        if function is None:
            return self._begin()
        if not callable(function):
            raise InvalidError(
                f"transaction expects a function, got {type(function).__name__}",
                hint="It gets the transaction as its argument",
            )
        if validation.require_count(attempts, "number of attempts") < 1:
            raise InvalidError("attempts must be at least 1")
        return self._repeat(function, attempts) if isinstance(self, SyncApi) else self._arepeat(function, attempts)

    def _repeat(self, function: Callable[[Any], Any], attempts: int) -> Any:
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._begin() as together:
                    return function(together)
            except ConflictError as conflict:
                if not _is_stale(conflict, attempt, attempts):
                    raise
            run(_pause(attempt))

    async def _arepeat(self, function: Callable[[Any], Awaitable[Any]], attempts: int) -> Any:
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self._begin() as together:
                    return await function(together)
            except ConflictError as conflict:
                if not _is_stale(conflict, attempt, attempts):
                    raise
            await arun(_pause(attempt))

    sessions: Part[Sessions, AsyncSessions] = Part(
        "holdfast.state.sessions.api.Sessions",
        "Sessions: state that ends with them.",
    )

    artifacts: Part[Artifacts, AsyncArtifacts] = Part(
        "holdfast.state.artifacts.api.Artifacts",
        "Artifacts: files and blobs, and the changes made with them.",
    )

    sharing: Part[Sharing, AsyncSharing] = Part(
        "holdfast.state.sharing.api.Sharing",
        "Topics, requests, pipelines and documents that agents share.",
    )


def _is_stale(conflict: ConflictError, attempt: int, attempts: int) -> bool:
    return conflict.code == "version-mismatch" and attempt < attempts


async def _pause(attempt: int) -> None:
    if attempt > 1:
        # Never for long: one who has just been first does not pause at all, and would be first again.
        await Pause(rng.random() * min(0.005, 0.001 * attempt))


class StateTransaction:
    """Changes of several keys and scopes, all or none. See `Store.transaction`."""

    def __init__(self, handle: StoreHandle, owner: object) -> None:
        from holdfast.state.transactions import TransactionChanges

        self._pending = TransactionChanges(handle)
        self._is_sync = isinstance(owner, SyncApi)
        self.written: list[WrittenKey] = []
        """The keys that were changed, with their versions; empty before the commit."""

    def state(self, scope: Scope | str | None = None, /, **parts: Unpack[ScopeParts]) -> Any:
        """Return the state of a scope, as in `Store.state`, to be read and changed in this transaction."""
        from holdfast.state.transactions import AsyncTransactionState, TransactionState

        self._pending.check_open()
        found = parse_scope(self._pending.handle, scope, parts)
        return (TransactionState if self._is_sync else AsyncTransactionState)(self._pending, found)

    async def _commit(self) -> None:
        self.written, _ = await self._pending.commit()

    def __enter__(self) -> Self:
        if not self._is_sync:
            raise InvalidError("a transaction of an AsyncStore is entered with `async with`")
        self._pending.is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._pending.is_open = False
        if kind is None:
            run(self._commit())

    async def __aenter__(self) -> Self:
        if self._is_sync:
            raise InvalidError("a transaction of a Store is entered with `with`")
        self._pending.is_open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._pending.is_open = False
        if kind is None:
            await arun(self._commit())
