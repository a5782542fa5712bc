"""Many values to bytes at once.

Proving that a value is plain takes longer than encoding it. For many values of a kind it is done together, level by
level, with no Python code per value, by asking the garbage collector what refers to what. The same question tells, of
messages that were packed before, that they have not changed since: what is in them are the very same strings and
numbers, which can not change, in the same lists and dicts.
"""

from __future__ import annotations

from gc import get_referents
from itertools import chain, repeat
from operator import attrgetter, is_, length_hint, ne
from threading import active_count
from types import NoneType
from typing import Any, NamedTuple

from msgspec.msgpack import Encoder

from holdfast.codec import msgpack

encode = Encoder().encode

SCALARS = frozenset({str, int, float, bool, NoneType, bytes})
NUMBERS = frozenset({int, float, bool, NoneType})
_PLAIN = SCALARS | {list, dict}

NOT_NATIVE = (OverflowError, UnicodeEncodeError)
"""What the encoder raises for an integer over 64 bits and for a string that is not valid Unicode."""

# What shows that values must be looked at one by one: the last two if another thread put in something that was not
# there when it was looked at, or if a message was never given all of its parts.
_LOOK_CLOSER = (*NOT_NATIVE, TypeError, AttributeError)

BATCH = 512
"""How many values are looked at together."""

_AT_ONCE = 128
"""Containers spread out at a time: a long one that is used many times over must be noticed early."""

_MANY = 64 * BATCH
"""How many values a batch may hold in all before its items are weighed one by one."""

SHAPED_MODELS: dict[type, int] = {}
"""The numbers of shapes by their classes; only classes of shapes.py come in here."""

SHAPED_COUNTS: dict[type, int] = {}
"""How many fields their instances have."""

SHAPED_FIELDS: dict[type, frozenset[str]] = {}
"""Which fields those are."""

_fields_of = attrgetter("__dict__")
_extra_of = attrgetter("__pydantic_extra__")


def encode_batch(values: list[Any], room: int) -> list[bytes] | None:
    """The values as bytes that stand on their own, if all of them are plain or all are messages; else None."""
    distinct = set(map(type, values))
    try:
        if distinct <= SHAPED_MODELS.keys():
            levels = _levels_of(values, room)
            lengths = _lengths(levels)
            encoded = _encode_messages(values) if levels else []
            return encoded if levels and _unchanged(levels, lengths) else None
        if distinct <= SCALARS:
            return list(map(encode, values))
        if distinct <= _PLAIN:
            levels = _plain_levels(values, room)
            lengths = _lengths(levels)
            encoded = list(map(encode, values)) if levels else []
            if not levels or not _unchanged(levels, lengths):
                return None
            return list(map(msgpack.top, encoded)) if list in distinct else encoded
    except _LOOK_CLOSER:
        pass
    return None


def _plain_levels(level: list[Any], room: int, *, of_messages: bool = False) -> list[list[Any]] | None:
    """Everything in here, level by level, if it is plain, not too deep and not too much; else None.

    Whatever there is is weighed before it is spread out or encoded. Only the fields of messages are not: they are few.
    """
    levels = [level]
    weigh = not of_messages
    many = 0
    while len(levels) <= msgpack.MAX_DEPTH - 2 * of_messages:
        if not set(map(type, level)) <= _PLAIN:
            return None
        if weigh:
            room -= sum(map(length_hint, level))
            if room < 0:
                return None
        at_once = _AT_ONCE if weigh else len(level)
        weigh = True
        below: list[Any] = []
        for start in range(0, len(level), at_once):
            below += get_referents(*level[start : start + at_once])
            if many + len(below) > _MANY:
                return None
        if not below:
            return levels
        many += len(below)
        levels.append(below)
        level = below
    return None


def _unchanged(levels: list[list[Any]], lengths: list[int]) -> bool:
    """Whether the same things still refer to the same: no other thread changed them while they were encoded."""
    return active_count() == 1 or (_same_below(levels) and _lengths(levels) == lengths)


def _lengths(levels: list[list[Any]] | None) -> list[int]:
    """How much is in each thing: what is in all of them does not tell in which of them it is."""
    if levels is None or len(levels) == 1:
        return []  # all are empty, or nothing that something could be in
    return list(map(length_hint, chain.from_iterable(levels)))


def _same_below(levels: list[list[Any]]) -> bool:
    for level, below in zip(levels, [*levels[1:], []], strict=True):
        now = get_referents(*level)
        if len(now) != len(below) or not all(map(is_, now, below)):
            return False
    return True


def _same(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(map(is_, now, then))


# Messages -------------------------------------------------------------------------------------------------------


class PackedMessages(NamedTuple):
    """Messages, all that was in them when they were packed, and their bytes."""

    messages: list[Any]
    kinds: list[type]
    fields: list[dict[str, Any]]
    levels: list[list[Any]]
    """What is in their fields, what is in that, and so on."""
    containers: list[Any]
    lengths: list[int]
    """The lists and dicts in there, and how long they are: what is in all of them does not tell in which it is."""
    dicts: list[dict[Any, Any]]
    keys: list[Any]
    """The dicts among them, and their keys."""
    packed: list[bytes]
    weight: int
    """How many bytes those are."""

    def starts(self, values: list[Any]) -> bool:
        """Whether values start with these messages, and what is in them is still the same."""
        messages = self.messages
        if len(values) < len(messages) or not all(map(is_, values, messages)):
            return False
        if not all(map(is_, map(type, messages), self.kinds)) or any(map(_extra_of, messages)):
            return False
        # Fields of a model have their names for good. (To rename one behind its back, in place, goes unseen.)
        return (
            all(map(is_, map(_fields_of, messages), self.fields))
            and list(map(len, self.fields)) == list(map(SHAPED_COUNTS.__getitem__, self.kinds))
            and _same(get_referents(*self.fields), self.levels[0])
            and _same_below(self.levels)
            and list(map(len, self.containers)) == self.lengths
            and _same(list(chain.from_iterable(self.dicts)), self.keys)
        )

    def and_then(self, more: PackedMessages) -> PackedMessages:
        """These messages and others after them."""
        deep, shallow = sorted((self.levels, more.levels), key=len, reverse=True)
        return PackedMessages(
            self.messages + more.messages,
            self.kinds + more.kinds,
            self.fields + more.fields,
            [one + other for one, other in zip(self.levels, more.levels, strict=False)] + deep[len(shallow) :],
            self.containers + more.containers,
            self.lengths + more.lengths,
            self.dicts + more.dicts,
            self.keys + more.keys,
            self.packed + more.packed,
            self.weight + more.weight,
        )


def _levels_of(messages: list[Any], room: int) -> list[list[Any]] | None:
    """What is in the fields of messages, level by level; None if they do not have just the fields of their classes."""
    fields = list(map(_fields_of, messages))
    theirs = map(SHAPED_FIELDS.__getitem__, map(type, messages))
    # By name, and not by how many: one may have been deleted, and another put in, which would be lost.
    if any(map(ne, map(dict.keys, fields), theirs)) or any(map(_extra_of, messages)):
        return None
    return _plain_levels(get_referents(*fields), room, of_messages=True)


def _encode_messages(messages: list[Any]) -> list[bytes]:
    numbers = map(SHAPED_MODELS.__getitem__, map(type, messages))
    return list(map(encode, zip(repeat(None), numbers, map(_fields_of, messages), strict=False)))


def look_at(messages: list[Any], packed: list[bytes], room: int) -> PackedMessages | None:
    """Messages as they are now, which must be what the packed bytes hold. None if that can not be told at a glance."""
    kinds = list(map(type, messages))
    if not messages or not set(kinds) <= SHAPED_MODELS.keys():
        return None
    levels = _levels_of(messages, room)
    if not levels:
        return None
    containers: list[Any] = []
    if len(levels) > 1:  # else all of them are empty
        containers = [each for level in levels for each in level if type(each) in (list, dict)]
    dicts = [each for each in containers if type(each) is dict]
    return PackedMessages(
        messages,
        kinds,
        list(map(_fields_of, messages)),
        levels,
        containers,
        list(map(len, containers)),
        dicts,
        list(chain.from_iterable(dicts)),
        packed,
        sum(map(len, packed)),
    )


def look_at_new(messages: list[Any], packed: list[bytes], weight: int, room: int) -> PackedMessages | None:
    """The same for messages that were just made of these bytes, of which less must be asked."""
    fields = list(map(_fields_of, messages))
    held = get_referents(*fields)
    if get_referents(*held):
        return look_at(messages, packed, room)
    return PackedMessages(messages, list(map(type, messages)), fields, [held], [], [], [], [], packed, weight)


def pack_again(values: list[Any], seen: PackedMessages | None, room: int) -> PackedMessages | None:
    """Messages packed, of which some may have been packed before; None if they can not be packed together."""
    try:
        if seen is not None and not seen.starts(values):
            seen = None
        for start in range(0 if seen is None else len(seen.messages), len(values), BATCH):
            more = _pack_new(values[start : start + BATCH], room)
            if more is None:
                return None
            seen = more if seen is None else seen.and_then(more)
    except _LOOK_CLOSER:
        return None
    return seen


def _pack_new(values: list[Any], room: int) -> PackedMessages | None:
    seen = look_at(values, [], room)
    if seen is None:
        return None
    packed = _encode_messages(values)
    seen = seen._replace(packed=packed, weight=sum(map(len, packed)))
    if max(map(len, seen.packed)) > room:
        return None
    return seen if active_count() == 1 or seen.starts(values) else None
