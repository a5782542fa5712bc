"""Large values, kept beside the line.

A value of many kilobytes that hardly changes would weigh on every read of the segment it lies in. It is stored once,
cut into pieces, and a *pointer* of 42 bytes stands for it: its size and its digest. Bytes of a pointer start like no
packed value does, so nothing a user saves can be taken for one.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from holdfast.engine.model.packed_state import POINTER
from holdfast.errors import CorruptError

LARGE = 64 << 10
"""A packed value of more bytes than this is kept beside the line."""

PIECE = 1 << 20
"""How many bytes a piece of a large value has, but for the last."""

_POINTER = struct.Struct(">2sQ32s")


class LargePointer(NamedTuple):
    """What stands for a large value."""

    size: int
    digest: bytes

    def encode(self) -> bytes:
        """The bytes that stand in the value's place."""
        return _POINTER.pack(POINTER, self.size, self.digest)

    @property
    def pieces(self) -> int:
        """How many pieces the value is stored in."""
        return -(-self.size // PIECE)


def is_pointer(packed: bytes) -> bool:
    """Whether these bytes stand for a large value."""
    return packed.startswith(POINTER)


def pointer_to(packed: bytes) -> LargePointer:
    """The pointer that would stand for this packed value."""
    return LargePointer(len(packed), hashlib.sha256(packed).digest())


def parse_pointer(data: bytes) -> LargePointer:
    """A pointer from its bytes."""
    try:
        mark, size, digest = _POINTER.unpack(data)
    except struct.error:
        raise CorruptError(f"{len(data)} bytes are not a pointer") from None
    if mark != POINTER:
        raise CorruptError("bytes that should be a pointer are something else")
    return LargePointer(size, digest)


def split(packed: bytes) -> list[bytes]:
    """A large value in pieces."""
    return [packed[start : start + PIECE] for start in range(0, len(packed), PIECE)]


def join(pointer: LargePointer, pieces: list[bytes]) -> bytes:
    """A large value from its pieces, which must be just those it was cut into."""
    packed = b"".join(pieces)
    if len(packed) != pointer.size or hashlib.sha256(packed).digest() != pointer.digest:
        raise CorruptError(
            f"the pieces of a large value do not make up its {pointer.size} bytes",
            where=pointer.digest.hex(),
            hint="Repair it from a mirror or a backup",
        )
    return packed
