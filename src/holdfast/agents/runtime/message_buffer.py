"""Messages of an agent as they are held in memory: those at hand, how many more are saved, and what is to be saved.

A save stores only what was added. After an agent was brought back, none of its messages is read before it is asked for.
"""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.codec import OpaqueValue, default_codec
from holdfast.engine.projection.rendering import ROLES, messages
from holdfast.errors import ConflictError

Read: TypeAlias = Callable[[int, int], Awaitable[list[Any]]]
"""Reads messages that are saved, from one place to another."""

Count: TypeAlias = Callable[[Any], int]
"""How many tokens a message has."""

_PAGE = 256
_PER_TOKEN, _PER_MESSAGE = 4, 4


class UnsavedMessages(NamedTuple):
    """What there is to save of a conversation."""

    kept: int
    added: Sequence[Any]
    whole: bool
    """The messages are not what was saved before and some more: all of them are to be saved."""
    epoch: int
    length: int
    """How many there are then, and how many tokens."""
    tokens: int
    given: Sequence[bytes] = ()
    """Packed messages of another agent that come after those."""


class MessageBuffer:
    """Messages in their order: dicts, strings, LangChain messages, whatever the codec knows.

    A message that was added is not changed any more: what of a change reaches the store depends on when it is saved.
    """

    def __init__(self, given: Iterable[Any] = (), *, tokens: Count | None = None) -> None:
        self.counter: Count = tokens or estimate
        """Counts the tokens of a message when it is added."""
        self.on_change: Callable[[], None] | None = None
        """Called after each change."""
        self.check: Callable[[Sequence[Any]], object] | None = None
        """Raises what there is to say against messages that are added: or else no save would go well any more."""
        self._lock = threading.Lock()
        self._read: Read | None = None
        self._before = 0  # so many are in the store, and not at hand; those at hand follow them
        self._here = list(given)
        self._saved = 0
        self._rewritten = False
        self._epoch = 0
        self._handed: MessageHandover | None = None
        self._tokens = sum(map(self.counter, self._here))

    def __len__(self) -> int:
        return self._before + len(self._here)

    @property
    def tokens(self) -> int:
        """How many tokens they have, as they were counted when they were added."""
        return self._tokens

    def count_by(self, counter: Count) -> None:
        """Count tokens another way: those of messages that were not saved yet, and of all that come."""
        with self._lock:
            new = self._here[self._saved - self._before :] if not self._rewritten else self._here
            self._tokens += sum(map(counter, new)) - sum(map(self.counter, new))
            self.counter = counter

    # Changing -------------------------------------------------------------------------------------------------

    def extend(self, added: Iterable[Any]) -> None:
        """Add messages."""
        new = self._checked(added)
        tokens = sum(map(self.counter, new))
        with self._lock:
            self._here += new
            self._tokens += tokens
        self._changed()

    def replace(self, given: Iterable[Any]) -> None:
        """Have other messages in place of all there are."""
        new = self._checked(given)
        tokens = sum(map(self.counter, new))
        with self._lock:
            self._rewrite(new, tokens)
        self._changed()

    async def shorten(self, summary: Sequence[Any], first: int, last: int) -> None:
        """Have a summary in place of the messages from one place to another. Those that are kept are read. Nobody is
        told of the change: whoever makes it saves it."""
        summary = self._checked(summary)
        kept = await self.slice(last, None)
        start = await self.slice(0, first)
        epoch = self._epoch
        counted = sum(map(self.counter, summary))
        with self._lock:
            if epoch != self._epoch or len(self) < last + len(kept):
                raise ConflictError("the conversation was rewritten by another meanwhile", hint="Summarize it again")
            new = [*start, *summary, *self._here[last - self._before :]]
            self._rewrite(new, counted + sum(map(self.counter, (*start, *new[first + len(summary) :]))))

    def _rewrite(self, new: list[Any], tokens: int) -> None:
        if self._handed is not None:
            raise ConflictError(
                "the conversation is being handed over",
                hint="Messages can be added meanwhile; replace them when the transfer is done",
            )
        self._here, self._before, self._tokens = new, 0, tokens
        self._rewritten = True
        self._epoch += 1

    def _checked(self, added: Iterable[Any]) -> list[Any]:
        new = list(added)
        if self.check is not None:
            self.check(new)
        return new

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # Reading --------------------------------------------------------------------------------------------------

    async def slice(self, start: int | None, stop: int | None, *, keep: bool = True) -> list[Any]:
        """Messages as `list[start:stop]` would give them. What had to be read is kept at hand where it leads up to what
        is there already, unless that is not wanted."""
        while True:
            with self._lock:
                first, last, _ = slice(start, stop).indices(len(self))
                before, epoch, read = self._before, self._epoch, self._read
                if first >= before or first >= last or read is None:
                    return self._here[max(0, first - before) : max(0, last - before)]
            reaches = keep and last >= before
            found = await read(first, before if reaches else min(last, before))
            with self._lock:
                if epoch != self._epoch or before != self._before:
                    continue  # others have read or rewritten them meanwhile
                if reaches:
                    self._here[:0], self._before = found, first
                    return self._here[: last - first]
                return found + self._here[: max(0, last - before)]

    async def pages(self, *, reverse: bool = False) -> AsyncIterator[tuple[int, list[Any]]]:
        """All of them by pages, each with the place of its first. They are not kept at hand."""
        count = len(self)
        starts = range(0, count, _PAGE)
        for start in reversed(starts) if reverse else starts:
            yield start, await self.slice(start, min(start + _PAGE, count), keep=False)

    # For who saves them ---------------------------------------------------------------------------------------

    def unsaved(self) -> UnsavedMessages:
        """What there is to save."""
        with self._lock:
            kept = 0 if self._rewritten else self._saved
            handed, added = self._handed, self._here[kept - self._before :]
            if handed is None:
                return UnsavedMessages(kept, added, self._rewritten, self._epoch, len(self), self._tokens)
            added = added[: handed.end - kept]
            if handed.given is None:
                return UnsavedMessages(0, (), True, self._epoch, 0, 0)
            count, tokens = handed.end + len(handed.given), handed.tokens + handed.more
            return UnsavedMessages(kept, added, self._rewritten, self._epoch, count, tokens, handed.given)

    def saved(self, said: UnsavedMessages) -> None:
        """That was saved."""
        with self._lock:
            if self._epoch != said.epoch:
                return
            self._saved, self._rewritten = said.length, False
            if self._handed is not None:
                # Whatever of them was at hand, they are in the store now; those that were added since follow them.
                self._tokens += said.tokens - self._handed.tokens
                self._here, self._before = self._here[self._handed.end - self._before :], said.length
                self._handed = None
                self._epoch += 1

    def stored(self, count: int, tokens: int, read: Read) -> None:
        """Be as many as are saved, and read them when they are asked for."""
        with self._lock:
            self._here, self._before, self._saved, self._tokens, self._read = [], count, count, tokens, read
            self._rewritten = False
            self._epoch += 1

    def rebase(self, count: int, tokens: int, read: Read) -> None:
        """Another has saved, and so many are in the store now. Those that were not saved yet follow them."""
        with self._lock:
            new = self._here[self._saved - self._before :]
            self._tokens = tokens + sum(map(self.counter, new))
            self._here, self._before, self._saved, self._read = new, count, count, read
            self._epoch += 1

    def leave(self) -> UnsavedMessages:
        """The next step is to hand them to another agent. Returns what they are: as many as are saved, and those that
        are not. What is added from now on stays here; until `stay` they are not rewritten."""
        said = self.unsaved()
        with self._lock:
            self._handed = MessageHandover(said.length, said.tokens, None, 0, self._epoch)
        return said

    def receive(self, given: Sequence[bytes], tokens: int, read: Read) -> None:
        """The next step is to add what another agent hands over."""
        with self._lock:
            self._read = read
            self._handed = MessageHandover(len(self), self._tokens, given, tokens, self._epoch)

    def stay(self) -> MessageHandover | None:
        """Nothing is handed over. Returns what was to be."""
        with self._lock:
            handed, self._handed = self._handed, None
            return handed

    def hand(self, handed: MessageHandover) -> bool:
        """It was handed over after all: the next that is told to be saved is that. False if they were rewritten."""
        with self._lock:
            if handed.epoch != self._epoch:
                return False
            self._handed = handed
            return True


class MessageHandover(NamedTuple):
    """What a step is to do that hands messages over."""

    end: int
    """How many there were."""
    tokens: int
    given: Sequence[bytes] | None
    """What is received; None if it is these that leave."""
    more: int
    epoch: int


def estimate(message: Any) -> int:
    """About how many tokens a message has: one for each four characters of what it says, and four for itself. Texts in
    other scripts than Latin have more."""
    return -(-len(text_of(message)) // _PER_TOKEN) + _PER_MESSAGE


def text_of(message: Any) -> str:
    """What a message says."""
    if isinstance(message, str):
        return message
    if isinstance(message, OpaqueValue):
        found = messages("messages", [default_codec.pack(message)])
        return found[0].content if found else ""
    content = message.get("content") if isinstance(message, Mapping) else getattr(message, "content", None)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return "\n".join(part for part in parts if isinstance(part, str))


def role_of(message: Any) -> str:
    """Who says it; empty if it does not tell. One name for each: what LangChain calls human is a user."""
    if isinstance(message, OpaqueValue):
        found = messages("messages", [default_codec.pack(message)])
        return found[0].role if found else ""
    for name in ("role", "type"):
        role = message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)
        if isinstance(role, str):
            return ROLES.get(role, role)
    return ""


def matcher(text: str | re.Pattern[str]) -> Callable[[str], bool]:
    """Whether a text has another in it, in capitals or not; or something that an expression describes."""
    if isinstance(text, re.Pattern):
        return lambda said: text.search(said) is not None
    wanted = text.casefold()
    return lambda said: wanted in said.casefold()
