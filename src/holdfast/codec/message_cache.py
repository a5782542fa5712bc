"""A cache of decoded messages.

An agent reads its messages at every turn, and all but the last few were read before. The cache has a private copy of
their fields, from which new messages are built that share only immutable values with it.

Messages that were handed out to a caller, and are handed out again when nobody has them any more.

An agent reads its messages at every turn, and drops those of an earlier one. Building them anew takes most of the time
of a read, and the garbage collector takes as long to look at the new ones. Messages that nothing refers to but the
record of them, and that are unchanged, need not be built: nobody can tell them from new ones. Reference counts tell,
in a Python with a GIL; in another, nothing is handed out twice.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from gc import get_referents
from operator import add, attrgetter
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

from holdfast._named_tuple import NamedTuple
from holdfast.codec.bulk_packing import SCALARS, PackedMessages, capture_unpacked, identical
from holdfast.codec.object_plans import PydanticPlan

_COUNTS_ARE_EXACT = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()

_FEW = 64
"""Fewer messages are built as quickly as they are looked at."""

_names_of = attrgetter("__pydantic_fields_set__")
_extra_of = attrgetter("__pydantic_extra__")


class MessageLoan(NamedTuple):
    """Messages that were built and handed out, with everything that shows whether they came back unchanged."""

    contents: PackedMessages
    attributes: list[Any]
    """The references of messages: their fields, the names of those that were set, extra fields, and their classes."""
    extra: list[dict[str, Any]]
    """The extra fields of each message, of which there were none."""
    names: list[set[str]]
    """The names of the fields that were set, of each message."""
    all_names: list[set[str]]
    """These names as they were when the messages were built."""
    parts: list[Any]
    """The messages and all that can be changed in them, at any depth."""
    counts: list[int]
    """The number of references to each part while only the loan has them."""

    @property
    def packed(self) -> list[bytes]:
        """The packed bytes of each message."""
        return self.contents.packed

    @classmethod
    def of(cls, contents: PackedMessages, plans: Sequence[PydanticPlan]) -> MessageLoan:
        """Return the loan of new messages, which nobody has yet."""
        messages, levels = contents.messages, contents.levels
        extra, names = list(map(_extra_of, messages)), list(map(_names_of, messages))
        parts = [*messages, *contents.fields, *extra, *names]
        parts += [value for level in levels for value in level if type(value) is list or type(value) is dict]
        loan = cls(contents, get_referents(*messages), extra, names, [plan.all_names for plan in plans], parts, [])
        loan.counts.extend(map(getrefcount, parts))
        return loan

    def extended(self, more: MessageLoan) -> MessageLoan:
        """Return the loan of these messages and others."""
        return MessageLoan(self.contents.extended(more.contents), *map(add, self[1:], more[1:]))

    def is_returned(self) -> bool:
        """Whether nobody else has any part of the messages, and all of them are as they were."""
        messages = self.contents.messages
        return (
            _COUNTS_ARE_EXACT
            and list(map(getrefcount, self.parts)) == self.counts
            and not any(map(getweakrefcount, messages))
            and identical(get_referents(*messages), self.attributes)
            and not any(self.extra)
            and self.names == self.all_names
            and _show_attributes(self.contents)
            and self.contents.has_same_fields()
        )


def lend(
    parts: MessageParts, earlier: MessageLoan | None, max_bytes: int
) -> tuple[list[Any], PackedMessages | None, MessageLoan | None]:
    """Return messages that nobody else has, their contents, unless that is too much, and the loan of them. Those of an
    earlier loan that came back are not built again; if it did not, these will hardly, and there is no loan of them, nor
    of a few."""
    may_return = len(parts.packed) >= _FEW
    if earlier is not None and not (parts.starts_with(earlier.contents.packed) and earlier.is_returned()):
        earlier, may_return = None, False
    start = 0 if earlier is None else len(earlier.contents.messages)
    if earlier is not None and start == len(parts.packed):
        return earlier.contents.messages.copy(), earlier.contents, earlier
    new = parts.build(start)
    contents = capture_unpacked(new, parts.packed[start:], max_bytes)
    if contents is None:
        return new if earlier is None else earlier.contents.messages + new, None, None
    if not may_return:
        return new.copy(), contents, None
    loan = MessageLoan.of(contents, parts.plans[start:])
    if earlier is not None:
        loan = earlier.extended(loan)
    return loan.contents.messages.copy(), loan.contents, loan


def _show_attributes(contents: PackedMessages) -> bool:
    """Whether the attributes of messages of these classes are among the objects that they refer to."""
    for message in dict(zip(contents.types, contents.messages, strict=True)).values():
        extra = _extra_of(message)
        attributes = (vars(message), _names_of(message), extra, type(message))
        if type(extra) is not dict or not {*map(id, attributes)} <= {*map(id, get_referents(message))}:
            return False
    return True


PAUSE_COLLECTOR = 32
"""From this many values on, the garbage collector would take noticeable time meanwhile."""


class collector_paused:  # noqa: N801 - used as a context
    """Pauses the garbage collector, which would scan the new values repeatedly: none is garbage."""

    __slots__ = ("_paused",)

    def __init__(self, paused: bool = True) -> None:
        self._paused = paused

    def __enter__(self) -> None:
        self._paused = self._paused and gc.isenabled()
        if self._paused:
            gc.disable()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._paused:
            gc.enable()


class MessageParts(NamedTuple):
    """Decoded messages: their packed bytes, plans, fields, and the names of the mutable ones."""

    packed: list[bytes]
    plans: list[PydanticPlan]
    fields: list[dict[str, Any]]
    mutable: list[tuple[str, ...]]
    weight: int
    """The total size of the packed bytes."""

    @classmethod
    def of(cls, packed: list[bytes]) -> MessageParts:
        """Make an entry for messages that are not decoded yet: most are read only once."""
        return cls(packed, [], [], [], sum(map(len, packed)))

    def is_prefix_of(self, packed: list[bytes]) -> bool:
        """Whether packed messages start with these."""
        return packed[: len(self.packed)] == self.packed

    def starts_with(self, packed: list[bytes]) -> bool:
        """Whether the first of these messages are packed like this."""
        return self.packed[: len(packed)] == packed

    def extended(self, more: MessageParts) -> MessageParts:
        """Return these messages followed by others."""
        if not self.fields:
            return more
        return MessageParts(*map(add, self, more))

    def build(self, start: int = 0) -> list[Any]:
        """Build new messages, without the first ones."""
        fields = list(map(dict.copy, self.fields[start:]))
        for own, names in zip(fields, self.mutable[start:], strict=True):
            for name in names:
                value = own[name]
                own[name] = _copy(value) if value else value.copy()
        return PydanticPlan.build_many(self.plans[start:], fields)


def cache_messages(
    packed: list[bytes], plans: Sequence[PydanticPlan], fields: Sequence[dict[str, Any]]
) -> MessageParts | None:
    """Make an entry of decoded messages. Returns None if they contain more than lists, dicts and immutable scalars."""
    mutable = []
    for own in fields:
        names = tuple([name for name, value in own.items() if type(value) not in SCALARS])
        for name in names:
            value = own[name]
            if type(value) is dict and not value:
                continue  # most of them
            if not _is_plain(value):
                return None
        mutable.append(names)
    return MessageParts(packed, list(plans), list(fields), mutable, sum(map(len, packed)))


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(type(key) in SCALARS for key in value) and all(map(_is_plain, value.values()))
    return kind in SCALARS or (kind is list and all(map(_is_plain, value)))


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    return list(map(_copy, value)) if kind is list else value
