"""LangChain on Holdfast: `HoldfastChatHistory`, the messages of a conversation in a thread."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import BaseMessage

from holdfast.errors import NotFoundError
from holdfast.store.identity_view import IdentityView
from holdfast.store.store import Store

__all__ = ["HoldfastChatHistory"]

_MESSAGES = "messages"


class HoldfastChatHistory(BaseChatMessageHistory):
    """The history of a conversation, for `RunnableWithMessageHistory` and the like.

    ::

        history = HoldfastChatHistory("chat-1", store)
        history.add_user_message("Hello")

    The thread has the name of the session, and a checkpoint for each call that added messages. Async methods wait in
    another thread than that of the event loop.
    """

    def __init__(self, session_id: str, store: Store | IdentityView) -> None:
        self._thread = store.thread(session_id)

    @property
    def messages(self) -> list[BaseMessage]:
        """All messages, the oldest first."""
        try:
            found: list[BaseMessage] = self._thread.get().state.get(_MESSAGES, [])
        except NotFoundError:
            return []
        return found

    @messages.setter
    def messages(self, messages: list[BaseMessage]) -> None:
        self._thread.put({_MESSAGES: list(messages)}, metadata={"framework": "langchain"})

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages at the end. None is lost, whoever else adds some."""
        if messages:
            self._thread.append(_MESSAGES, *messages, metadata={"framework": "langchain"})

    def clear(self) -> None:
        """Remove all messages. They stay in the history of the thread; `thread.delete()` deletes that, too."""
        if self.messages:
            self._thread.put({}, metadata={"framework": "langchain"}, kind="clear")
