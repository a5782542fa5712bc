"""Damage that is one for certain: writing some byte over another may be writing the same."""

from __future__ import annotations


def flipped(data: bytes, at: int = -1) -> bytes:
    """The same bytes, but for one bit."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)
