"""Packing of many values at once.

Proving that a value is plain takes longer than encoding it. It is done for many values together, level by level, with
no Python code per value: `gc.get_referents` returns what they contain. The same call proves that messages which were
packed before are unchanged: they contain the identical strings and numbers in the identical lists and dicts. A message
is an object of a model, such as LangChain's, or a plain dict.
"""

from __future__ import annotations

from gc import get_referents
from itertools import chain, repeat
from operator import add, attrgetter, is_, length_hint, ne
from threading import active_count
from types import NoneType
from typing import Any

from msgspec.msgpack import Encoder, Ext

from holdfast._named_tuple import NamedTuple
from holdfast.codec import msgpack
from holdfast.codec.tags import Tag

encode = Encoder().encode

SCALARS = frozenset({str, int, float, bool, NoneType, bytes})
NUMBERS = frozenset({int, float, bool, NoneType})
_PLAIN = SCALARS | {list, dict}

NOT_NATIVE = (OverflowError, UnicodeEncodeError)
"""Raised by the encoder for an integer over 64 bits and for a string that is not valid Unicode."""

# Errors after which values are packed one by one. The last two mean that another thread changed a value meanwhile, or
# that a message lacks some of its parts.
_NEEDS_SLOW_PATH = (*NOT_NATIVE, TypeError, AttributeError)

BATCH = 512
"""How many values are packed together."""

_FEW = 16
"""Up to how many lists and dicts a value is packed by itself."""

_LONGEST = 1 << 16
"""How long each of them is at most: so there are fewer values than the format allows."""

_CHUNK = 128
"""How many containers are expanded at a time: a long one that is referenced many times must be noticed early."""

_MAX_VALUES = 64 * BATCH
"""How many values a batch may contain in total; beyond that its items are packed one by one."""

MODEL_NUMBERS: dict[type, int] = {}
"""The numbers of well-known models by class, with those of `KNOWN_CLASSES` that the packer has met."""

MODEL_FIELDS: dict[type, frozenset[str]] = {}

_SHAPED = int(Tag.SHAPED)
_fields_of = attrgetter("__dict__")
_extra_of = attrgetter("__pydantic_extra__")


def encode_batch(values: list[Any], max_bytes: int) -> list[bytes] | None:
    """Pack values, each on its own. Returns None unless all of them are plain or all are messages."""
    distinct = set(map(type, values))
    try:
        if distinct <= MODEL_NUMBERS.keys():
            levels = _levels_of(values, max_bytes)
            if not levels:
                return None
            lengths = _lengths(levels)
            encoded = _encode_messages(values)
            return list(map(msgpack.compact, encoded)) if _unchanged(levels, lengths) else None
        if distinct <= SCALARS:
            return [msgpack.compact(encode(value)) for value in values]
        if distinct <= _PLAIN:
            levels = _plain_levels(values, max_bytes)
            if not levels:
                return None
            lengths = _lengths(levels)
            encoded = [msgpack.compact(encode(value)) for value in values]
            if not _unchanged(levels, lengths):
                return None
            return list(map(msgpack.top, encoded)) if list in distinct else encoded
    except _NEEDS_SLOW_PATH:
        pass
    return None


def encode_small(value: Any, max_bytes: int) -> bytes | None:
    """Pack one value on its own: a scalar, a message, or a list or dict of both with few lists and dicts in it. Returns
    None for any other, and for one that is too large. Takes less time than to look at its levels."""
    kind = type(value)
    try:
        if kind in SCALARS:
            return encode(value)
        if kind in MODEL_NUMBERS:
            return _encode_message(value, max_bytes)
        if kind is list or kind is dict:
            own = _copy_small(value, max_bytes)
            encoded = None if own is None else encode(own)
            return encoded if encoded is None or kind is dict else msgpack.top(encoded)
    except _NEEDS_SLOW_PATH:
        pass
    return None


def _encode_message(message: Any, max_bytes: int) -> bytes | None:
    kind, fields = type(message), _fields_of(message)
    own = None if _extra_of(message) else _copy_small(fields, max_bytes, of_message=True)
    # Names, not their number: one field may have been replaced by another, which would be lost.
    return None if own is None or own.keys() != MODEL_FIELDS[kind] else encode((None, MODEL_NUMBERS[kind], own))


def _copy_small(value: Any, max_bytes: int, *, of_message: bool = False) -> Any:
    """Copy a list or dict with all that it contains, with messages packed; None if there is too much or anything else.

    It is a copy so that another thread cannot change what was looked at before it is encoded.
    """
    copies, left = [value.copy()], max_bytes
    for own in copies:
        if len(own) > _LONGEST:
            return None
        is_dict = type(own) is dict
        if is_dict and not SCALARS.issuperset(map(type, own)):
            return None
        # A long string that is referenced many times must be noticed before it is encoded.
        left -= len(own)
        if SCALARS.issuperset(map(type, own.values() if is_dict else own)):
            left -= sum(map(length_hint, own.values() if is_dict else own))
            if left < 0:
                return None
            continue
        for key, item in own.items() if is_dict else enumerate(own):
            kind = type(item)
            if kind is list or kind is dict:
                own[key] = copy = item.copy()
                if copy:
                    copies.append(copy)
                    if len(copies) > _FEW:
                        return None
            elif kind is str or kind is bytes:
                left -= len(item)
            elif kind not in SCALARS:
                packed = _encode_message(item, left) if kind in MODEL_NUMBERS and not of_message else None
                if packed is None or len(packed) > left:
                    return None
                left -= len(packed)
                own[key] = Ext(_SHAPED, packed)
        if left < 0:
            return None
    return copies[0]


def _plain_levels(level: list[Any], max_bytes: int, *, of_messages: bool = False) -> list[list[Any]] | None:
    """Return all contained values, level by level, or None if they are not plain, too deep or too many.

    Containers are counted before they are expanded or encoded, except for the fields of messages, which are few.
    """
    levels = [level]
    count = not of_messages
    left, total = max_bytes, 0
    while len(levels) <= msgpack.MAX_DEPTH - 2 * of_messages:
        if not set(map(type, level)) <= _PLAIN:
            return None
        if count:
            left -= sum(map(length_hint, level))
            if left < 0:
                return None
        chunk = _CHUNK if count else len(level)
        count = True
        below: list[Any] = []
        for start in range(0, len(level), chunk):
            below += get_referents(*level[start : start + chunk])
            if total + len(below) > _MAX_VALUES:
                return None
        if not below:
            return levels
        total += len(below)
        levels.append(below)
        level = below
    return None


def _unchanged(levels: list[list[Any]], lengths: list[int] | None) -> bool:
    """Whether no other thread changed the values while they were encoded."""
    return lengths is None or (_same_below(levels) and _lengths(levels) == lengths)


def _lengths(levels: list[list[Any]]) -> list[int] | None:
    """Return the length of each value: the contents of a level do not tell which container they are in.

    Returns None if there is no other thread.
    """
    if active_count() == 1:
        return None
    if len(levels) == 1:
        return []  # there are only scalars and empty containers
    return list(map(length_hint, chain.from_iterable(levels)))


def _same_below(levels: list[list[Any]]) -> bool:
    pairs = zip(levels, [*levels[1:], []], strict=True)
    return all(identical(get_referents(*level), below) for level, below in pairs)


def identical(now: list[Any], before: list[Any]) -> bool:
    """Whether two lists have the same objects."""
    return len(now) == len(before) and all(map(is_, now, before))


# Messages ---------------------------------------------------------------------------------------------------


class PackedMessages(NamedTuple):
    """Packed messages, with everything they contained when they were packed. All are models, or all are dicts."""

    messages: list[Any]
    types: list[type]
    fields: list[dict[Any, Any]]
    """The fields of each model; a dict itself."""
    field_counts: list[int]
    levels: list[list[Any]]
    """The values of their fields, the values in those, and so on."""
    containers: list[Any]
    lengths: list[int]
    """The length of each container."""
    dicts: list[dict[Any, Any]]
    """All dicts; of models, those in their fields."""
    keys: list[Any]
    """The keys of all dicts."""
    packed: list[bytes]
    weight: int
    """The total size in bytes."""

    @property
    def are_models(self) -> bool:
        """Whether the messages are objects of models."""
        return self.types[0] is not dict

    def is_prefix_of(self, values: list[Any]) -> bool:
        """Whether values start with these messages, unchanged."""
        messages = self.messages
        if len(values) < len(messages) or not all(map(is_, values, messages)):
            return False
        if self.are_models:
            if not all(map(is_, map(type, messages), self.types)) or any(map(_extra_of, messages)):
                return False
            if not all(map(is_, map(_fields_of, messages), self.fields)):
                return False
        return self.has_same_fields()

    def has_same_fields(self) -> bool:
        """Whether the fields of the messages, and all that is in them, are the same objects."""
        # The names of a model's fields do not change, so their number is enough. (Renaming one in `__dict__`, in place,
        # goes unnoticed.)
        return (
            list(map(len, self.fields)) == self.field_counts
            and identical(get_referents(*self.fields), self.levels[0])
            and _same_below(self.levels)
            and list(map(len, self.containers)) == self.lengths
            and identical(list(chain.from_iterable(self.dicts)), self.keys)
        )

    def extended(self, more: PackedMessages) -> PackedMessages:
        """Return these messages followed by others."""
        deep, shallow = sorted((self.levels, more.levels), key=len, reverse=True)
        levels = [one + other for one, other in zip(self.levels, more.levels, strict=False)] + deep[len(shallow) :]
        return PackedMessages(*map(add, self, more))._replace(levels=levels)


def _levels_of(messages: list[Any], max_bytes: int) -> list[list[Any]] | None:
    """Return the contents of messages, level by level, or None if one has other fields than its class declares."""
    fields = list(map(_fields_of, messages))
    declared = map(MODEL_FIELDS.__getitem__, map(type, messages))
    # Names, not their number: one field may have been replaced by another, which would be lost.
    if any(map(ne, map(dict.keys, fields), declared)) or any(map(_extra_of, messages)):
        return None
    return _plain_levels(get_referents(*fields), max_bytes, of_messages=True)


def _encode_messages(messages: list[Any]) -> list[bytes]:
    if type(messages[0]) is dict:
        return list(map(encode, messages))
    numbers = map(MODEL_NUMBERS.__getitem__, map(type, messages))
    return list(map(encode, zip(repeat(None), numbers, map(_fields_of, messages), strict=False)))


def capture(messages: list[Any], packed: list[bytes], max_bytes: int) -> PackedMessages | None:
    """Record what messages contain now, for comparison with later. Returns None if they are not plain."""
    types = list(map(type, messages))
    distinct = set(types)
    fields: list[dict[Any, Any]] = messages
    if distinct == {dict}:
        levels = _plain_levels(messages, max_bytes)
        levels = levels and (levels[1:] or [[]])
    elif messages and distinct <= MODEL_NUMBERS.keys():
        levels = _levels_of(messages, max_bytes)
        fields = list(map(_fields_of, messages))
    else:
        return None
    if not levels:
        return None
    containers: list[Any] = []
    if len(levels) > 1:  # else all of them are empty
        containers = [value for level in levels for value in level if type(value) in (list, dict)]
    dicts = [container for container in containers if type(container) is dict]
    if fields is messages:  # their keys may change, and not only their values
        dicts += messages
    return PackedMessages(
        messages,
        types,
        fields,
        list(map(len, fields)),
        levels,
        containers,
        list(map(len, containers)),
        dicts,
        list(chain.from_iterable(dicts)),
        packed,
        sum(map(len, packed)),
    )


def capture_unpacked(messages: list[Any], packed: list[bytes], max_bytes: int) -> PackedMessages | None:
    """Record messages that were just unpacked from these bytes, which takes fewer checks."""
    fields = list(map(_fields_of, messages))
    values = get_referents(*fields)
    if get_referents(*values):
        return capture(messages, packed, max_bytes)
    types, counts = list(map(type, messages)), list(map(len, fields))
    return PackedMessages(
        messages, types, fields, counts, [values], [], [], [], [], packed, weight=sum(map(len, packed))
    )


def pack_messages(values: list[Any], cached: PackedMessages | None, max_bytes: int) -> PackedMessages | None:
    """Pack messages, of which the first may be cached. Returns None if they cannot be packed together."""
    try:
        if cached is not None and not cached.is_prefix_of(values):
            cached = None
        for start in range(0 if cached is None else len(cached.messages), len(values), BATCH):
            more = _pack_new(values[start : start + BATCH], max_bytes)
            if more is None or (cached is not None and cached.are_models is not more.are_models):
                return None
            cached = more if cached is None else cached.extended(more)
    except _NEEDS_SLOW_PATH:
        return None
    return cached


def _pack_new(values: list[Any], max_bytes: int) -> PackedMessages | None:
    captured = capture(values, [], max_bytes)
    if captured is None:
        return None
    packed = _encode_messages(values)
    if max(map(len, packed)) > max_bytes:
        return None
    captured = captured._replace(packed=packed, weight=sum(map(len, packed)))
    return captured if active_count() == 1 or captured.is_prefix_of(values) else None
