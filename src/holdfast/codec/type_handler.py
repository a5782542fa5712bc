"""What the codec asks of a type: how its values become a payload, and how they come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

from holdfast.codec.tags import Tag


class ClassNotLoaded(Exception):
    """The value is sound, and this machine or process has no such thing: it stays inert."""


class Packing(Protocol):
    """A packing under way, as seen by what packs one type."""

    def pack(self, value: Any) -> bytes:
        """A part of the value, of any type, as bytes."""
        ...

    def spend(self, weight: int) -> None:
        """Count bytes that are about to be packed against the limit."""
        ...


class Unpacking(Protocol):
    """An unpacking under way, as seen by what unpacks one type."""

    def value(self, data: bytes) -> Any:
        """The value in bytes from inside others."""
        ...

    def array(self, data: bytes, *types: type) -> list[Any]:
        """A payload that is a list, optionally of exactly these types."""
        ...


Dumper: TypeAlias = Callable[[Packing, Any], tuple[int, bytes]]
"""Gives the tag and the payload of a value."""

Loader: TypeAlias = Callable[[Unpacking, bytes], Any]
"""Makes a value from its payload."""


class TypeHandler(NamedTuple):
    """One exact type, its tag, and the two directions."""

    type: type
    tag: Tag
    dump: Callable[[Packing, Any], bytes]
    load: Loader
