"""States as packed bytes, split as far as it pays.

A packed value is bytes. A long list is better kept as the list of its packed items, and a large dict as its packed
values by packed key, so that two states can be compared and changed piece by piece. The form never affects the value:
`flatten` returns the same bytes for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import NoneType
from typing import Any, Protocol, TypeAlias

from holdfast.codec import Codec, collector_paused, default_codec, msgpack
from holdfast.errors import CorruptError, HoldfastError, InvalidError

Packed: TypeAlias = "bytes | list[bytes] | dict[bytes, Packed]"
"""A packed value: whole, as items, or as values by packed key."""

PackedMap: TypeAlias = "dict[bytes, Packed]"
"""A packed state: its channels by packed name."""

LONG_TEXT = 4096
"""A string of more characters than this is worth caching with its packed form."""


class StatePacker(Protocol):
    """Packs values of a state, by their packed names, and may reuse earlier results."""

    def pack_list(self, key: bytes, values: list[Any]) -> list[bytes]:
        """Pack a list's items."""

    def pack_text(self, key: bytes, text: str) -> bytes:
        """Pack a long string."""


SMALL = 1024
"""A dict of fewer packed bytes than this is not split."""

_LONG = 16
"""A list of fewer items is unpacked as quickly as it is compared with another."""

_FEW = 16
"""A dict of more scalars than this is split before it is packed."""

POINTER = b"\xc1\xc1"
"""The start of a pointer to a large value. No packed value starts like this."""

_NUMBERS = frozenset({int, float, bool, NoneType})
_SCALARS = _NUMBERS | {str, bytes}


def pack_state(codec: Codec, state: Mapping[str, Any], memory: StatePacker | None = None) -> PackedMap:
    """Pack a state. Errors name the path from the top of it."""
    for name in state:
        if type(name) is not str:
            raise InvalidError(f"the name of a channel must be a string, not {type(name).__name__}", where=repr(name))
    try:
        return _pack_map(codec, dict(state), list(map(pack_name, state)), memory)
    except HoldfastError:
        codec.pack(dict(state))  # fails for the same reason, and reports the whole path
        raise


def pack_channel(codec: Codec, name: str, value: Any) -> Packed:
    """Pack one channel, as in a state."""
    if type(value) is not dict or len(value) > _FEW:
        return _pack_alone(codec, name, value)
    try:
        return _split_dict(value, *codec.pack_items((value,)))
    except HoldfastError:
        return _pack_alone(codec, name, value)  # reports the path


def _pack_alone(codec: Codec, name: str, value: Any) -> Packed:
    (packed,) = pack_state(codec, {name: value}).values()
    return packed


def unpack_state(codec: Codec, packed: PackedMap) -> dict[str, Any]:
    """Unpack a state into new objects."""
    return _unpack_map(codec, packed, map(unpack_name, packed))


def unpack_states(codec: Codec, states: Sequence[PackedMap]) -> list[dict[str, Any]]:
    """Unpack several states of a line into new objects. Of long lists, what they have in common is decoded once."""
    if len(states) == 1:
        return [unpack_state(codec, states[0])]
    long: list[dict[bytes, list[Any]]] = [{} for _ in states]
    names = {key for state in states for key, value in state.items() if type(value) is list and len(value) >= _LONG}
    with collector_paused():
        for name in names:
            lists: list[tuple[list[bytes], dict[bytes, list[Any]]]] = []
            for state, each in zip(states, long, strict=True):
                value = state.get(name)
                if isinstance(value, list):
                    lists.append((value, each))
            cached = None
            for items, each in sorted(lists, key=lambda pair: len(pair[0])):
                each[name], cached = codec.unpack_repeated(items, cached)
        return [_with_lists(codec, state, each) for state, each in zip(states, long, strict=True)]


def _with_lists(codec: Codec, packed: PackedMap, lists: Mapping[bytes, list[Any]]) -> dict[str, Any]:
    """Unpack a state of which some lists are unpacked already."""
    rest = unpack_state(codec, {key: value for key, value in packed.items() if key not in lists})
    return {(name := unpack_name(key)): lists[key] if key in lists else rest[name] for key in packed}


def unpack(codec: Codec, packed: Packed) -> Any:
    """Unpack a value in any of the forms into new objects."""
    if isinstance(packed, bytes):
        return codec.unpack(packed)
    if isinstance(packed, list):
        return codec.unpack_items(packed)
    return _unpack_map(codec, packed, codec.unpack_items(packed))


def _unpack_map(codec: Codec, packed: PackedMap, keys: Iterable[Any]) -> dict[Any, Any]:
    """Unpack a dict: all that is not split, and the items of lists, in one batch."""
    flat: list[bytes] = []
    for value in packed.values():
        if isinstance(value, bytes):
            flat.append(value)
        elif isinstance(value, list):
            flat += value
    values = iter(codec.unpack_items(flat))
    state: dict[Any, Any] = {}
    for key, value in zip(keys, packed.values(), strict=True):
        if isinstance(value, bytes):
            state[key] = next(values)
        elif isinstance(value, list):
            state[key] = list(islice(values, len(value)))
        else:
            state[key] = unpack(codec, value)
    return state


@lru_cache(4096)
def unpack_name(packed: bytes) -> str:
    """Unpack a channel's name."""
    name = default_codec.unpack(packed)
    if type(name) is not str:
        raise CorruptError("a channel's name is not a string", where=packed.hex())
    return name


@lru_cache(4096)
def pack_name(name: str) -> bytes:
    """Pack a channel's name. States of an agent have the same few."""
    return msgpack.text(name.encode()) if len(name) < 256 and name.isascii() else default_codec.pack(name)


def _pack_map(codec: Codec, value: dict[Any, Any], keys: list[bytes], memory: StatePacker | None = None) -> PackedMap:
    """Pack a dict: large containers are split; everything else is packed in one batch."""
    packed: PackedMap = {}
    whole: dict[bytes, Any] = {}
    for key, item in zip(keys, value.values(), strict=True):
        packed[key] = b""  # keeps the key's position in the order
        if type(item) is list and item and not _NUMBERS.issuperset(map(type, item)):
            packed[key] = codec.pack_items(item) if memory is None else memory.pack_list(key, item)
        elif memory is not None and type(item) is str and len(item) > LONG_TEXT:
            packed[key] = memory.pack_text(key, item)
        elif type(item) is dict and len(item) > _FEW and _SCALARS.issuperset(map(type, item)):
            packed[key] = _pack_map(codec, item, codec.pack_items(item))
        else:
            whole[key] = item
    for (key, item), data in zip(whole.items(), codec.pack_items(whole.values()) if whole else (), strict=True):
        packed[key] = _split_dict(item, data)
    return packed


def _split_dict(value: Any, data: bytes) -> Packed:
    """Return packed bytes, as values by key if they are a large dict."""
    apart = as_map(data) if type(value) is dict and len(data) >= SMALL else None
    return data if apart is None else apart


def flatten(packed: Packed) -> bytes:
    """Return the packed bytes of the whole value."""
    return packed if isinstance(packed, bytes) else b"".join(flat_parts(packed))


def flat_parts(packed: list[bytes] | PackedMap) -> list[bytes]:
    """Return the packed bytes of the whole value in parts, which are not copied."""
    parts = _inner_parts(packed)
    start = parts[0] + parts[1][:1] if len(parts) > 1 else parts[0]
    return [msgpack.ESCAPE, *parts] if msgpack.top(start) != start else parts


def _inner_parts(packed: list[bytes] | PackedMap) -> list[bytes]:
    """Return the parts of a value in the form inside others."""
    if isinstance(packed, list):
        return [msgpack.array_header(len(packed)), *map(inner, packed)]
    parts = [msgpack.map_header(len(packed))]
    for key, value in packed.items():
        parts.append(key)
        if isinstance(value, bytes):
            parts.append(inner(value))
        else:
            parts += _inner_parts(value)
    return parts


def packed_size(packed: Packed) -> int:
    """Return about how many bytes a value has, in any form."""
    if isinstance(packed, bytes):
        return len(packed)
    if isinstance(packed, list):
        return sum(map(len, packed))
    return sum(len(key) + packed_size(value) for key, value in packed.items())


def inner(packed: bytes) -> bytes:
    """Return packed bytes in the form inside others. A pointer has no such form: its value must be loaded first."""
    if packed.startswith(POINTER):
        raise InvalidError("a pointer stands for a large value that was not fetched")
    return msgpack.inner(packed)


def as_items(packed: Packed) -> list[bytes] | None:
    """Return the packed items of a list in any form; None if it is not a list."""
    if isinstance(packed, list):
        return packed
    if isinstance(packed, dict) or packed.startswith((msgpack.SHAPED_MARK, POINTER)):
        return None
    data = _not_empty(packed.removeprefix(msgpack.ESCAPE))
    return msgpack.split_items(data) if msgpack.is_array(data) else None


def count_items(packed: bytes) -> int | None:
    """Return how many items a packed list has; None if it is not a list."""
    if packed.startswith((msgpack.SHAPED_MARK, POINTER)):
        return None
    data = _not_empty(packed.removeprefix(msgpack.ESCAPE))
    return msgpack.count_items(data) if msgpack.is_array(data) else None


def as_map(packed: Packed) -> PackedMap | None:
    """Return the packed values of a dict in any form, by packed key; None if it is not a dict."""
    if isinstance(packed, dict):
        return packed
    if isinstance(packed, list) or not msgpack.is_map(_not_empty(packed)):
        return None
    return {key: msgpack.top(value) for key, value in msgpack.split_map(packed)}


def is_container(packed: bytes) -> bool:
    """Return whether packed bytes are a list or a dict."""
    bare = packed.removeprefix(msgpack.ESCAPE)
    return not packed.startswith(msgpack.SHAPED_MARK) and (msgpack.is_array(bare) or msgpack.is_map(bare))


def _not_empty(packed: bytes) -> bytes:
    if not packed:
        raise CorruptError("a packed value has no bytes")
    return packed
