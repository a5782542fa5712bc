"""Packing and unpacking a state that was packed or unpacked a moment ago.

Agents read and save the same long lists of messages at every step, with one or two more. The objects that were packed
last are cached with their bytes, and compared instead of packed again: if they are unchanged, so are their bytes. What
was unpacked last is cached in parts, of which new objects are built without decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.codec import Codec
from holdfast.codec.core import Made, Seen
from holdfast.engine.model.packed_state import LONG_TEXT, Packed, PackedMap, pack_state, unpack_name, unpack_state
from holdfast.engine.row_format import Line

_SHORT = 16
"""Lists with fewer messages are packed as quickly as they are compared."""

_MESSAGE = 1000
"""About how many bytes a message takes besides its text."""


class PackCache:
    """Caches the values of one line that were packed and unpacked last."""

    def __init__(self, cache: MemoryCache, codec: Codec, line: Line) -> None:
        self._cache = cache
        self._codec = codec
        self._line = line

    def pack(self, state: Mapping[str, Any]) -> PackedMap:
        """Pack a state."""
        return pack_state(self._codec, state, self)

    def unpack(self, packed: PackedMap) -> dict[str, Any]:
        """Unpack a state into new objects, which are likely to be packed again."""
        cached = {key: self._unpack_long(key, value) for key, value in packed.items() if _is_long(value)}
        rest = unpack_state(self._codec, {key: value for key, value in packed.items() if cached.get(key) is None})
        return {
            name: rest[name] if name in rest else cached[key]
            for name, key in zip(map(unpack_name, packed), packed, strict=True)
        }

    def pack_list(self, key: bytes, values: list[Any]) -> list[bytes]:
        """Pack a list's items."""
        if len(values) < _SHORT:
            return self._codec.pack_items(values)
        before: Seen | None = self._cache.get(("seen", self._line, key))
        packed, after = self._codec.pack_cached(values.copy(), before)
        if after is not before:
            self._store("seen", key, after)
        return packed

    def pack_text(self, key: bytes, text: str) -> bytes:
        """Pack a long string. A string that is the identical object has the same bytes."""
        cached: tuple[str, bytes] | None = self._cache.get(("text", self._line, key))
        if cached is not None and cached[0] is text:
            return cached[1]
        packed = self._codec.pack(text)
        self._cache.put(("text", self._line, key), (text, packed), 2 * len(packed))
        return packed

    def _unpack_long(self, key: bytes, packed: Packed) -> Any:
        """Unpack a long list or string. Returns None if it is something else, or was not unpacked before."""
        if isinstance(packed, list):
            parts: Made | None = self._cache.get(("made", self._line, key))
            # The caller mostly has what it read last, and no longer what it read before.
            earlier, last = self._cache.take(("lent", self._line, key)) or (None, None)
            values, after, before, loan = self._codec.unpack_cached(packed, parts, earlier)
            if after is not parts:
                self._store("made", key, after)
            self._store("seen", key, before)
            weight = sum(len(each.packed) for each in (last, loan) if each is not None)
            self._cache.put(("lent", self._line, key), (last, loan), _MESSAGE * weight)
            return values
        cached: tuple[str, bytes] | None = self._cache.get(("text", self._line, key))
        return cached[0] if cached is not None and cached[1] is packed else None

    def _store(self, kind: str, key: bytes, value: Seen | Made | None) -> None:
        if value is None:
            self._cache.drop((kind, self._line, key))
        else:
            self._cache.put((kind, self._line, key), value, value.weight + _MESSAGE * len(value.packed))


def _is_long(packed: Packed) -> bool:
    return len(packed) >= _SHORT if isinstance(packed, list) else isinstance(packed, bytes) and len(packed) > LONG_TEXT
