"""The OpenAI Agents SDK on Holdfast: `HoldfastSession`, a session whose items are the messages of a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agents.items import TResponseInputItem
from agents.memory import SessionABC, SessionSettings
from agents.memory.session_settings import resolve_session_limit

from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.store.identity_view import AsyncIdentityView, IdentityView
from holdfast.store.store import AsyncStore, Store

__all__ = ["HoldfastSession"]

MESSAGES = "messages"


class HoldfastSession(SessionABC):
    """The history of a conversation, in a thread of a store.

    ::

        session = HoldfastSession("chat-1", store)
        await Runner.run(agent, "Hello", session=session)

    The thread has the name of the session, and a checkpoint for each call that changed it: what was popped or cleared
    is in its history. A `Store` and an `AsyncStore` do equally, and so do their views of identities.
    """

    def __init__(
        self,
        session_id: str,
        store: Store | AsyncStore | IdentityView | AsyncIdentityView,
        session_settings: SessionSettings | None = None,
    ) -> None:
        if not isinstance(store, Store | AsyncStore | IdentityView | AsyncIdentityView):
            raise InvalidError(
                f"a session needs an open store, not {type(store).__name__}", hint="Pass what holdfast.open returned"
            )
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._thread = store.thread(session_id)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items of the session, or the latest ones."""
        count = resolve_session_limit(limit, self.session_settings)
        if count is not None and count <= 0:
            return []
        items: list[TResponseInputItem] = (await self._checkpoint()).get(MESSAGES, [])
        return items if count is None else items[-count:]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end. None is lost, whoever else adds some."""
        if items:
            await self._call(self._thread.append, MESSAGES, *items, metadata={"framework": "openai-agents"})

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item and return it; None if there is none."""
        while True:
            try:
                head = await self._call(self._thread.get)
                item: TResponseInputItem = head.state[MESSAGES][-1]
                change = {"remove": [(MESSAGES, -1)], "parent": head, "on_conflict": "raise", "kind": "pop"}
                await self._call(self._thread.update, {}, **change)
            except (NotFoundError, KeyError, IndexError):
                return None
            except ConflictError:
                continue  # another one was added or popped meanwhile
            return item

    async def clear_session(self) -> None:
        """Remove all items. They stay in the history of the thread; `thread.delete()` deletes that, too."""
        if await self._checkpoint():
            await self._call(self._thread.put, {}, kind="clear")

    async def _checkpoint(self) -> dict[str, Any]:
        """Return the state of the thread, which is empty if there is none."""
        try:
            found: dict[str, Any] = (await self._call(self._thread.get)).state
        except NotFoundError:
            return {}
        return found

    async def _call(self, operation: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        """Call an operation of the thread, which waits in another thread if it does not wait in the event loop."""
        if asyncio.iscoroutinefunction(operation):
            return await operation(*args, **fields)
        return await asyncio.to_thread(operation, *args, **fields)
