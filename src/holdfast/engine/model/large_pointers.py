"""Large values, stored beside the line.

A value of many kilobytes that hardly changes would slow down every read of the segment it lies in. It is stored once,
in pieces, and a *pointer* of 58 bytes takes its place: its size, the salt of its line, and its digest under that salt.
The bytes of a pointer start like no packed value does, so that nothing a user saves can be mistaken for one. Only
pointers of one line are equal if their values are.
"""

from __future__ import annotations

import struct

from holdfast._named_tuple import NamedTuple
from holdfast.byte_reader import ByteReader
from holdfast.engine.model.line_salt import digest
from holdfast.engine.model.packed_state import POINTER
from holdfast.errors import CorruptError

LARGE = 64 << 10
"""A packed value of more bytes than this is stored beside the line."""

PIECE = 1 << 20
"""How many bytes a piece of a large value has, except the last."""

_POINTER = struct.Struct(">2sQ16s32s")


class LargePointer(NamedTuple):
    """A reference to a large value."""

    size: int
    salt: bytes
    digest: bytes

    def encode(self) -> bytes:
        """Return the bytes that take the value's place."""
        return _POINTER.pack(POINTER, self.size, self.salt, self.digest)

    def is_of(self, packed: bytes) -> bool:
        """Return whether it is the pointer to a value."""
        return len(packed) == self.size and digest(self.salt, packed) == self.digest

    @property
    def pieces(self) -> int:
        """Return how many pieces the value is stored in."""
        return -(-self.size // PIECE)


def is_pointer(packed: bytes) -> bool:
    """Return whether these bytes are a pointer to a large value."""
    return packed.startswith(POINTER)


def pointer_to(packed: bytes, salt: bytes) -> LargePointer:
    """Return the pointer to a packed value, in a line with this salt."""
    return LargePointer(len(packed), salt, digest(salt, packed))


def parse_pointer(data: bytes) -> LargePointer:
    """Parse a pointer."""
    reader = ByteReader(data, "a pointer to a large value")
    mark, size, salt, value_digest = reader.fields(_POINTER)
    reader.end()
    if mark != POINTER:
        raise reader.error("does not start like one")
    return LargePointer(size, salt, value_digest)


def split(packed: bytes) -> list[bytes]:
    """Split a large value into pieces."""
    return [packed[start : start + PIECE] for start in range(0, len(packed), PIECE)]


def join(pointer: LargePointer, pieces: list[bytes]) -> bytes:
    """Join the pieces of a large value. `CorruptError` if they are not those it was split into."""
    packed = b"".join(pieces)
    if not pointer.is_of(packed):
        raise CorruptError(
            f"the pieces of a large value do not make up its {pointer.size} bytes",
            where=pointer.digest.hex(),
            hint="Repair it from a mirror or a backup",
        )
    return packed
