"""Large values, stored beside the line.

A value of many kilobytes that hardly changes would slow down every read of the segment it lies in. It is stored once,
in pieces, and a *pointer* of 42 bytes takes its place: its size and its digest. The bytes of a pointer start like no
packed value does, so that nothing a user saves can be mistaken for one.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from holdfast.engine.model.packed_state import POINTER
from holdfast.errors import CorruptError

LARGE = 64 << 10
"""A packed value of more bytes than this is stored beside the line."""

PIECE = 1 << 20
"""How many bytes a piece of a large value has, except the last."""

_POINTER = struct.Struct(">2sQ32s")


class LargePointer(NamedTuple):
    """A reference to a large value."""

    size: int
    digest: bytes

    def encode(self) -> bytes:
        """Return the bytes that take the value's place."""
        return _POINTER.pack(POINTER, self.size, self.digest)

    @property
    def pieces(self) -> int:
        """Return how many pieces the value is stored in."""
        return -(-self.size // PIECE)


def is_pointer(packed: bytes) -> bool:
    """Return whether these bytes are a pointer to a large value."""
    return packed.startswith(POINTER)


def pointer_to(packed: bytes) -> LargePointer:
    """Return the pointer to a packed value."""
    return LargePointer(len(packed), hashlib.sha256(packed).digest())


def parse_pointer(data: bytes) -> LargePointer:
    """Parse a pointer."""
    try:
        mark, size, digest = _POINTER.unpack(data)
    except struct.error:
        raise CorruptError(f"{len(data)} bytes are not a pointer") from None
    if mark != POINTER:
        raise CorruptError("bytes that should be a pointer are something else")
    return LargePointer(size, digest)


def split(packed: bytes) -> list[bytes]:
    """Split a large value into pieces."""
    return [packed[start : start + PIECE] for start in range(0, len(packed), PIECE)]


def join(pointer: LargePointer, pieces: list[bytes]) -> bytes:
    """Join the pieces of a large value. `CorruptError` if they are not those it was split into."""
    packed = b"".join(pieces)
    if len(packed) != pointer.size or hashlib.sha256(packed).digest() != pointer.digest:
        raise CorruptError(
            f"the pieces of a large value do not make up its {pointer.size} bytes",
            where=pointer.digest.hex(),
            hint="Repair it from a mirror or a backup",
        )
    return packed
