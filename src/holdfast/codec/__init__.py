"""Packing of values into bytes: exact, deterministic, and safe to read from an untrusted store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from msgspec import MsgspecError
from msgspec.msgpack import decode

from holdfast.codec.core import CORE, Core, Loan, Made, Seen
from holdfast.codec.message_cache import PAUSE_COLLECTOR, MessageParts
from holdfast.codec.message_cache import collector_paused as collector_paused
from holdfast.codec.opaque import OpaqueValue
from holdfast.codec.packer import Packer, locate
from holdfast.codec.registry import Registry, default_registry
from holdfast.codec.unpacker import Unpacker
from holdfast.errors import HoldfastError, InvalidError, TooDeepError

__all__ = ["Codec", "OpaqueValue", "Registry"]


_SCALARS = frozenset(
    bytes([first])
    for first in (*range(0x80), *range(0xA0, 0xC1), *range(0xC2, 0xC4), *range(0xCA, 0xD4), 0xD9, *range(0xE0, 0x100))
)
"""First bytes of packed numbers, short strings, None and the like, which contain no typed value."""

_SHORT = 512


MAX_BYTES = 128 << 20
"""How many bytes a value may have. The maximum depth is part of the format, and not a setting."""


class Codec:
    """Packs values into bytes and unpacks them, with its own registry of types and its own limits.

    `may_revive` restricts the classes whose instances are rebuilt, further than the codec does: it is called with
    `module:qualname`, and values of other classes are read as `OpaqueValue`.

    A `lenient` codec packs two kinds of values that others refuse, with one warning for each class: instances of
    subclasses of str, int, float, bytes, list and dict that add nothing become the built-in value; instances of classes
    that cannot be found by their name, such as those defined in a function, are read by the class that this process
    packed, and by others as `OpaqueValue`. It warns about the first `OpaqueValue` of a class that it reads, too.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        may_revive: Callable[[str], bool] | None = None,
        lenient: bool = False,
    ) -> None:
        self.registry: Registry = default_registry if registry is None else registry
        self.max_bytes = max_bytes
        self._short = min(_SHORT, max_bytes)
        self._may_revive = may_revive
        self._lenient = lenient
        self._core: Core = CORE
        self._unpackers: list[Unpacker] = []  # idle ones: creating one takes as long as unpacking a small value

    def pack(self, value: Any) -> bytes:
        """Pack a value. The same value has the same bytes in every process.

        Raises `UnsupportedError`, `CircularReferenceError`, `TooDeepError` or `TooLargeError`, with the path to the
        part at fault.
        """
        if type(value) is dict:  # as metadata are, which every save packs
            packed = self._core.pack(value, self.max_bytes)
            if packed is not None:
                return packed
        try:
            return Packer(self.registry, self.max_bytes, lenient=self._lenient).pack_top(value)
        except (HoldfastError, RuntimeError) as error:
            raise self._located(value, error) from error.__cause__

    def pack_items(self, values: Iterable[Any]) -> list[bytes]:
        """Pack each of the values on its own."""
        values = list(values)
        try:
            packed = self._core.pack_each(values, self.max_bytes)
            if None not in packed:
                return packed  # type: ignore[return-value]
            pack = Packer(self.registry, self.max_bytes, lenient=self._lenient).pack_top
            return [pack(value) if data is None else data for value, data in zip(values, packed, strict=True)]
        except (HoldfastError, RuntimeError) as error:
            raise self._located(values, error) from error.__cause__

    def pack_cached(self, values: list[Any], seen: Seen | None) -> tuple[list[bytes], Seen | None]:
        """Pack each of the values, without encoding those that were seen before and are unchanged.

        Returns the bytes and what was seen, for the next time.
        """
        seen = self._core.pack_messages(values, seen, self.max_bytes)
        return (self.pack_items(values), None) if seen is None else (seen.packed, seen)

    def _located(self, value: Any, error: HoldfastError | RuntimeError) -> HoldfastError:
        if isinstance(error, RecursionError):
            # The value is within the limits of the format, but the caller has used up most of the stack.
            return TooDeepError("the value is nested too deeply for the remaining stack")
        if isinstance(error, RuntimeError):
            return InvalidError("the value changed while it was being saved", hint="Save a copy, or under a lock")
        return locate(value, error, self.registry, self.max_bytes, lenient=self._lenient)

    def unpack(self, data: bytes) -> Any:
        """Unpack a value, equal to the one that was packed and of the same types throughout.

        Raises `CorruptError`, `TooDeepError` or `TooLargeError` for bytes that `pack` did not write.
        """
        if data[:1] in _SCALARS and len(data) <= self._short:
            with suppress(MsgspecError, UnicodeDecodeError):  # the slow path reports the error
                return decode(data)
        unpacker = self._unpacker()
        value = unpacker.unpack(data)
        self._unpackers.append(unpacker)
        return value

    def unpack_items(self, items: Iterable[bytes]) -> list[Any]:
        """Unpack each of the items."""
        items = list(items)
        unpacked = self._core.unpack_each(items, self.max_bytes)
        if unpacked is not None:
            return unpacked
        unpacker = self._unpacker()
        if len(items) <= PAUSE_COLLECTOR:
            values = unpacker.unpack_batch(items)
        else:
            with collector_paused():
                values = unpacker.unpack_batch(items)
        self._unpackers.append(unpacker)  # not reached after an error: its state is unknown
        return values

    def _unpacker(self) -> Unpacker:
        try:
            return self._unpackers.pop()
        except IndexError:
            return Unpacker(self.registry, self.max_bytes, self._may_revive, lenient=self._lenient)

    def unpack_cached(
        self, items: list[bytes], made: Made | None, earlier: Loan | None = None
    ) -> tuple[list[Any], Made | None, Seen | None, Loan | None]:
        """Unpack each of the items without decoding messages that were unpacked before, nor building those of an
        earlier loan that came back. Only the caller may have that loan.

        Returns the values, which nobody else has, what was made, for the next time, what `pack_cached` has seen then,
        and the loan of the values.
        """
        if made is None or not items or not self._core.has_seen(items, made):
            return self.unpack_items(items), MessageParts.of(items), None, None
        unpacker = self._unpacker()
        unpacked = self._core.unpack_messages(unpacker, items, made, earlier, self.max_bytes)
        self._unpackers.append(unpacker)
        return (self.unpack_items(items), None, None, None) if unpacked is None else unpacked

    def unpack_repeated(self, items: list[bytes], cached: MessageParts | None) -> tuple[list[Any], MessageParts | None]:
        """Unpack each of the items into new objects, without decoding messages that were decoded for a list that these
        start with. Returns the values, and the cache for a longer list."""
        if cached is None or not cached.is_prefix_of(items):
            cached = MessageParts.of([])
        unpacker = self._unpacker()
        cached = unpacker.extend_cache(items, cached)
        self._unpackers.append(unpacker)
        return (self.unpack_items(items), None) if cached is None else (cached.build(), cached)

    def to_json(self, value: Any) -> Any:
        """Convert a value to JSON without loss, with type marks such as `{"$tuple": [1, 2]}`."""
        from holdfast.codec import json_codec

        return json_codec.to_json(self.pack(value))

    def from_json(self, tree: Any) -> Any:
        """Convert JSON from `to_json` back to the value."""
        from holdfast.codec import json_codec

        return self.unpack(json_codec.from_json(tree))

    def to_plain(self, value: Any) -> Any:
        """Convert a value to JSON for people: without type marks, and not reversible."""
        from holdfast.codec import plain_json

        return plain_json.to_plain(self.pack(value))


default_codec: Codec = Codec()
"""A codec with the default registry and limits."""
