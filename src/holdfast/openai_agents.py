"""The OpenAI Agents SDK on Holdfast: `HoldfastSession`, a session whose items are the messages of a thread."""

from __future__ import annotations

from agents.items import TResponseInputItem
from agents.memory import SessionABC, SessionSettings
from agents.memory.session_settings import resolve_session_limit

from holdfast.interfaces.conversations import AnyStore, ConversationThread, require_store

__all__ = ["HoldfastSession"]


class HoldfastSession(SessionABC):
    """The history of a conversation, in a thread of a store.

    ::

        session = HoldfastSession("chat-1", store)
        await Runner.run(agent, "Hello", session=session)

    The thread has the name of the session, and a checkpoint for each call that changed it: what was popped or cleared
    is in its history. A `Store` and an `AsyncStore` do equally, and so do their views of identities.
    """

    def __init__(self, session_id: str, store: AnyStore, session_settings: SessionSettings | None = None) -> None:
        require_store(store, "a session")
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._thread = ConversationThread(store, session_id, "openai-agents")

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items of the session, or the latest ones."""
        count = resolve_session_limit(limit, self.session_settings)
        if count is not None and count <= 0:
            return []
        items: list[TResponseInputItem] = await self._thread.messages()
        return items if count is None else items[-count:]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end. None is lost, whoever else adds some."""
        await self._thread.append(items)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item and return it; None if there is none."""
        item: TResponseInputItem | None = await self._thread.pop()
        return item

    async def clear_session(self) -> None:
        """Remove all items. They stay in the history of the thread; `thread.delete()` deletes that, too."""
        await self._thread.clear()
