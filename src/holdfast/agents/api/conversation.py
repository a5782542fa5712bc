"""The conversation of an agent, as programs meet it: `agent.conversation`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, NamedTuple, overload

from holdfast.agents.definition.callbacks import called
from holdfast.agents.runtime.message_buffer import MessageBuffer, matcher, role_of, text_of
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, run, sync_and_async
from holdfast.engine import validation
from holdfast.errors import HoldfastError, InvalidError


class MessageMatch(NamedTuple):
    """A message that was searched for, and its place."""

    place: int
    message: Any


class ConversationOperations:
    """What can be done with a conversation. `Conversation` and `AsyncConversation` have these as methods.

    Messages are dicts with a role and a content, strings, LangChain messages, or whatever else can be saved. What was
    added is not changed any more; add something new instead. What is added is saved with the agent, at a cost that does
    not depend on how much is there already; what is there is read from the store when it is asked for.
    """

    def __init__(self, messages: MessageBuffer, keeper: AgentPersister | None = None) -> None:
        self._messages = messages
        self._keeper = keeper

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} messages>"

    @property
    def tokens(self) -> int:
        """How many tokens the messages have: counted when they are added, by the agent's `count_tokens(message)` if it
        has one, or else estimated from the length of their text."""
        return self._messages.tokens

    # Adding ---------------------------------------------------------------------------------------------------

    def append(self, message: Any) -> None:
        """Add a message. It is saved with the agent."""
        self._messages.extend((message,))

    def extend(self, messages: Iterable[Any]) -> None:
        """Add messages."""
        self._messages.extend(messages)

    @sync_and_async
    async def say(self, message: Any) -> int:
        """Add a message; where the agent is saved at every change, it is safe when this returns. Returns its place."""
        self._messages.extend((message,))
        place = len(self._messages) - 1
        if self._keeper is not None:
            await self._keeper.written()
        return place

    # Rewriting ------------------------------------------------------------------------------------------------

    def replace(self, messages: Iterable[Any]) -> None:
        """Have other messages in place of all there are. Older versions of the agent keep those."""
        self._messages.replace(messages)

    def clear(self) -> None:
        """Have no messages any more. Older versions of the agent keep them."""
        self._messages.replace(())

    @sync_and_async
    async def summarize(
        self, summary: Any | Callable[[list[Any]], Any], *, keep_last: int = 0, system: bool = True
    ) -> int:
        """Replace messages by a summary of them, as one step of the agent; returns how many it replaced.

        The last `keep_last` messages stay, and the first if it is the system's, unless `system` is False. The summary
        is a message, a text (it becomes a message of the system), or a function that is given the messages and returns
        one or the other. The messages that it replaces are still in the agent's history:
        `store.agents.messages(id, version=…)`.
        """
        messages, keep = self._messages, validation.count(keep_last, "keep_last")
        end = max(0, len(messages) - keep)
        first = 1 if system and end and role_of((await messages.slice(0, 1, keep=False))[0]) == "system" else 0
        if end <= first:
            return 0
        made = summary
        if callable(summary):
            made = await called(summary, await messages.slice(first, end, keep=False))
        if isinstance(made, str):
            made = {"role": "system", "content": made}
        await messages.shorten([made], first, end)
        if self._keeper is not None:
            detail = {"replaced": end - first, "kept": keep}
            try:
                await self._keeper.commit("conversation.summary", [self._keeper.event("agent", "summarize", detail)])
            except HoldfastError:
                if self._keeper.watch is not None:
                    self._keeper.watch.changed(1)  # it is still to be saved
                raise
        return end - first

    # Reading --------------------------------------------------------------------------------------------------

    @sync_and_async
    async def get(self, index: int) -> Any:
        """The message at a place; from the end, if it is negative. `IndexError` if there is none."""
        return await self._get(index)

    async def _get(self, index: int) -> Any:
        count = len(self._messages)
        place = index + count if index < 0 else index
        if not 0 <= place < count:
            raise IndexError(f"the conversation has {count} messages, and none at {index}")
        return (await self._messages.slice(place, place + 1))[0]

    @sync_and_async
    async def slice(self, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Messages, as `list[start:stop]` gives them."""
        return await self._messages.slice(start, stop)

    @sync_and_async
    async def all(self) -> list[Any]:
        """All messages: read, if they are not at hand."""
        return await self._messages.slice(None, None)

    @sync_and_async
    async def last(self, count: int = 1) -> list[Any]:
        """The last messages, at most so many."""
        number = validation.count(count, "count")
        return await self._messages.slice(-number, None) if number else []

    @sync_and_async
    async def window(
        self, *, max_tokens: int | None = None, max_messages: int | None = None, system: bool = True
    ) -> list[Any]:
        """As many of the last messages as there is room for: what is given to a model.

        The first message is among them if it is the system's, unless `system` is False, and takes of the room. No more
        is read than is returned, and a page.
        """
        messages = self._messages
        room = _room(max_tokens, "max_tokens")
        places = _room(max_messages, "max_messages")
        count, lead = len(messages), []
        if system and count and places:
            (first,) = await messages.slice(0, 1, keep=False)
            if role_of(first) == "system" and messages.counter(first) <= room:
                lead = [first]
                room, places = room - messages.counter(first), places - 1
        found: list[Any] = []
        end = count
        while end > len(lead) and len(found) < places:
            start = max(len(lead), end - min(_PAGE, int(min(places - len(found), count))))
            for message in reversed((await messages.slice(start, count))[: end - start]):
                room -= messages.counter(message)
                if room < 0:
                    return [*lead, *reversed(found)]
                found.append(message)
            end = start
        return [*lead, *reversed(found)]

    @sync_and_async
    async def search(
        self,
        text: str | re.Pattern[str] = "",
        *,
        role: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[MessageMatch]:
        """Messages that say something: a text, in capitals or not, or what an expression matches; of a role (`user`,
        `assistant`, `system`, `tool`), if one is given. In their order, or the last first."""
        wanted, matches = _room(limit, "limit"), matcher(text)
        found: list[MessageMatch] = []
        async for start, page in self._messages.pages(reverse=reverse):
            places = list(enumerate(page, start))
            for index, message in reversed(places) if reverse else places:
                if (role is None or role_of(message) == role) and matches(text_of(message)):
                    if len(found) >= wanted:
                        return found
                    found.append(MessageMatch(index, message))
        return found


_PAGE = 64


def _room(limit: int | None, name: str) -> float:
    return float("inf") if limit is None else validation.count(limit, name)


class Conversation(SyncApi, ConversationOperations):
    """The messages of an agent: `agent.conversation.append({"role": "user", "content": "Hello"})`.

    It is a sequence: `len`, indexing, slices and iteration; what of it is not at hand is read.
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
    """The same for asyncio: what may have to be read is awaited, and iterated by `async for`."""

    def __getitem__(self, index: Any) -> Any:
        raise InvalidError(
            "messages may have to be read, which is awaited here",
            hint="Use await conversation.get(index), slice(start, stop) or last(count)",
        )

    async def __aiter__(self) -> AsyncIterator[Any]:
        for message in await self.all():
            yield message
