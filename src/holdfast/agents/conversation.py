"""The conversation of an agent: messages, of which each save stores only those that were added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple


class Said(NamedTuple):
    """What there is to save of a conversation."""

    kept: int
    added: Sequence[Any]
    whole: bool
    """The messages are not what was saved before and some more: all of them are to be saved."""
    version: int


class Conversation:
    """Messages in their order: dicts, LangChain messages, whatever the codec knows. A message that was added is not
    changed any more."""

    def __init__(self, messages: Iterable[Any] = ()) -> None:
        self._messages = list(messages)
        self._saved = 0
        self._rewritten = False
        self._version = 0

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._messages)

    def append(self, message: Any) -> None:
        """Add a message."""
        self._messages.append(message)
        self._version += 1

    def replace(self, messages: Iterable[Any]) -> None:
        """Have other messages in place of all there are."""
        self._messages = list(messages)
        self._rewritten = True
        self._version += 1

    # For who saves it -----------------------------------------------------------------------------------------

    def unsaved(self) -> Said:
        """What there is to save."""
        kept = 0 if self._rewritten else self._saved
        return Said(kept, self._messages[kept:], self._rewritten, self._version)

    def saved(self, said: Said) -> None:
        """That was saved."""
        self._saved = said.kept + len(said.added)
        if self._version == said.version:
            self._rewritten = False

    @classmethod
    def loaded(cls, messages: Iterable[Any]) -> Conversation:
        """Messages that are saved already."""
        conversation = cls(messages)
        conversation._saved = len(conversation._messages)
        return conversation
