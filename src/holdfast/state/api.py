"""Scoped state as programs meet it: `store.state(agent="researcher")`, and transactions over it.

A `Store` has these operations, and acts in them as its owner; so has what `store.acting_as(…)` returns, which may do
less.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar, Unpack, cast, overload

from holdfast.backends.runtime.drivers import AsyncApi, Pause, SyncApi, arun, run, sync_and_async, sync_or_async
from holdfast.engine import validation
from holdfast.engine.model.scopes import Scope
from holdfast.engine.rng import chance
from holdfast.errors import ConflictError, InvalidError
from holdfast.security.handle import StoreHandle

if TYPE_CHECKING:  # whoever only looks at threads starts sooner without these
    from holdfast.state.artifacts.api import Artifacts, AsyncArtifacts
    from holdfast.state.scope_listing import ScopeInfo
    from holdfast.state.scope_state import AsyncState, State
    from holdfast.state.sessions.api import AsyncSessions, Sessions
    from holdfast.state.sharing.documents import AsyncDocument, Document
    from holdfast.state.sharing.pipeline import AsyncPipeline, Pipeline
    from holdfast.state.sharing.requests import AsyncRequests, Requests
    from holdfast.state.sharing.resource import Pattern, SharedResource
    from holdfast.state.sharing.topic import AsyncTopic, Topic
    from holdfast.state.writer import WrittenKey

T = TypeVar("T")
A = TypeVar("A")

ATTEMPTS = 1000
"""How often a transaction is begun anew, unless told otherwise. Each time, somebody else got through."""


class sync_or_async_property(Generic[T, A]):  # noqa: N801 - used like a property
    """A property that is one thing of a sync class, and its other form of an async one."""

    def __init__(self, sync: Callable[[Any], T], other: Callable[[Any], A]) -> None:
        self._sync, self._async = sync, other
        self.__doc__ = sync.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> T: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> A: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return self._sync(instance) if isinstance(instance, SyncApi) else self._async(instance)


class ScopeParts(TypedDict, total=False):
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

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    def _state(self, scope: Scope | str | None = None, /, **parts: Unpack[ScopeParts]) -> State:
        """The state of a scope: of an agent, of a step in a workflow, and so on; without any, the global one.

        Parts nest: `state(workflow="w1", step="fetch")` is a scope of its own inside `state(workflow="w1")`. In which
        order they are given makes no difference. A scope can also be given as text: `state("workflow:w1/step:fetch")`.
        """
        from holdfast.state.scope_state import State

        return State(self._handle, named(self._handle, scope, parts))

    def _async_state(self, scope: Scope | str | None = None, /, **parts: Unpack[ScopeParts]) -> AsyncState:
        from holdfast.state.scope_state import AsyncState

        return AsyncState(self._handle, named(self._handle, scope, parts))

    state = sync_or_async(_state, _async_state)

    @sync_and_async
    async def scopes(
        self, prefix: str = "", *, pattern: str = "", after: str = "", limit: int = 100
    ) -> list[ScopeInfo]:
        """A page of the scopes that have state, or had some, in the order of their text: those that start with a prefix
        (`user:alice/`), those that match a pattern (`agent:*`), those after another. An identity is shown those that it
        may read."""
        from holdfast.state.scope_listing import scopes

        return await scopes(self._handle, prefix, pattern, str(after), validation.count(limit, "limit"))

    # Sharing ----------------------------------------------------------------------------------------------------

    def _topic(self, name: str, /, **parts: Unpack[ScopeParts]) -> Topic:
        """A topic: messages that every subscriber gets, in order. Parts name the scope that it lies in, if any."""
        from holdfast.state.sharing.topic import Topic

        return Topic(self._shared("topic", name, parts))

    def _async_topic(self, name: str, /, **parts: Unpack[ScopeParts]) -> AsyncTopic:
        from holdfast.state.sharing.topic import AsyncTopic

        return AsyncTopic(self._shared("topic", name, parts))

    def _requests(self, name: str, /, **parts: Unpack[ScopeParts]) -> Requests:
        """Requests under a name: whoever serves them answers whoever asks."""
        from holdfast.state.sharing.requests import Requests

        return Requests(self._shared("requests", name, parts))

    def _async_requests(self, name: str, /, **parts: Unpack[ScopeParts]) -> AsyncRequests:
        from holdfast.state.sharing.requests import AsyncRequests

        return AsyncRequests(self._shared("requests", name, parts))

    def _pipeline(
        self, name: str, /, stages: Sequence[str], *, tries: int = 5, **parts: Unpack[ScopeParts]
    ) -> Pipeline:
        """A pipeline: items go through its stages, and are handed on once. An item is tried at a stage so often."""
        from holdfast.state.sharing.pipeline import Pipeline

        return Pipeline(self._shared("pipeline", name, parts), stages, tries)

    def _async_pipeline(
        self, name: str, /, stages: Sequence[str], *, tries: int = 5, **parts: Unpack[ScopeParts]
    ) -> AsyncPipeline:
        from holdfast.state.sharing.pipeline import AsyncPipeline

        return AsyncPipeline(self._shared("pipeline", name, parts), stages, tries)

    def _document(self, name: str, /, **parts: Unpack[ScopeParts]) -> Document:
        """A document that many edit at a time, and lose no edit."""
        from holdfast.state.sharing.documents import Document

        return Document(self._shared("document", name, parts))

    def _async_document(self, name: str, /, **parts: Unpack[ScopeParts]) -> AsyncDocument:
        from holdfast.state.sharing.documents import AsyncDocument

        return AsyncDocument(self._shared("document", name, parts))

    topic = sync_or_async(_topic, _async_topic)
    requests = sync_or_async(_requests, _async_requests)
    pipeline = sync_or_async(_pipeline, _async_pipeline)
    document = sync_or_async(_document, _async_document)

    def _shared(self, pattern: Pattern, name: str, parts: ScopeParts) -> SharedResource:
        from holdfast.state.sharing.resource import place

        return place(self._handle, pattern, name, named(self._handle, None, parts))

    def transaction(self) -> StateTransaction:
        """Several keys changed, of one scope or many, all or none, when the block ends without an error."""
        return StateTransaction(self._handle, self)

    def _transact(self, function: Callable[[Any], Any], *, attempts: int = ATTEMPTS) -> Any:
        """Run a function in a transaction, and begin anew while what it read is changed by others.

        It is given the transaction, may be called several times, and does nothing that cannot be done again. Returns
        what it returns.
        """
        for attempt in range(1, validation.count(attempts, "number of attempts") + 1):
            try:
                with self.transaction() as together:
                    return function(together)
            except ConflictError as conflict:
                if not _is_stale(conflict, attempt, attempts):
                    raise
            run(_pause(attempt))
        raise InvalidError("a transaction is attempted at least once")

    async def _async_transact(self, function: Callable[[Any], Awaitable[Any]], *, attempts: int = ATTEMPTS) -> Any:
        for attempt in range(1, validation.count(attempts, "number of attempts") + 1):
            try:
                async with self.transaction() as together:
                    return await function(together)
            except ConflictError as conflict:
                if not _is_stale(conflict, attempt, attempts):
                    raise
            await arun(_pause(attempt))
        raise InvalidError("a transaction is attempted at least once")

    transact = sync_or_async(_transact, _async_transact)

    def _sessions(self) -> Sessions:
        """Sessions: state that ends with them. See `holdfast.state.sessions.api`."""
        from holdfast.state.sessions.api import Sessions

        return Sessions(self._handle)

    def _async_sessions(self) -> AsyncSessions:
        from holdfast.state.sessions.api import AsyncSessions

        return AsyncSessions(self._handle)

    sessions = sync_or_async_property(_sessions, _async_sessions)

    def _artifacts(self) -> Artifacts:
        """Artifacts: files and blobs, and the changes made with them. See `holdfast.state.artifacts.api`."""
        from holdfast.state.artifacts.api import Artifacts

        return Artifacts(self._handle)

    def _async_artifacts(self) -> AsyncArtifacts:
        from holdfast.state.artifacts.api import AsyncArtifacts

        return AsyncArtifacts(self._handle)

    artifacts = sync_or_async_property(_artifacts, _async_artifacts)


def _is_stale(conflict: ConflictError, attempt: int, attempts: int) -> bool:
    return conflict.code == "version-mismatch" and attempt < attempts


async def _pause(attempt: int) -> None:
    if attempt > 1:
        # Never for long: one who has just been first does not pause at all, and would be first again.
        await Pause(chance.random() * min(0.005, 0.001 * attempt))


def named(handle: StoreHandle, scope: Scope | str | None, parts: ScopeParts) -> Scope:
    """The scope that a caller names."""
    if scope is None:
        return handle.guard.scope(cast(Mapping[str, Any], parts))
    if parts:
        raise InvalidError("a scope is named by its text or by its parts, not by both", where=str(scope)[:80])
    return handle.guard.scope(scope)


class StateTransaction:
    """Changes of several keys and scopes, all or none. See `Store.transaction`."""

    def __init__(self, handle: StoreHandle, owner: object) -> None:
        from holdfast.state.transactions import TransactionChanges

        self._pending = TransactionChanges(handle)
        self._is_sync = isinstance(owner, SyncApi)
        self._open = False
        self.written: list[WrittenKey] = []
        """The keys that were changed, with their versions; empty until then."""

    def state(self, scope: Scope | str | None = None, /, **parts: Unpack[ScopeParts]) -> Any:
        """The state of a scope, as in `Store.state`, read and changed in this transaction."""
        from holdfast.state.transactions import AsyncTransactionState, TransactionState

        self._check_open()
        found = named(self._pending.handle, scope, parts)
        return (TransactionState if self._is_sync else AsyncTransactionState)(self._pending, found)

    async def _commit(self) -> None:
        self.written, _ = await self._pending.commit()

    def __enter__(self) -> Self:
        if not self._is_sync:
            raise InvalidError("a transaction of an AsyncStore is entered with `async with`")
        self._open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._open = False
        if kind is None:
            run(self._commit())

    async def __aenter__(self) -> Self:
        if self._is_sync:
            raise InvalidError("a transaction of a Store is entered with `with`")
        self._open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._open = False
        if kind is None:
            await arun(self._commit())

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidError("the transaction is not open", hint="Use it inside its `with` block")
