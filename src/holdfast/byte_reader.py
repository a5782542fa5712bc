"""The one reader of stored bytes.

Stored bytes may be damaged, cut off or forged. Whoever takes them apart takes or makes a `ByteReader`, which checks
every bound: what does not fit is a `CorruptError` that names what was read, and where. The mypy plugin in
`tools/stored_bytes.py` refuses to index, unpack or decode bytes anywhere but here and in `holdfast.codec.msgpack`, the
functions on packed values; `tests/test_fuzz_formats.py` finds the users of the reader, and feeds them forged bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, TypeVar

import msgspec
from msgspec.msgpack import Decoder

from holdfast.errors import CorruptError, TooDeepError

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, TypeError)
"""The errors of msgspec for forged bytes: `TypeError` for a key that cannot be hashed."""

NO_STACK = "nested too deeply for the remaining stack"


_decoder: Callable[[Any], Decoder[Any]] = cache(Decoder)


def packed_form(type: type[T]) -> Decoder[T]:
    """Return the form of packed bytes that hold a value of this type, for `ByteReader.packed`. The type says how deep
    it is, but for parts that are scalars (`Any`): `codec.msgpack.parse` is for values of any depth."""
    return _decoder(type)


class ByteReader(msgspec.Struct):
    """Reads bytes from front to back. `what` is their name in errors, such as "a record"; `where` may be anything that
    has a text, or bytes, which are shown in hex."""

    data: bytes
    what: str = "a record"
    where: object = ""
    hint: str = ""
    at: int = 0

    @property
    def left(self) -> int:
        """The number of bytes that are not read yet."""
        return max(len(self.data) - self.at, 0)

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        start, end = self.at, self.at + size
        if not 0 <= start <= end <= len(self.data):
            raise self.error("is truncated")
        self.at = end
        return self.data[start:end]

    def byte(self) -> int:
        """Return the next byte as a number."""
        return self.take(1)[0]

    def number(self, size: int, *, signed: bool = False) -> int:
        """Return the number in the next bytes, the highest first."""
        return int.from_bytes(self.take(size), "big", signed=signed)

    def text(self, data: bytes, errors: str = "strict") -> str:
        """Return the text in bytes that were read."""
        try:
            return data.decode("utf-8", errors)
        except UnicodeDecodeError:
            raise self.error("has bytes that are not text") from None

    def fields(self, form: Struct) -> tuple[Any, ...]:
        """Return the fields of fixed size that come next."""
        try:
            found = form.unpack_from(self.data, self.at)
        except StructError:
            raise self.error("is truncated") from None
        self.at += form.size
        return found

    def until(self, mark: bytes) -> bytes:
        """Return the bytes before the next mark, and skip the mark."""
        end = self.data.find(mark, self.at)
        if end < 0:
            raise self.error("is truncated")
        found, self.at = self.data[self.at : end], end + len(mark)
        return found

    def rest(self) -> bytes:
        """Return all bytes that are left."""
        found, self.at = self.data[self.at :], len(self.data)
        return found

    def packed(self, form: Decoder[T]) -> T:
        """Return the packed value in all bytes that are left."""
        try:
            return form.decode(self.data[self.at :])
        except RecursionError:
            raise TooDeepError(f"{self.what} is {NO_STACK}") from None
        except UNREADABLE as error:
            raise self.error(f"is malformed: {error}") from None

    def end(self) -> None:
        """Raise `CorruptError` if there are more bytes."""
        if self.at != len(self.data):
            raise self.error("has more bytes than it should")

    def error(self, why: str) -> CorruptError:
        """Return the error that says what is wrong with the bytes."""
        where = self.where.hex() if isinstance(self.where, bytes) else str(self.where)
        return CorruptError(f"{self.what} {why}", where=where, hint=self.hint)
