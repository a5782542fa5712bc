"""A stored value whose type is not available here."""

from __future__ import annotations

from typing import Any, final

from msgspec import MsgspecError
from msgspec.msgpack import decode

from holdfast.codec.known_classes import KNOWN_CLASSES
from holdfast.codec.msgpack import check_depth
from holdfast.codec.tags import Tag
from holdfast.errors import HoldfastError, InvalidError


@final
class OpaqueValue:
    """A typed value kept as it was stored, because nothing here can, or may, bring it to life.

    It is what a program without the application's classes sees, and what a class that has changed beyond its
    old fields comes back as. It can be compared, hashed, looked into and saved again: it encodes back to exactly
    the bytes it was read from, so nothing is lost.
    """

    __slots__ = ("data", "tag")

    tag: int
    data: bytes

    def __init__(self, tag: int, data: bytes) -> None:
        if tag not in range(128) or type(data) is not bytes:
            raise InvalidError("an inert value has a tag from 0 to 127, and bytes")
        object.__setattr__(self, "tag", int(tag))
        object.__setattr__(self, "data", data)

    @property
    def type_name(self) -> str:
        """The stored name of its type: a class as `module:qualname`, or what kind of value it is."""
        parts = self._parts()
        if self.tag == Tag.SHAPED and len(parts) == 3 and type(parts[1]) is int and parts[1] in KNOWN_CLASSES:
            return KNOWN_CLASSES[parts[1]].ref
        if Tag.DATACLASS <= self.tag <= Tag.REGISTERED and parts and type(parts[0]) is str:
            return parts[0]
        try:
            return Tag(self.tag).name.lower()
        except ValueError:
            return f"unknown type {self.tag}"

    def _parts(self) -> list[Any]:
        try:
            check_depth(self.data)
            parts = decode(self.data, ext_hook=lambda tag, view: OpaqueValue(tag, bytes(view)))
        except (HoldfastError, MsgspecError, UnicodeDecodeError, RecursionError):
            return []
        return parts if type(parts) is list else [parts]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an inert value can not be changed")

    def __eq__(self, other: object) -> bool:
        return type(other) is OpaqueValue and (self.tag, self.data) == (other.tag, other.data)

    def __hash__(self) -> int:
        return hash((self.tag, self.data))

    def __repr__(self) -> str:
        name = self.type_name
        shown = name[:80] if name.isprintable() else ascii(name[:80])
        return f"<Inert {shown}, {len(self.data)} bytes>"
