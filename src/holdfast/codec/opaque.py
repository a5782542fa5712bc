"""Stored values whose type is not available in this process."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, final

from holdfast.codec import msgpack
from holdfast.codec.tags import KNOWN_CLASSES, Tag
from holdfast.errors import HoldfastError, InvalidError

_MAX_NAME = 160
"""How much of a stored name is shown."""

_MAX_WARNED = 1000
"""How many types are warned about: stored bytes may name any number of them."""

_warned: set[str] = set()


@final
class OpaqueValue:
    """A typed value in its stored form, because its class is not loaded, has changed, or may not be revived.

    It can be compared, hashed and saved again: it is packed into exactly the bytes that it was read from.
    """

    __slots__ = ("data", "tag")

    tag: int
    data: bytes

    def __init__(self, tag: int, data: bytes) -> None:
        if tag not in range(128) or type(data) is not bytes:
            raise InvalidError("an OpaqueValue takes a tag from 0 to 127, and bytes")
        object.__setattr__(self, "tag", int(tag))
        object.__setattr__(self, "data", data)

    @property
    def type_name(self) -> str:
        """The stored name of its type: a class as `module:qualname`, or the kind of value, such as `datetime`."""
        parts = self._parts()
        if self.tag == Tag.SHAPED and len(parts) == 3 and type(parts[1]) is int and parts[1] in KNOWN_CLASSES:
            return KNOWN_CLASSES[parts[1]].ref
        if Tag.DATACLASS <= self.tag <= Tag.REGISTERED and parts and type(parts[0]) is str:
            return parts[0]
        try:
            return Tag(self.tag).name.lower()
        except ValueError:
            return f"unknown type {self.tag}"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an instance of a class, by name, with typed values inside as `OpaqueValue`; empty if it is
        another kind of value."""
        parts = self._parts()
        place = 2 if self.tag == Tag.SHAPED else 1
        fields = parts[place] if len(parts) > place else None
        return fields if type(fields) is dict and all(type(name) is str for name in fields) else {}

    if not TYPE_CHECKING:  # to a type checker, an attribute that is missing is an error

        def __getattr__(self, name: str):
            if name.startswith("__"):
                raise AttributeError(name)
            raise AttributeError(f"{self!r} has no attribute {name!r}: {self._reason()}. Its fields are in .fields")

    def _reason(self) -> str:
        """Return why it has no class, and what to do."""
        module, _, qualname = self.type_name.partition(":")
        if "<locals>" in qualname:
            return "its class was defined in a function, and cannot be found; define it at the top of a module"
        if qualname:
            return f"its class is not loaded here, or has changed; import {_printable(module)} before reading"
        return "this release does not know it"

    def _parts(self) -> list[Any]:
        try:
            parts = msgpack.parse(self.data, lambda tag, view: OpaqueValue(tag, bytes(view)))
        except HoldfastError:
            return []
        return parts if type(parts) is list else [parts]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an OpaqueValue cannot be changed")

    def __eq__(self, other: object) -> bool:
        return type(other) is OpaqueValue and (self.tag, self.data) == (other.tag, other.data)

    def __hash__(self) -> int:
        return hash((self.tag, self.data))

    def __repr__(self) -> str:
        return f"<OpaqueValue {_printable(self.type_name)}, {len(self.data)} bytes>"


def _printable(name: str) -> str:
    return name[:_MAX_NAME] if name.isprintable() else ascii(name[:_MAX_NAME])


def warn_once(value: OpaqueValue) -> None:
    """Warn that a value is opaque, once in a process for each type."""
    name = value.type_name
    if name not in _warned and len(_warned) < _MAX_WARNED:
        _warned.add(name)
        text = f"{value!r} is read without its class: {value._reason()}. It is saved again as it is"
        warnings.warn(text, UserWarning, stacklevel=2)
