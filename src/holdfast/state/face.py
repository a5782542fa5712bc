"""Scoped state as programs meet it: `store.state(agent="researcher")`, and transactions over it.

A `Store` has these operations, and acts in them as its owner; so has what `store.acting_as(…)` returns, which may do
less.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypedDict, Unpack, cast

from holdfast import arguments
from holdfast.backends.waiting import Pause
from holdfast.engine.drivers import Sync, arun, either, run
from holdfast.errors import Conflict, Invalid
from holdfast.model.scopes import Scope
from holdfast.state.handles import Handle
from holdfast.state.scoped import AsyncState, State
from holdfast.state.transactions import AsyncTransactionState, Pending, TransactionState
from holdfast.state.writing import Written

ATTEMPTS = 1000
"""How often a transaction is begun anew, unless told otherwise. Each time, somebody else got through."""


class Parts(TypedDict, total=False):
    """What a scope is made of."""

    user: str | None
    session: str | None
    workflow: str | None
    agent: str | None
    step: str | None
    tool: str | None
    hook: str | None
    custom: str | None


class ScopedOperations:
    """Scoped state, and transactions over it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def _state(self, scope: Scope | str | None = None, /, **parts: Unpack[Parts]) -> State:
        """The state of a scope: of an agent, of a step in a workflow, and so on; without any, the global one.

        Parts nest: `state(workflow="w1", step="fetch")` is a scope of its own inside `state(workflow="w1")`. In which
        order they are given makes no difference. A scope can also be given as text: `state("workflow:w1/step:fetch")`.
        """
        return State(self._handle, named(self._handle, scope, parts))

    def _async_state(self, scope: Scope | str | None = None, /, **parts: Unpack[Parts]) -> AsyncState:
        return AsyncState(self._handle, named(self._handle, scope, parts))

    state = either(_state, _async_state)

    def transaction(self) -> StateTransaction:
        """Several keys changed, of one scope or many, all or none, when the block ends without an error."""
        return StateTransaction(self._handle, self)

    def _transact(self, function: Callable[[Any], Any], *, attempts: int = ATTEMPTS) -> Any:
        """Run a function in a transaction, and begin anew while what it read is changed by others.

        It is given the transaction, may be called several times, and does nothing that cannot be done again. Returns
        what it returns.
        """
        for attempt in range(1, arguments.count(attempts, "number of attempts") + 1):
            try:
                with self.transaction() as together:
                    return function(together)
            except Conflict as conflict:
                if not _is_stale(conflict, attempt, attempts):
                    raise
            run(_pause(attempt))
        raise Invalid("a transaction is attempted at least once")

    async def _async_transact(self, function: Callable[[Any], Awaitable[Any]], *, attempts: int = ATTEMPTS) -> Any:
        for attempt in range(1, arguments.count(attempts, "number of attempts") + 1):
            try:
                async with self.transaction() as together:
                    return await function(together)
            except Conflict as conflict:
                if not _is_stale(conflict, attempt, attempts):
                    raise
            await arun(_pause(attempt))
        raise Invalid("a transaction is attempted at least once")

    transact = either(_transact, _async_transact)


def _is_stale(conflict: Conflict, attempt: int, attempts: int) -> bool:
    return conflict.code == "version-mismatch" and attempt < attempts


async def _pause(attempt: int) -> None:
    if attempt > 1:
        await Pause(random.random() * min(0.05, 0.001 * attempt))  # noqa: S311 - not for secrets


def named(handle: Handle, scope: Scope | str | None, parts: Parts) -> Scope:
    """The scope that a caller names."""
    if scope is None:
        return handle.guard.scope(cast(Mapping[str, Any], parts))
    if parts:
        raise Invalid("a scope is named by its text or by its parts, not by both", where=str(scope)[:80])
    return scope if isinstance(scope, Scope) else handle.guard.scope(scope)


class StateTransaction:
    """Changes of several keys and scopes, all or none. See `Store.transaction`."""

    def __init__(self, handle: Handle, owner: object) -> None:
        self._pending = Pending(handle)
        self._is_sync = isinstance(owner, Sync)
        self._open = False
        self.written: list[Written] = []
        """The keys that were changed, with their versions; empty until then."""

    def state(self, scope: Scope | str | None = None, /, **parts: Unpack[Parts]) -> Any:
        """The state of a scope, as in `Store.state`, read and changed in this transaction."""
        self._check_open()
        found = named(self._pending.handle, scope, parts)
        return (TransactionState if self._is_sync else AsyncTransactionState)(self._pending, found)

    async def _commit(self) -> None:
        self.written, _ = await self._pending.commit()

    def __enter__(self) -> Self:
        if not self._is_sync:
            raise Invalid("a transaction of an AsyncStore is entered with `async with`")
        self._open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._open = False
        if kind is None:
            run(self._commit())

    async def __aenter__(self) -> Self:
        if self._is_sync:
            raise Invalid("a transaction of a Store is entered with `with`")
        self._open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._open = False
        if kind is None:
            await arun(self._commit())

    def _check_open(self) -> None:
        if not self._open:
            raise Invalid("the transaction is not open", hint="Use it inside its `with` block")
