"""Unpacking messages again that were unpacked a moment ago.

An agent's messages are read at every turn, and all but the last few are the ones that were read before. Of those a
private copy is kept, never given to anybody, from which new ones are made: fresh objects, which share with it only
what nobody can change, their texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import eq
from typing import Any, NamedTuple

from holdfast.codec.bulk_packing import SCALARS
from holdfast.codec.object_plans import PydanticPlan


class MessageParts(NamedTuple):
    """Messages by their packed bytes, taken apart: how each is made, its fields, and which of those can be changed."""

    packed: list[bytes]
    plans: list[PydanticPlan]
    fields: list[dict[str, Any]]
    changeable: list[tuple[str, ...]]
    weight: int
    """How many bytes are packed."""

    @classmethod
    def of(cls, packed: list[bytes]) -> MessageParts:
        """Packed messages that were not taken apart yet: most are read once only."""
        return cls(packed, [], [], [], sum(map(len, packed)))

    def starts(self, packed: list[bytes]) -> bool:
        """Whether packed messages start with these."""
        return len(packed) >= len(self.packed) and all(map(eq, packed, self.packed))

    def and_then(self, more: MessageParts) -> MessageParts:
        """These and others after them."""
        if not self.fields:
            return more
        return MessageParts(
            self.packed + more.packed,
            self.plans + more.plans,
            self.fields + more.fields,
            self.changeable + more.changeable,
            self.weight + more.weight,
        )

    def fresh(self) -> list[Any]:
        """The messages, anew."""
        fields = list(map(dict.copy, self.fields))
        for own, names in zip(fields, self.changeable, strict=True):
            for name in names:
                value = own[name]
                own[name] = _copy(value) if value else value.copy()
        return PydanticPlan.make_many(self.plans, fields)


def take_apart(
    packed: list[bytes], plans: Sequence[PydanticPlan], fields: Sequence[dict[str, Any]]
) -> MessageParts | None:
    """Messages to make others of; None if they hold anything but lists, dicts and what nobody can change."""
    changeable = []
    for own in fields:
        names = tuple(name for name, value in own.items() if type(value) not in SCALARS)
        if not all(_is_plain(own[name]) for name in names):
            return None
        changeable.append(names)
    return MessageParts(packed, list(plans), list(fields), changeable, sum(map(len, packed)))


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(type(key) in SCALARS for key in value) and all(map(_is_plain, value.values()))
    return kind in SCALARS or (kind is list and all(map(_is_plain, value)))


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _copy(each) for key, each in value.items()}
    return list(map(_copy, value)) if kind is list else value
