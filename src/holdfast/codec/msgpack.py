"""Operations on msgpack bytes without decoding them.

`msgspec` encodes and decodes plain values. This module splits a packed list or dict into its packed items, joins items
again, and checks how deeply bytes are nested *before* a recursive decoder reads them. The bytes may be forged: each
function returns, or raises `CorruptError` or `TooDeepError`. Besides `holdfast.byte_reader`, only this module indexes
stored bytes.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from threading import get_ident, main_thread
from typing import Any

import msgspec

from holdfast.byte_reader import NO_STACK, UNREADABLE
from holdfast.codec.tags import Tag
from holdfast.errors import CorruptError, TooDeepError

MAX_DEPTH = 48
"""How deeply lists and dicts may nest in one value, or in one typed value's payload.

Decoders recurse on the C stack, some hundred bytes a level, which not every Python protects in every thread. With
`MAX_NESTING` nested typed values, the deepest valid document takes less than half a megabyte of it.
"""

MAX_NESTING = 24
"""How deeply typed values (tuples, dataclasses, messages …) may nest."""

_SHAPED = Tag.SHAPED
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_INTEGER = msgspec.msgpack.Decoder(int)

_EXT_ARRAY = msgspec.msgpack.Decoder(list[msgspec.msgpack.Ext]).decode
_RAW_ARRAY = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_ANY = msgspec.msgpack.Decoder().decode

LONG = 1024
"""From this many bytes on, a list is split by the decoder."""

_COMPACT = 512
"""From this many bytes on, memory that the encoder leaves unused is released."""

_SAFE_RECURSION_LIMIT = 10_000
"""Up to this recursion limit, Python stops the decoder before the main thread's stack overflows."""

_NOT_CONTAINERS = bytes(b for b in range(256) if not (0x80 <= b <= 0x9F or 0xDC <= b <= 0xDF))

# Length of a scalar by its first byte, where that is enough.
_FIXED: dict[int, int] = (
    dict.fromkeys(range(0x80), 1)
    | dict.fromkeys(range(0xE0, 0x100), 1)
    | {b: 1 + (b & 0x1F) for b in range(0xA0, 0xC0)}
    | {0xC0: 1, 0xC2: 1, 0xC3: 1, 0xCA: 5, 0xCB: 9}
    | {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
    | {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
)
# First byte → (bytes of the length field, bytes besides field and content).
_SIZED: dict[int, tuple[int, int]] = {
    0xC4: (1, 1), 0xC5: (2, 1), 0xC6: (4, 1),  # bin
    0xC7: (1, 2), 0xC8: (2, 2), 0xC9: (4, 2),  # ext: one more byte for the tag
    0xD9: (1, 1), 0xDA: (2, 1), 0xDB: (4, 1),  # str
    0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 1), 0xDF: (4, 1),  # list, dict: the length counts values
}  # fmt: skip


def _first_bytes(*kinds: range) -> frozenset[bytes]:
    return frozenset(bytes([first]) for kind in kinds for first in kind)


# The first bytes of values, by kind.
_ARRAYS = _first_bytes(range(0x90, 0xA0), range(0xDC, 0xDE))
_MAPS = _first_bytes(range(0x80, 0x90), range(0xDE, 0xE0))
_STRINGS = _first_bytes(range(0xA0, 0xC0), range(0xD9, 0xDC))
_BINARIES = _first_bytes(range(0xC4, 0xC7))
_EXTS = _first_bytes(range(0xC7, 0xCA), range(0xD4, 0xD9))
TEXT_STARTS = {first: 1 + _SIZED.get(ord(first), (0, 0))[0] for first in _STRINGS}
"""Where the content of a string starts, by the first byte."""
_BYTES_STARTS = {first: 1 + _SIZED[ord(first)][0] for first in _BINARIES}
_CONTENTS = TEXT_STARTS | _BYTES_STARTS


def array_header(count: int) -> bytes:
    """Return the header of a list of `count` items."""
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + _U16.pack(count)
    return b"\xdd" + _U32.pack(count)


def map_header(count: int) -> bytes:
    """Return the header of a dict of `count` pairs."""
    if count < 16:
        return bytes((0x80 | count,))
    if count < 1 << 16:
        return b"\xde" + _U16.pack(count)
    return b"\xdf" + _U32.pack(count)


def ext(tag: int, payload: bytes) -> bytes:
    """Pack a typed value, with the header that the encoder would choose."""
    size = len(payload)
    if size < 1 << 8:
        fixed = _FIXEXT.get(size)
        return bytes((fixed, tag)) + payload if fixed else bytes((0xC7, size, tag)) + payload
    if size < 1 << 16:
        return b"\xc8" + _U16.pack(size) + bytes((tag,)) + payload
    return b"\xc9" + _U32.pack(size) + bytes((tag,)) + payload


_CUT_OFF = "packed bytes end in the middle of a value"
_FIXEXT = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}
_EXT_PAYLOADS = {first: _SIZED.get(ord(first), (0, 0))[0] + 2 for first in _EXTS}
"""Where the payload of a typed value starts, by its first byte."""


def text(content: bytes) -> bytes:
    """Pack a string given as UTF-8."""
    size = len(content)
    if size < 32:
        return bytes((0xA0 | size,)) + content
    if size < 1 << 8:
        return bytes((0xD9, size)) + content
    return (b"\xda" + _U16.pack(size) if size < 1 << 16 else b"\xdb" + _U32.pack(size)) + content


def binary(content: bytes) -> bytes:
    """Pack `bytes`."""
    return binary_header(len(content)) + content


def binary_header(size: int) -> bytes:
    """Return the header of `bytes` of a size."""
    if size < 1 << 8:
        return bytes((0xC4, size))
    return b"\xc5" + _U16.pack(size) if size < 1 << 16 else b"\xc6" + _U32.pack(size)


def compact(encoded: bytes) -> bytes:
    """Return what the encoder made without the unused memory behind it, which is up to half of its size."""
    return encoded if len(encoded) < _COMPACT else bytes(memoryview(encoded))


def join_array(items: Sequence[bytes]) -> bytes:
    """Join packed items into a packed list."""
    return b"".join((array_header(len(items)), *items))


def join_map(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Join packed keys and values into a packed dict, in this order."""
    return map_header(len(pairs)) + b"".join(part for pair in pairs for part in pair)


def is_array(data: bytes) -> bool:
    """Whether packed bytes hold a list."""
    return data[:1] in _ARRAYS


SHAPED_MARK = b"\x93\xc0"
"""The start of a value of a well-known class that is packed on its own: a list of three, None first."""

_SHAPED_START = bytes([_SHAPED]) + SHAPED_MARK
"""How it starts where it is part of a value: after its tag."""

ESCAPE = b"\xc1"
"""Marks a user's list that starts like `SHAPED_MARK`. msgpack never uses this byte."""


def top(data: bytes) -> bytes:
    """Convert bytes that are part of a value to the form of a value on its own.

    Messages, the most frequent values, have no ext header when they are packed on their own, which avoids copying them.
    Only this function and `inner` know about that.
    """
    start = _EXT_PAYLOADS.get(data[:1])
    if start is not None:
        # The tag is the last byte of the header.
        return data[start:] if data.startswith(_SHAPED_START, start - 1) else data
    return ESCAPE + data if data.startswith(SHAPED_MARK) else data


def inner(data: bytes) -> bytes:
    """Convert bytes of a value on its own to the form of a part of another."""
    if data.startswith(SHAPED_MARK):
        return ext(_SHAPED, data)
    return data[1:] if data.startswith(ESCAPE) else data


def is_map(data: bytes) -> bool:
    """Whether packed bytes hold a dict whose keys are scalars."""
    return data[:1] in _MAPS


def is_str(data: bytes) -> bool:
    """Whether packed bytes hold a string."""
    return data[:1] in _STRINGS


def is_bin(data: bytes) -> bool:
    """Whether packed bytes hold `bytes`."""
    return data[:1] in _BINARIES


def last_bin(data: bytes, start: int) -> bytes | None:
    """Return the content of packed `bytes` that start at a position and end where the data ends; None if there are no
    such ones."""
    header = _BYTES_STARTS.get(data[start : start + 1])
    if header is None:
        return None
    begin = start + header
    size = int.from_bytes(data[start + 1 : begin], "big")
    return data[begin:] if len(data) == begin + size else None


def is_ext(data: bytes) -> bool:
    """Whether packed bytes hold a value that is none of msgpack's own kinds."""
    return data[:1] in _EXTS


def integer(data: bytes) -> int | None:
    """Return the whole number that packed bytes hold; None if they hold something else."""
    try:
        return _INTEGER.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def content(data: bytes) -> bytes:
    """Return the content of a packed string, as UTF-8, or of packed `bytes`."""
    start = _CONTENTS.get(data[:1])
    if start is None:
        raise CorruptError("packed bytes hold neither a string nor bytes")
    return data[start:]


def split_array(data: bytes) -> list[bytes]:
    """Split a packed list into its packed items."""
    return _split(data, is_array(data))


def count_items(data: bytes) -> int:
    """Return how many items a packed list says that it has."""
    return _next(data, 0)[1]


def split_items(data: bytes) -> list[bytes]:
    """Split a packed list into its items, each in the form of a value on its own."""
    if len(data) > LONG:
        # A list of messages: the decoder copies the payload of each once, and does not look into it.
        with suppress(msgspec.MsgspecError):
            typed = _EXT_ARRAY(data)
            items = [bytes(each.data) for each in typed if each.code == _SHAPED]
            if len(items) == len(typed) and all(map(bytes.startswith, items, repeat(SHAPED_MARK))):
                return items
    return list(map(top, split_array(data)))


def split_map(data: bytes) -> list[tuple[bytes, bytes]]:
    """Split a packed dict into its packed keys and values."""
    parts = _split(data, is_map(data))
    return list(zip(parts[::2], parts[1::2], strict=True))


def split_ext(data: bytes) -> tuple[int, bytes] | None:
    """Return tag and payload of a typed value, or None if the bytes hold something else."""
    start = _EXT_PAYLOADS.get(data[:1])
    if start is None:
        return None
    if len(data) < start:
        raise CorruptError(_CUT_OFF)
    return data[start - 1], data[start:]


def parse(data: bytes, load_ext: Callable[[int, memoryview], Any] | None = None) -> Any:
    """Decode packed bytes, with typed values as `Ext`, or as what `load_ext` returns for tag and payload."""
    check_depth(data)
    try:
        return _ANY(data) if load_ext is None else msgspec.msgpack.decode(data, ext_hook=load_ext)
    except RecursionError:
        raise TooDeepError(f"packed bytes are {NO_STACK}") from None
    except UNREADABLE as error:
        raise CorruptError(f"not the packed form of a value: {error}") from None


def check_depth(data: bytes) -> None:
    """Refuse bytes that nest deeper than `MAX_DEPTH`, before a recursive decoder reads them.

    The number of bytes that could start a container is an upper bound of the depth, and quick to count. Nearly all
    documents pass that test; only the others are walked.
    """
    if len(data) > MAX_DEPTH and len(data.translate(None, _NOT_CONTAINERS)) > MAX_DEPTH:
        _walk_depth(data)


def _walk_depth(data: bytes) -> None:
    missing: list[int] = []  # values still to come in each open container, innermost last
    at = 0
    while True:
        at, values = _next(data, at)
        if values:
            missing.append(values)
            if len(missing) > MAX_DEPTH:
                raise TooDeepError(
                    f"packed bytes nest lists and dicts more than {MAX_DEPTH} deep",
                    hint="Holdfast never writes such bytes: they are damaged or forged",
                )
            continue
        while missing:
            missing[-1] -= 1
            if missing[-1]:
                break
            missing.pop()
        if not missing:
            return


def _next(data: bytes, at: int) -> tuple[int, int]:
    """Skip a scalar, a typed value or a container's header. Returns its end, and how many values it contains."""
    if at >= len(data):
        raise CorruptError(_CUT_OFF)
    first = data[at]
    fixed = _FIXED.get(first)
    if fixed is not None:
        return at + fixed, 0
    if first <= 0x8F:
        return at + 1, 2 * (first & 0x0F)
    if first <= 0x9F:
        return at + 1, first & 0x0F
    sized = _SIZED.get(first)
    if sized is None:
        raise CorruptError(f"byte 0x{first:02x} does not start a value")
    width, besides = sized
    length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
    if first < 0xDC:
        return at + width + besides + length, 0
    return at + width + besides, length if first <= 0xDD else 2 * length


def stack_is_safe() -> bool:
    """Whether Python itself keeps a recursive decoder from overflowing the stack.

    Outside the main thread the stack may be small.
    """
    return get_ident() == main_thread().ident and sys.getrecursionlimit() <= _SAFE_RECURSION_LIMIT


def _split(data: bytes, is_container: bool) -> list[bytes]:
    if is_container and is_array(data) and stack_is_safe():
        with suppress(msgspec.MsgspecError, RecursionError):  # the slow way reports the error
            return list(map(bytes, _RAW_ARRAY(data)))
    at, count = _next(data, 0)
    if not is_container or count > len(data):
        raise CorruptError("a packed list or dict claims more items than it has bytes")
    parts: list[bytes] = []
    for _ in range(count):
        start, pending = at, 1
        while pending:
            at, values = _next(data, at)
            pending += values - 1
        parts.append(data[start:at])
    if at != len(data):
        raise CorruptError("packed bytes do not end where their last value ends")
    return parts
