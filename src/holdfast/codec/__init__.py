"""Values to bytes and back: exact, deterministic, and safe to read from an untrusted store."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from msgspec import MsgspecError
from msgspec.msgpack import decode

from holdfast.codec.bulk_packing import PackedMessages, look_at_new, pack_again
from holdfast.codec.message_cache import MessageParts
from holdfast.codec.opaque import OpaqueValue
from holdfast.codec.packer import Packer, locate
from holdfast.codec.registry import Registry, default_registry
from holdfast.codec.unpacker import Unpacker
from holdfast.errors import HoldfastError, InvalidError, TooDeepError

__all__ = ["Codec", "Limits", "MessageParts", "OpaqueValue", "PackedMessages", "Registry", "default_codec"]


_MANY = 32
"""From so many values on, what the garbage collector does meanwhile takes noticeable time."""


_SCALARS = frozenset(
    bytes([first])
    for first in (*range(0x80), *range(0xA0, 0xC1), *range(0xC2, 0xC4), *range(0xCA, 0xD4), 0xD9, *range(0xE0, 0x100))
)
"""How packed numbers, short strings, None and the like start: there is nothing in them to be revived."""

_SHORT = 512


@contextmanager
def _collector_paused(paused: bool) -> Iterator[None]:
    """Keep the garbage collector from looking, over and over, at values that are just being made: none is garbage."""
    paused = paused and gc.isenabled()
    if paused:
        gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one value may take. How deeply it may nest is part of the format and not a setting."""

    max_bytes: int = 128 << 20


class Codec:
    """Packs values into bytes and unpacks them, with a registry of types and limits of its own.

    `may_revive` is asked whether objects of a class, named as `module:qualname`, may come back to life, on top of all
    the rules that hold anyway. Those that may not come back inert.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        limits: Limits | None = None,
        *,
        may_revive: Callable[[str], bool] | None = None,
    ) -> None:
        self.registry = default_registry if registry is None else registry
        self._short = _SHORT if limits is None else min(_SHORT, limits.max_bytes)
        self.limits = Limits() if limits is None else limits
        self._may_revive = may_revive
        self._unpackers: list[Unpacker] = []  # not in use; making one takes as long as unpacking a small value

    def pack(self, value: Any) -> bytes:
        """The value as bytes: the same bytes for the same value, in every process.

        Raises `UnsupportedError`, `CircularReferenceError`, `TooDeepError` or `TooLargeError`, with the path to the
        part at fault.
        """
        try:
            return Packer(self.registry, self.limits.max_bytes).pack_top(value)
        except (HoldfastError, RuntimeError) as error:
            raise self._located(value, error) from error.__cause__

    def pack_items(self, values: Iterable[Any]) -> list[bytes]:
        """Each of the values as bytes of its own."""
        values = list(values)
        packer = Packer(self.registry, self.limits.max_bytes)
        try:
            return packer.pack_batch(values)
        except (HoldfastError, RuntimeError) as error:
            raise self._located(values, error) from error.__cause__

    def pack_again(self, values: list[Any], seen: PackedMessages | None) -> tuple[list[bytes], PackedMessages | None]:
        """The same as `pack_items`, and what makes it quicker next time.

        Messages that were packed before, and are found to be the same still, are not encoded again.
        """
        now = pack_again(values, seen, self.limits.max_bytes)
        return (self.pack_items(values), None) if now is None else (now.packed, now)

    def _located(self, value: Any, error: HoldfastError | RuntimeError) -> HoldfastError:
        if isinstance(error, RecursionError):
            # Within the format's limits, but there is not enough of Python's stack left to get there.
            return TooDeepError("the value nests too deeply for what is left of the stack")
        if isinstance(error, RuntimeError):
            return InvalidError("the value changed while it was being saved", hint="Save a copy, or under a lock")
        return locate(value, error, self.registry, self.limits.max_bytes)

    def unpack(self, data: bytes) -> Any:
        """The value that `pack` was given: equal, and of the same types all the way down.

        Raises `CorruptError`, `TooDeepError` or `TooLargeError` for bytes that `pack` did not write.
        """
        if data[:1] in _SCALARS and len(data) <= self._short:
            with suppress(MsgspecError, UnicodeDecodeError):  # the long way says what is wrong
                return decode(data)
        unpacker = self._unpacker()
        value = unpacker.unpack(data)
        self._unpackers.append(unpacker)
        return value

    def unpack_items(self, items: Iterable[bytes]) -> list[Any]:
        """Each of the packed items, unpacked."""
        unpacker, items = self._unpacker(), list(items)
        with _collector_paused(len(items) > _MANY):
            values = unpacker.unpack_batch(items)
        self._unpackers.append(unpacker)  # one that failed is not used again
        return values

    def _unpacker(self) -> Unpacker:
        """One that is idle, or a new one."""
        try:
            return self._unpackers.pop()
        except IndexError:
            return Unpacker(self.registry, self.limits.max_bytes, self._may_revive)

    def unpack_again(
        self, items: list[bytes], made: MessageParts | None
    ) -> tuple[list[Any], MessageParts | None, PackedMessages | None]:
        """The same as `unpack_items`, and what makes it, and then packing them again, quicker next time.

        Messages that were unpacked before are not decoded again. Fresh objects are made all the same.
        """
        if made is None or not items or not made.starts(items):
            return self.unpack_items(items), MessageParts.of(items), None
        room = self.limits.max_bytes
        with _collector_paused(len(items) > _MANY):
            values, made = Unpacker(self.registry, room, self._may_revive).unpack_again(items, made)
            seen = None if made is None else look_at_new(values.copy(), items, made.weight, room)
        return values, made, seen

    def to_json(self, value: Any) -> Any:
        """The value as a tree of JSON values with type marks (`{"$tuple": [1, 2]}`), from which nothing is lost."""
        from holdfast.codec import json_codec

        return json_codec.to_json(self.pack(value))

    def from_json(self, tree: Any) -> Any:
        """The value that `to_json` made this tree of."""
        from holdfast.codec import json_codec

        return self.unpack(json_codec.from_json(tree))

    def to_plain(self, value: Any) -> Any:
        """The value as JSON for people: no type marks, and no way back."""
        from holdfast.codec import plain_json

        return plain_json.to_plain(self.pack(value))


default_codec = Codec()
"""The codec with the default registry and limits."""
