"""What adapters of frameworks share: conversations in threads, on every kind of store."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeAlias

from holdfast.engine.types import Checkpoint, ThreadInfo
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.store.identity_view import AsyncIdentityView, IdentityView
from holdfast.store.store import AsyncStore, Store

AnyStore: TypeAlias = Store | AsyncStore | IdentityView | AsyncIdentityView

MESSAGES = "messages"
"""The channel of a conversation."""


def require_store(store: object, what: str) -> Any:
    """Return a store, whose operations are awaited or not. `InvalidError` if this is no open store."""
    if not isinstance(store, Store | AsyncStore | IdentityView | AsyncIdentityView):
        raise InvalidError(
            f"{what} needs an open store, not {type(store).__name__}", hint="Pass what holdfast.open returned"
        )
    return store


async def call(operation: Callable[..., Any], *args: Any, **fields: Any) -> Any:
    """Call an operation of a store, in another thread if it does not wait in the event loop."""
    if inspect.iscoroutinefunction(operation):
        return await operation(*args, **fields)
    return await asyncio.to_thread(operation, *args, **fields)


async def list_threads(store: Any, **options: Any) -> AsyncIterator[ThreadInfo]:
    """Yield the threads of a store: all, or those that a query, a prefix or the like selects."""
    cursor: str | None = None
    while True:
        page = await call(store.threads, cursor=cursor, **options)
        for info in page:
            yield info
        if (cursor := page.next) is None:
            return


class ConversationThread:
    """The thread of a conversation, whose channel `messages` is a list. Its checkpoints are marked with the name of the
    framework."""

    def __init__(self, store: AnyStore, name: str, framework: str) -> None:
        self.handle: Any = store.thread(name)
        self.mark = {"framework": framework}

    async def head(self) -> Checkpoint[Any] | None:
        """Return the latest checkpoint; None if there is none."""
        try:
            found: Checkpoint[Any] = await call(self.handle.get)
        except NotFoundError:
            return None
        return found

    async def messages(self) -> list[Any]:
        """Return all messages, the oldest first."""
        head = await self.head()
        found: list[Any] = [] if head is None else head.state.get(MESSAGES, [])
        return found

    async def append(self, messages: Iterable[Any]) -> None:
        """Add messages at the end. None is lost, whoever else adds some."""
        if added := list(messages):
            await call(self.handle.append, MESSAGES, *added, metadata=self.mark)

    async def pop(self) -> Any:
        """Remove the last message and return it; None if there is none."""
        while True:
            head = await self.head()
            if head is None or not head.state.get(MESSAGES):
                return None
            change = {"remove": [(MESSAGES, -1)], "parent": head, "on_conflict": "raise", "kind": "pop"}
            try:
                await call(self.handle.update, {}, metadata=self.mark, **change)
            except ConflictError:
                continue  # another one was added or popped meanwhile
            return head.state[MESSAGES][-1]

    async def clear(self) -> None:
        """Remove all messages. They stay in the history of the thread."""
        head = await self.head()
        if head is not None and head.state:
            await call(self.handle.put, {}, metadata=self.mark, kind="clear")
