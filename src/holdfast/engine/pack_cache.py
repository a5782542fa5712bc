"""Packing and unpacking a state again that was packed or unpacked a moment ago.

Agents read and save the same long lists of messages at every step, with one or two more. What was packed last is
remembered together with its bytes, and looked at again instead of packed again: if there is still the same in it, its
bytes are the same. What was unpacked last is remembered in parts, from which fresh objects are made without decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.codec import Codec, MessageParts, PackedMessages
from holdfast.engine.cache import MemoryCache
from holdfast.engine.model.packed_state import LONG_TEXT, Packed, PackedMap, pack_state, unpack_name, unpack_state
from holdfast.engine.row_format import Line

_SHORT = 16
"""So few messages are packed as quickly as they are looked at."""

_MESSAGE = 1000
"""About how many bytes a message takes besides its text."""


class PackCache:
    """Remembers what was packed and unpacked last of one line."""

    def __init__(self, cache: MemoryCache, codec: Codec, line: Line) -> None:
        self._cache = cache
        self._codec = codec
        self._line = line

    def pack(self, state: Mapping[str, Any]) -> PackedMap:
        """The line's state, packed."""
        return pack_state(self._codec, state, self)

    def unpack(self, packed: PackedMap) -> dict[str, Any]:
        """The line's state as fresh objects, which are likely to be packed again."""
        known = {key: self._unpacked(key, value) for key, value in packed.items() if _is_long(value)}
        others = unpack_state(self._codec, {key: value for key, value in packed.items() if known.get(key) is None})
        return {
            name: others[name] if name in others else known[key]
            for name, key in zip(map(unpack_name, packed), packed, strict=True)
        }

    def pack_list(self, key: bytes, values: list[Any]) -> list[bytes]:
        """A list's items, packed."""
        if len(values) < _SHORT:
            return self._codec.pack_items(values)
        seen: PackedMessages | None = self._cache.get(("seen", self._line, key))
        packed, now = self._codec.pack_again(values.copy(), seen)
        if now is not seen:
            self._keep("seen", key, now)
        return packed

    def pack_text(self, key: bytes, text: str) -> bytes:
        """A long string, packed. A string that is the very same object is the same string."""
        known: tuple[str, bytes] | None = self._cache.get(("text", self._line, key))
        if known is not None and known[0] is text:
            return known[1]
        packed = self._codec.pack(text)
        self._cache.put(("text", self._line, key), (text, packed), 2 * len(packed))
        return packed

    def _unpacked(self, key: bytes, packed: Packed) -> Any:
        """A long list or string; None if it is something else, or was not unpacked before."""
        if isinstance(packed, list):
            made: MessageParts | None = self._cache.get(("made", self._line, key))
            values, now, seen = self._codec.unpack_again(packed, made)
            if now is not made:
                self._keep("made", key, now)
            self._keep("seen", key, seen)
            return values
        known: tuple[str, bytes] | None = self._cache.get(("text", self._line, key))
        return known[0] if known is not None and known[1] is packed else None

    def _keep(self, what: str, key: bytes, found: PackedMessages | MessageParts | None) -> None:
        if found is None:
            self._cache.drop((what, self._line, key))
        else:
            self._cache.put((what, self._line, key), found, found.weight + _MESSAGE * len(found.packed))


def _is_long(packed: Packed) -> bool:
    return len(packed) >= _SHORT if isinstance(packed, list) else isinstance(packed, bytes) and len(packed) > LONG_TEXT
