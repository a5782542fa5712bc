"""Large values, kept beside the line.

A value of many kilobytes that hardly changes would weigh on every read of the segment it lies in. It is stored once,
cut into pieces, and a *stub* of 42 bytes stands for it: its size and its digest. Bytes of a stub start like no packed
value does, so nothing a user saves can be taken for one.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from holdfast.errors import Corrupt
from holdfast.model.packed import STUB

LARGE = 64 << 10
"""A packed value of more bytes than this is kept beside the line."""

PIECE = 1 << 20
"""How many bytes a piece of a large value has, but for the last."""

_STUB = struct.Struct(">2sQ32s")


class Stub(NamedTuple):
    """What stands for a large value."""

    size: int
    digest: bytes

    def encode(self) -> bytes:
        """The bytes that stand in the value's place."""
        return _STUB.pack(STUB, self.size, self.digest)

    @property
    def pieces(self) -> int:
        """How many pieces the value is stored in."""
        return -(-self.size // PIECE)


def is_stub(packed: bytes) -> bool:
    """Whether these bytes stand for a large value."""
    return packed.startswith(STUB)


def stub_of(packed: bytes) -> Stub:
    """The stub that would stand for this packed value."""
    return Stub(len(packed), hashlib.sha256(packed).digest())


def parse_stub(data: bytes) -> Stub:
    """A stub from its bytes."""
    try:
        mark, size, digest = _STUB.unpack(data)
    except struct.error:
        raise Corrupt(f"{len(data)} bytes are not a stub") from None
    if mark != STUB:
        raise Corrupt("bytes that should be a stub are something else")
    return Stub(size, digest)


def split(packed: bytes) -> list[bytes]:
    """A large value in pieces."""
    return [packed[start : start + PIECE] for start in range(0, len(packed), PIECE)]


def join(stub: Stub, pieces: list[bytes]) -> bytes:
    """A large value from its pieces, which must be just those it was cut into."""
    packed = b"".join(pieces)
    if len(packed) != stub.size or hashlib.sha256(packed).digest() != stub.digest:
        raise Corrupt(
            f"the pieces of a large value do not make up its {stub.size} bytes",
            where=stub.digest.hex(),
            hint="Repair it from a mirror or a backup",
        )
    return packed
