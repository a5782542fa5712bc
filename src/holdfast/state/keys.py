"""Stored keys: each is a channel of its scope's state; one that expires, or that has a schema, has a further channel.

Keys have no control characters: names that start with one are internal, as `\\0ttl/plan`, the expiry of `plan`, and
`\\0schema/plan`, the version of its schema.
"""

from __future__ import annotations

from typing import Any

from holdfast.engine.model.nodes import sort_key
from holdfast.engine.model.packed_state import Packed, pack_channel, pack_name, unpack_name
from holdfast.errors import HoldfastError
from holdfast.security.handle import StoreHandle

_TTL, _SCHEMA, _ITEM, _VECTORS = "\0ttl/", "\0schema/", "\0~item/", "\0~vectors/"

FIRST = b"\x01\x20"
"""The position of the first key of a user, in the order of keys."""

INTERNAL_FIRST = b"\x01\x00"
"""The position of the first channel that is no key."""

ITEM_FIRST = sort_key(pack_name("\0~"))
"""The position of the first channel of the index of items, after all other channels that are no keys."""

TTL_FIRST = sort_key(pack_name(_TTL))
TTL_LAST = sort_key(pack_name(_TTL[:-1] + "0"))  # "0" comes after "/"
"""The positions of the channels that have when keys expire."""


def ttl_name(key: str) -> str:
    """Return the name of the channel that holds when a key expires."""
    return _TTL + key


def pack_ttl(key: str) -> bytes:
    """Return the packed name of the channel that holds when a key expires."""
    return pack_name(_TTL + key)


def mark_name(key: str) -> str:
    """Return the name of the channel that has the version of a key's schema."""
    return _SCHEMA + key


def pack_mark(key: str) -> bytes:
    """Return the packed name of the channel that has the version of a key's schema."""
    return pack_name(_SCHEMA + key)


def pack_item(key: str) -> bytes:
    """Return the packed name of the channel that has the times of an item."""
    return pack_name(_ITEM + key)


def pack_vectors(key: str = "") -> bytes:
    """Return the packed name of the channel that has the vectors of an item."""
    return pack_name(_VECTORS + key)


def unpack_key(packed: bytes) -> str:
    """Return the key of a channel; an empty text, if the channel is internal."""
    name = unpack_name(packed)
    return "" if name.startswith("\0") else name


def key_of_vectors(packed: bytes) -> str:
    """Return the item whose vectors a channel has."""
    return unpack_name(packed)[len(_VECTORS) :]


def expiring_key(packed: bytes) -> str:
    """Return the key whose expiry a channel has."""
    return unpack_name(packed)[len(_TTL) :]


def prefix_start(prefix: str) -> bytes:
    """Return the position of the first key with a prefix, in the order of keys."""
    return b"\x01" + prefix.encode() if prefix else FIRST


def prefix_end(prefix: str) -> bytes | None:
    """Return the position after the last key with a prefix; None for the end of all."""
    return b"\x01" + prefix.encode() + b"\xff" if prefix else None


_SCALARS = frozenset({str, int, float, bool, type(None)})
"""Types of values that contain no others, and are packed as they are."""


def pack_value(handle: StoreHandle, key: str, value: Any) -> Packed:
    """Pack the value of a key. Errors give the path of a value that cannot be packed."""
    if type(value) not in _SCALARS:
        return pack_channel(handle.codec, key, value)
    try:
        return handle.codec.pack(value)
    except HoldfastError:
        return pack_channel(handle.codec, key, value)  # names the key
