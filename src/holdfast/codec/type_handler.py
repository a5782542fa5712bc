"""The interface between the codec and the modules that pack the values of single types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.codec.tags import Tag


class ClassNotLoaded(Exception):
    """The value is valid, but its class is not available in this process: it is read as an `OpaqueValue`."""


class Packing(Protocol):
    """The part of `Packer` that a type handler uses."""

    def pack(self, value: Any) -> bytes:
        """Pack a part of the value, of any type."""
        ...

    def spend(self, weight: int) -> None:
        """Count bytes that are about to be packed against the size limit."""
        ...


class Unpacking(Protocol):
    """The part of `Unpacker` that a type handler uses."""

    def value(self, data: bytes) -> Any:
        """Unpack a part of the value."""
        ...

    def array(self, data: bytes, *types: type) -> list[Any]:
        """Unpack a payload that is a list, optionally of exactly these types."""
        ...


Dumper: TypeAlias = Callable[[Packing, Any], tuple[int, bytes]]
"""Returns the tag and the payload of a value."""

Loader: TypeAlias = Callable[[Unpacking, bytes], Any]
"""Builds a value from its payload."""


class TypeHandler(NamedTuple):
    """Packs and unpacks the values of one exact type.

    `type` is the class, or its reference (`fractions:Fraction`) if its module takes long to import: then only programs
    that have such values import it.
    """

    type: type | str
    tag: Tag
    dump: Callable[[Packing, Any], bytes]
    load: Loader
