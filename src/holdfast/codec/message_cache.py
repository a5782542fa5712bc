"""A cache of decoded messages.

An agent reads its messages at every turn, and all but the last few were read before. The cache has a private copy of
their fields, from which new messages are built that share only immutable values with it.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from operator import add
from typing import Any

from holdfast._named_tuple import NamedTuple
from holdfast.codec.bulk_packing import SCALARS
from holdfast.codec.object_plans import PydanticPlan

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
