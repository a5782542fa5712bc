"""Values in PostgreSQL's binary form.

PostgreSQL's text has no NUL; so in names NUL is stored as 01 01, and 01 as 01 02, which keeps their order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.backends.tables import Scalar

_LENGTH = struct.Struct(">i")
_NUMBER = struct.Struct(">q")
_ELEMENT = struct.Struct(">iq")
_HEADER = struct.Struct(">iiIii")

_TEXT, _BIGINT, _BYTEA, _INTEGER = 25, 20, 17, 23
_ARRAYS = {_TEXT: 1009, _BIGINT: 1016, _BYTEA: 1001, _INTEGER: 1007}
"""The array types of these types; the numbers are the same in every PostgreSQL."""

VALUE_ERRORS = (TypeError, AttributeError, ValueError, OverflowError, struct.error)
"""Raised for a value that does not fit into its column."""


class BinaryValue(NamedTuple):
    """A parameter: its type, and its binary form."""

    type: int
    data: bytes


def escape(text: str) -> str:
    """Escape a name for storage."""
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def unescape(text: str) -> str:
    """Restore a name that was escaped."""
    return text.replace("\1\1", "\0").replace("\1\2", "\1") if "\1" in text else text


def bind(value: Scalar) -> BinaryValue:
    """Convert a name, a number or bytes to a parameter."""
    if isinstance(value, str):
        return BinaryValue(_TEXT, escape(value).encode())
    if isinstance(value, int):
        return BinaryValue(_BIGINT, _NUMBER.pack(value))
    return BinaryValue(_BYTEA, value)


# Arrays -----------------------------------------------------------------------------------------------------------


def pack_text(text: str) -> bytes:
    """Pack a name as an element of an array."""
    data = text.encode()
    if b"\0" in data or b"\1" in data:
        data = data.replace(b"\1", b"\1\2").replace(b"\0", b"\1\1")
    return _LENGTH.pack(len(data)) + data


pack_number: Callable[[int], bytes] = partial(_ELEMENT.pack, 8)
"""Pack a number as an element of an array."""


def pack_bytes(data: bytes) -> bytes:
    """Pack bytes as an element of an array."""
    return _LENGTH.pack(len(data)) + data


def text_array(elements: Sequence[bytes]) -> BinaryValue:
    """Build a `text[]` of elements from `pack_text`."""
    return _array(_TEXT, elements)


def bigint_array(elements: Sequence[bytes]) -> BinaryValue:
    """Build a `bigint[]` of elements from `pack_number`."""
    return _array(_BIGINT, elements)


def bytea_array(elements: Sequence[bytes]) -> BinaryValue:
    """Build a `bytea[]` of elements from `pack_bytes`."""
    return _array(_BYTEA, elements)


def integer_array(values: Sequence[int]) -> BinaryValue:
    """Build an `integer[]`."""
    sized = [part for number in values for part in (4, number)]
    return BinaryValue(_ARRAYS[_INTEGER], _header(_INTEGER, len(values)) + struct.pack(f">{len(sized)}i", *sized))


def column_array(kind: type, values: Iterable[Any]) -> BinaryValue:
    """Build an array of the values of a column."""
    if kind is int:
        return bigint_array([pack_number(each) for each in values])
    if kind is bytes:
        return bytea_array([pack_bytes(each) for each in values])
    return text_array([pack_text(each) for each in values])


def _array(element: int, elements: Sequence[bytes]) -> BinaryValue:
    return BinaryValue(_ARRAYS[element], b"".join((_header(element, len(elements)), *elements)))


def _header(element: int, count: int) -> bytes:
    return _HEADER.pack(1, 0, element, count, 1) if count else _HEADER.pack(0, 0, element, 0, 0)[:12]
