"""Values on their way to PostgreSQL and back.

Everything goes in PostgreSQL's binary form. Names are text that people can read. PostgreSQL's text has no NUL; so NUL
is written as 01 01, and 01 as 01 02, which keeps the order of names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.backends.tables import Scalar

_LENGTH = struct.Struct(">i")
_NUMBER = struct.Struct(">q")
_ELEMENT = struct.Struct(">iq")
_HEADER = struct.Struct(">iiIii")

_TEXT, _BIGINT, _BYTEA, _INTEGER = 25, 20, 17, 23
_ARRAYS = {_TEXT: 1009, _BIGINT: 1016, _BYTEA: 1001, _INTEGER: 1007}
"""Types and the arrays of them, as every PostgreSQL numbers them."""

BAD = (TypeError, AttributeError, ValueError, OverflowError, struct.error)
"""What is raised for a value that does not fit into its column."""


class BinaryValue(NamedTuple):
    """Something to bind: its type, and its binary form; None for NULL."""

    type: int
    data: bytes | None


def escape(text: str) -> str:
    """A name as it is stored."""
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\2").replace("\0", "\1\1")
    return text


def unescape(text: str) -> str:
    """A name that was stored."""
    return text.replace("\1\1", "\0").replace("\1\2", "\1") if "\1" in text else text


def value(given: Scalar) -> BinaryValue:
    """A name, a number or bytes."""
    if isinstance(given, str):
        return BinaryValue(_TEXT, escape(given).encode())
    if isinstance(given, int):
        return BinaryValue(_BIGINT, _NUMBER.pack(given))
    return BinaryValue(_BYTEA, given)


# Arrays -----------------------------------------------------------------------------------------------------------


def pack_text(text: str) -> bytes:
    """A name as an element of an array."""
    data = text.encode()
    if b"\0" in data or b"\1" in data:
        data = data.replace(b"\1", b"\1\2").replace(b"\0", b"\1\1")
    return _LENGTH.pack(len(data)) + data


def pack_number(number: int) -> bytes:
    """A number as an element of an array."""
    return _ELEMENT.pack(8, number)


def pack_bytes(data: bytes) -> bytes:
    """Bytes as an element of an array."""
    return _LENGTH.pack(len(data)) + data


def texts(elements: Sequence[bytes]) -> BinaryValue:
    """`text[]`, of what `pack_text` gave."""
    return _array(_TEXT, elements)


def numbers(elements: Sequence[bytes]) -> BinaryValue:
    """`bigint[]`, of what `pack_number` gave."""
    return _array(_BIGINT, elements)


def blobs(elements: Sequence[bytes]) -> BinaryValue:
    """`bytea[]`, of what `pack_bytes` gave."""
    return _array(_BYTEA, elements)


def integers(given: Sequence[int]) -> BinaryValue:
    """`integer[]`."""
    sized = [part for number in given for part in (4, number)]
    return BinaryValue(_ARRAYS[_INTEGER], _header(_INTEGER, len(given)) + struct.pack(f">{len(sized)}i", *sized))


NO_NUMBERS = BinaryValue(_ARRAYS[_BIGINT], None)
"""NULL in place of a `bigint[]`."""


def array_of(kind: type, given: Iterable[Any]) -> BinaryValue:
    """An array of the values of a column."""
    if kind is int:
        return numbers([pack_number(each) for each in given])
    if kind is bytes:
        return blobs([pack_bytes(each) for each in given])
    return texts([pack_text(each) for each in given])


def _array(element: int, elements: Sequence[bytes]) -> BinaryValue:
    return BinaryValue(_ARRAYS[element], b"".join((_header(element, len(elements)), *elements)))


def _header(element: int, count: int) -> bytes:
    return _HEADER.pack(1, 0, element, count, 1) if count else _HEADER.pack(0, 0, element, 0, 0)[:12]
