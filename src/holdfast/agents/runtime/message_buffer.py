"""The messages of an agent in memory: those that are loaded, the number of others that are stored, and the unsaved.

A save stores only the messages that were added. After an agent was restored, its messages are read when they are
requested.
"""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from holdfast.codec import default_codec
from holdfast.codec.opaque import OpaqueValue
from holdfast.engine.projection.rendering import ROLES, messages
from holdfast.errors import ConflictError

Read: TypeAlias = Callable[[int, int], Awaitable[list[Any]]]
"""Reads a range of the saved messages."""

Count: TypeAlias = Callable[[Any], int]
"""Counts the tokens of a message."""

_PAGE = 256
_PER_TOKEN, _PER_MESSAGE = 4, 4


class UnsavedMessages(NamedTuple):
    """The messages of a conversation that are to be saved."""

    base_count: int
    """How many saved messages the added ones follow."""
    added: Sequence[Any]
    is_rewrite: bool
    """Whether all messages are to be saved, since the saved ones were replaced."""
    epoch: int
    length: int
    """The number of messages and of tokens after the save."""
    tokens: int
    received: Sequence[bytes] = ()
    """Packed messages of another agent that follow the added ones."""


class MessageBuffer:
    """A list of messages: dicts, strings, LangChain messages, or anything else that the codec supports.

    Do not change a message after it was added: whether the change is stored depends on when the message is saved.
    """

    def __init__(self, messages: Iterable[Any] = (), *, tokens: Count | None = None) -> None:
        self.counter: Count = tokens or estimate
        """Counts the tokens of a message when it is added."""
        self.on_change: Callable[[], None] | None = None
        """Called after each change."""
        self.check: Callable[[Sequence[Any]], object] | None = None
        """Raises an error for added messages that cannot be saved: otherwise every later save would fail."""
        self._lock = threading.Lock()
        self._read: Read | None = None
        self._offset = 0
        """How many stored messages precede the loaded ones."""
        self._loaded = list(messages)
        self._saved = 0
        self._rewritten = False
        self._epoch = 0
        self._handover: MessageHandover | None = None
        self._tokens = sum(map(self.counter, self._loaded))

    def __len__(self) -> int:
        return self._offset + len(self._loaded)

    @property
    def tokens(self) -> int:
        """The number of tokens, as counted when the messages were added."""
        return self._tokens

    def set_counter(self, counter: Count) -> None:
        """Replace the token counter, for unsaved messages and all that follow."""
        with self._lock:
            new = self._loaded[self._saved - self._offset :] if not self._rewritten else self._loaded
            self._tokens += sum(map(counter, new)) - sum(map(self.counter, new))
            self.counter = counter

    # Changes --------------------------------------------------------------------------------------------------

    def extend(self, added: Iterable[Any]) -> None:
        """Add messages."""
        new = self._require_packable(added)
        tokens = sum(map(self.counter, new))
        with self._lock:
            self._loaded += new
            self._tokens += tokens
        self._report_change()

    def replace(self, messages: Iterable[Any]) -> None:
        """Replace all messages."""
        new = self._require_packable(messages)
        tokens = sum(map(self.counter, new))
        with self._lock:
            self._rewrite(new, tokens)
        self._report_change()

    def upgrade(self, messages: Sequence[Any]) -> None:
        """Replace all messages by themselves in another form, which the next step saves."""
        with self._lock:
            self._rewrite(list(messages), sum(map(self.counter, messages)))

    async def summarize(self, summary: Sequence[Any], first: int, last: int) -> None:
        """Replace a range of messages by a summary. The other messages are read. `on_change` is not called: the caller
        saves the change."""
        summary = self._require_packable(summary)
        rest = await self.slice(last, None)
        start = await self.slice(0, first)
        epoch = self._epoch
        counted = sum(map(self.counter, summary))
        with self._lock:
            if epoch != self._epoch or len(self) < last + len(rest):
                raise ConflictError(
                    "the conversation was rewritten while it was being summarized", hint="Summarize it again"
                )
            new = [*start, *summary, *self._loaded[last - self._offset :]]
            self._rewrite(new, counted + sum(map(self.counter, (*start, *new[first + len(summary) :]))))

    def _rewrite(self, new: list[Any], tokens: int) -> None:
        if self._handover is not None:
            raise ConflictError(
                "the conversation is being transferred to another agent",
                hint="Messages can be added during the transfer; replace them when it is done",
            )
        self._loaded, self._offset, self._tokens = new, 0, tokens
        self._rewritten = True
        self._epoch += 1

    def _require_packable(self, added: Iterable[Any]) -> list[Any]:
        new = list(added)
        if self.check is not None:
            self.check(new)
        return new

    def _report_change(self) -> None:
        if self.on_change is not None:
            self.on_change()

    # Reads ----------------------------------------------------------------------------------------------------

    async def slice(self, start: int | None, stop: int | None, *, cache: bool = True) -> list[Any]:
        """Return messages as `list[start:stop]` does. With `cache`, messages that are read stay loaded if they lead up
        to those that are."""
        while True:
            with self._lock:
                first, last, _ = slice(start, stop).indices(len(self))
                offset, epoch, read = self._offset, self._epoch, self._read
                if first >= offset or first >= last or read is None:
                    return self._loaded[max(0, first - offset) : max(0, last - offset)]
            extends = cache and last >= offset
            messages = await read(first, offset if extends else min(last, offset))
            with self._lock:
                if epoch != self._epoch or offset != self._offset:
                    continue  # others have read or rewritten the messages in the meantime
                if extends:
                    self._loaded[:0], self._offset = messages, first
                    return self._loaded[: last - first]
                return messages + self._loaded[: max(0, last - offset)]

    async def pages(self, *, reverse: bool = False) -> AsyncIterator[tuple[int, list[Any]]]:
        """Yield all messages by pages, each with the index of its first. They do not stay loaded."""
        count = len(self)
        starts = range(0, count, _PAGE)
        for start in reversed(starts) if reverse else starts:
            yield start, await self.slice(start, min(start + _PAGE, count), cache=False)

    # For the persister ----------------------------------------------------------------------------------------

    def unsaved_messages(self) -> UnsavedMessages:
        """Return the messages to save."""
        with self._lock:
            base = 0 if self._rewritten else self._saved
            handover, added = self._handover, self._loaded[base - self._offset :]
            if handover is None:
                return UnsavedMessages(base, added, self._rewritten, self._epoch, len(self), self._tokens)
            added = added[: handover.end - base]
            if handover.received is None:
                return UnsavedMessages(0, (), True, self._epoch, 0, 0)
            count, tokens = handover.end + len(handover.received), handover.tokens + handover.received_tokens
            return UnsavedMessages(base, added, self._rewritten, self._epoch, count, tokens, handover.received)

    def mark_saved(self, messages: UnsavedMessages) -> None:
        """Note that messages were saved."""
        with self._lock:
            if self._epoch != messages.epoch:
                return
            self._saved, self._rewritten = messages.length, False
            if self._handover is not None:
                # All of these are in the store now, also those that were loaded; messages added since follow them.
                self._tokens += messages.tokens - self._handover.tokens
                self._loaded, self._offset = self._loaded[self._handover.end - self._offset :], messages.length
                self._handover = None
                self._epoch += 1

    def reset(self, count: int, tokens: int, read: Read) -> None:
        """Replace all messages by the stored ones, which are read when they are requested."""
        with self._lock:
            self._loaded, self._offset, self._saved, self._tokens, self._read = [], count, count, tokens, read
            self._rewritten = False
            self._epoch += 1

    def rebase(self, count: int, tokens: int, read: Read) -> None:
        """Have the unsaved messages follow the stored ones, to which another save has added."""
        with self._lock:
            new = self._loaded[self._saved - self._offset :]
            self._tokens = tokens + sum(map(self.counter, new))
            self._loaded, self._offset, self._saved, self._read = new, count, count, read
            self._epoch += 1

    def read_from(self, read: Read) -> None:
        """Read stored messages by another function from now on."""
        self._read = read

    async def move(self, read: Read) -> None:
        """Have the next step save all messages, since it is the first of another line. Those that are not loaded are
        read from the former one."""
        stored = await read(0, self._offset) if self._offset else []
        with self._lock:
            self._rewrite([*stored[: self._offset], *self._loaded], self._tokens)

    def begin_handover(self) -> UnsavedMessages:
        """Have the next step hand the messages over to another agent, and return the unsaved ones. Messages that are
        added from now on stay here; until `cancel_handover` the messages cannot be rewritten."""
        messages = self.unsaved_messages()
        with self._lock:
            self._handover = MessageHandover(messages.length, messages.tokens, None, 0, self._epoch)
        return messages

    def receive(self, messages: Sequence[bytes], tokens: int, read: Read) -> None:
        """Have the next step add messages that another agent hands over."""
        with self._lock:
            self._read = read
            self._handover = MessageHandover(len(self), self._tokens, messages, tokens, self._epoch)

    def cancel_handover(self) -> MessageHandover | None:
        """Cancel the handover, and return it."""
        with self._lock:
            handover, self._handover = self._handover, None
            return handover

    def resume_handover(self, handover: MessageHandover) -> bool:
        """Reinstate a handover that was saved after all, for `mark_saved`. Returns False if the messages were
        rewritten."""
        with self._lock:
            if handover.epoch != self._epoch:
                return False
            self._handover = handover
            return True


class MessageHandover(NamedTuple):
    """Messages that the next step hands over or receives."""

    end: int
    """The number of messages before the handover."""
    tokens: int
    received: Sequence[bytes] | None
    """The messages that are received; None if the agent's own are handed over."""
    received_tokens: int
    epoch: int


def estimate(message: Any) -> int:
    """Estimate the tokens of a message: one for each four characters of its text, and four for the message. Text in
    other scripts than Latin has more."""
    return -(-len(text_of(message)) // _PER_TOKEN) + _PER_MESSAGE


def text_of(message: Any) -> str:
    """Return the text of a message."""
    if isinstance(message, str):
        return message
    if isinstance(message, OpaqueValue):
        rendered = messages("messages", [default_codec.pack(message)])
        return rendered[0].content if rendered else ""
    content = message.get("content") if isinstance(message, Mapping) else getattr(message, "content", None)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
    return "\n".join(part for part in parts if isinstance(part, str))


def role_of(message: Any) -> str:
    """Return the role of a message; empty if it has none. LangChain's names are mapped: `human` is `user`."""
    if isinstance(message, OpaqueValue):
        rendered = messages("messages", [default_codec.pack(message)])
        return rendered[0].role if rendered else ""
    for name in ("role", "type"):
        role = message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)
        if isinstance(role, str):
            return ROLES.get(role, role)
    return ""


def matcher(text: str | re.Pattern[str]) -> Callable[[str], bool]:
    """Build a test whether a text contains another, ignoring case, or matches an expression."""
    if isinstance(text, re.Pattern):
        return lambda content: text.search(content) is not None
    folded = text.casefold()
    return lambda content: folded in content.casefold()
