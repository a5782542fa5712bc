"""Keys as bytes that sort the same way, for stores that order by bytes alone.

The byte form orders like the tuple does, whatever the names hold; no two keys share one; and the keys with a prefix are
just those whose bytes start with the prefix's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from holdfast.backends.tables import Key, Scalar
from holdfast.errors import CorruptError

_NUMBER = struct.Struct(">Q")
_MIDDLE = 1 << 63

# A name ends in 00 01. A zero byte inside one is written 00 FF, so no name's form is the start of another's.
_END = b"\x00\x01"
_ZERO = b"\x00\xff"


def encode_key(key: Iterable[Scalar]) -> bytes:
    """The bytes of a key, or of the first columns of one."""
    return b"".join(map(_encode, key))


def decode_key(kinds: Iterable[type], data: bytes) -> Key:
    """The key that these bytes were made from, given the types of its columns."""
    values: list[Scalar] = []
    rest = data
    try:
        for kind in kinds:
            if kind is int:
                values.append(_NUMBER.unpack_from(rest)[0] - _MIDDLE)
                rest = rest[_NUMBER.size :]
            else:
                name, rest = _take(rest)
                values.append(name.decode() if kind is str else name)
    except (ValueError, struct.error):
        raise CorruptError(f"{data.hex()} is no key") from None
    if rest:
        raise CorruptError(f"{data.hex()} is no key")
    return tuple(values)


def _encode(value: Scalar) -> bytes:
    if isinstance(value, int):
        return _NUMBER.pack(value + _MIDDLE)
    data = value.encode() if isinstance(value, str) else value
    return data.replace(b"\x00", _ZERO) + _END


def _take(data: bytes) -> tuple[bytes, bytes]:
    at = 0
    while True:
        at = data.index(b"\x00", at)
        mark = data[at + 1 : at + 2]
        if mark == b"\x01":
            return data[:at].replace(_ZERO, b"\x00"), data[at + 2 :]
        if mark != b"\xff":
            raise ValueError(data)
        at += 2
