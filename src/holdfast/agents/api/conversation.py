"""The conversation of an agent: `agent.conversation`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, overload

import msgspec

from holdfast.agents.definition.state_machine import invoke
from holdfast.agents.runtime.message_buffer import MessageBuffer, matcher, role_of, text_of
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation, run
from holdfast.engine import validation
from holdfast.errors import HoldfastError, InvalidError


class MessageMatch(msgspec.Struct, frozen=True):
    """A message that matches a search, and its index."""

    position: int
    message: Any


@declare(not_remote="An agent runs where its code is.")
class ConversationOperations:
    """Operations on a conversation. `Conversation` and `AsyncConversation` have these as methods.

    Messages are dicts with a role and a content, strings, LangChain messages, or anything else that can be saved. Do
    not change a message after it was added; add a new one instead. Added messages are saved with the agent, at a cost
    that does not depend on the number of earlier ones; stored messages are read when they are requested.
    """

    def __init__(self, messages: MessageBuffer, persister: AgentPersister | None = None) -> None:
        self._messages = messages
        self._persister = persister

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} messages>"

    @property
    def tokens(self) -> int:
        """The number of tokens of the messages: counted when they are added, by the agent's `count_tokens(message)` if
        it has one, or else estimated from the length of their text."""
        return self._messages.tokens

    # Additions ------------------------------------------------------------------------------------------------

    def append(self, message: Any) -> None:
        """Add a message. It is saved with the agent."""
        self._messages.extend((message,))

    def extend(self, messages: Iterable[Any]) -> None:
        """Add messages."""
        self._messages.extend(messages)

    @operation(changes=True)
    async def say(self, message: Any) -> int:
        """Add a message, and return its index. With `write_through`, it is saved when this returns."""
        self._messages.extend((message,))
        index = len(self._messages) - 1
        if self._persister is not None:
            await self._persister.write_through()
        return index

    # Replacements ---------------------------------------------------------------------------------------------

    def replace(self, messages: Iterable[Any]) -> None:
        """Replace all messages. Older versions of the agent retain them."""
        self._messages.replace(messages)

    def clear(self) -> None:
        """Remove all messages. Older versions of the agent retain them."""
        self._messages.replace(())

    @operation(changes=True, not_in_scripts="It calls a model.")
    async def summarize(
        self, summary: Any | Callable[[list[Any]], Any], *, keep_last: int = 0, system: bool = True
    ) -> int:
        """Replace messages by a summary, as one step of the agent. Returns the number of replaced messages.

        The last `keep_last` messages stay, and so does a first message with the role `system`, unless `system` is
        False. The summary is a message, a text (which becomes a system message), or a function of the messages that
        returns one or the other. The replaced messages stay in the agent's history:
        `store.agents.messages(id, version=…)`.
        """
        messages, keep = self._messages, validation.require_count(keep_last, "keep_last")
        end = max(0, len(messages) - keep)
        first = 1 if system and end and role_of((await messages.slice(0, 1, cache=False))[0]) == "system" else 0
        if end <= first:
            return 0
        message = summary
        if callable(summary):
            message = await invoke(summary, await messages.slice(first, end, cache=False))
        if isinstance(message, str):
            message = {"role": "system", "content": message}
        await messages.summarize([message], first, end)
        persister = self._persister
        if persister is not None:
            detail = {"replaced": end - first, "kept": keep}
            try:
                await persister.commit("conversation.summary", [persister.build_event("agent", "summarize", detail)])
            except HoldfastError:
                if persister.tracker is not None:
                    persister.tracker.add_changes(1)  # it is still to be saved
                raise
        return end - first

    # Reads ----------------------------------------------------------------------------------------------------

    @operation
    async def get(self, index: int) -> Any:
        """Return the message at an index, which counts from the end if it is negative. Raises `IndexError`."""
        return await self._get(index)

    async def _get(self, index: int) -> Any:
        count = len(self._messages)
        start = index + count if index < 0 else index
        if not 0 <= start < count:
            raise IndexError(f"message index {index} is out of range: the conversation has {count} messages")
        return (await self._messages.slice(start, start + 1))[0]

    @operation
    async def slice(self, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Return messages as `list[start:stop]` does."""
        return await self._messages.slice(start, stop)

    @operation
    async def all(self) -> list[Any]:
        """Return all messages."""
        return await self._messages.slice(None, None)

    @operation
    async def last(self, count: int = 1) -> list[Any]:
        """Return the last `count` messages, or all if there are fewer."""
        number = validation.require_count(count, "count")
        return await self._messages.slice(-number, None) if number else []

    @operation
    async def window(
        self, *, max_tokens: int | None = None, max_messages: int | None = None, system: bool = True
    ) -> list[Any]:
        """Return as many of the last messages as fit the limits, for a model.

        A first message with the role `system` is included and counts towards the limits, unless `system` is False. At
        most one page more is read than is returned.
        """
        messages = self._messages
        tokens_left = _limit(max_tokens, "max_tokens")
        messages_left = _limit(max_messages, "max_messages")
        count, lead = len(messages), []
        if system and count and messages_left:
            (first,) = await messages.slice(0, 1, cache=False)
            if role_of(first) == "system" and messages.counter(first) <= tokens_left:
                lead = [first]
                tokens_left, messages_left = tokens_left - messages.counter(first), messages_left - 1
        window: list[Any] = []
        end = count
        while end > len(lead) and len(window) < messages_left:
            start = max(len(lead), end - min(_PAGE, int(min(messages_left - len(window), count))))
            for message in reversed((await messages.slice(start, count))[: end - start]):
                tokens_left -= messages.counter(message)
                if tokens_left < 0:
                    return [*lead, *reversed(window)]
                window.append(message)
            end = start
        return [*lead, *reversed(window)]

    @operation
    async def search(
        self,
        text: str | re.Pattern[str] = "",
        *,
        role: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[MessageMatch]:
        """Find messages that contain a text, ignoring case, or match an expression; optionally of one role (`user`,
        `assistant`, `system`, `tool`). They are in their order, or the last first."""
        most, contains = _limit(limit, "limit"), matcher(text)
        matches: list[MessageMatch] = []
        async for start, page in self._messages.pages(reverse=reverse):
            numbered = list(enumerate(page, start))
            for index, message in reversed(numbered) if reverse else numbered:
                if (role is None or role_of(message) == role) and contains(text_of(message)):
                    if len(matches) >= most:
                        return matches
                    matches.append(MessageMatch(index, message))
        return matches


_PAGE = 64


def _limit(limit: int | None, name: str) -> float:
    return float("inf") if limit is None else validation.require_count(limit, name)


class Conversation(SyncApi, ConversationOperations):
    """The messages of an agent: `agent.conversation.append({"role": "user", "content": "Hello"})`.

    It is a sequence: `len`, indexing, slices and iteration. Stored messages are read as needed.
    """

    def __iter__(self) -> Iterator[Any]:
        return iter(run(self._messages.slice(None, None)))

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return run(self._get(index))
        if index.step in (None, 1):
            return run(self._messages.slice(index.start, index.stop))
        return run(self._messages.slice(None, None))[index]


class AsyncConversation(AsyncApi, ConversationOperations):
    """The asyncio form of `Conversation`: reads are awaited, and iteration is by `async for`."""

    def __getitem__(self, index: Any) -> Any:
        raise InvalidError(
            "messages may have to be read from the store, so access to them must be awaited",
            hint="Use await conversation.get(index), slice(start, stop) or last(count)",
        )

    async def __aiter__(self) -> AsyncIterator[Any]:
        for message in await self.all():
            yield message
