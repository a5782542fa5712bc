"""The core of the codec: what packs plain values and messages, and unpacks messages that were known before.

There is one in Python, and an optional one in Rust (`native/`), which gives the same bytes and the same objects. A core
answers None for whatever is not in its fast path: the packer and the unpacker do it, and report what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast import _core
from holdfast.codec.bulk_packing import (
    BATCH,
    MODEL_FIELDS,
    MODEL_NUMBERS,
    PackedMessages,
    encode_batch,
    encode_small,
    pack_messages,
)
from holdfast.codec.message_cache import PAUSE_COLLECTOR, MessageParts, collector_paused
from holdfast.codec.unpacker import Unpacker, known_plan

if TYPE_CHECKING:
    from holdfast._native import Known
    from holdfast.codec.message_cache import MessageLoan

Seen: TypeAlias = "PackedMessages | Known"
"""Messages that were packed or unpacked, to be compared with others before those are packed."""

Made: TypeAlias = "MessageParts | Known"
"""Messages that were unpacked, of which new ones are made."""

Loan: TypeAlias = "MessageLoan | Known"
"""Messages that were handed out, and may come back."""


class Core(Protocol):
    """The fast paths of a codec."""

    name: str

    def pack(self, value: Any, max_bytes: int) -> bytes | None:
        """Pack a value on its own."""

    def pack_each(self, values: list[Any], max_bytes: int) -> list[bytes | None]:
        """Pack values, each on its own. Those that are not for the fast path are None."""

    def pack_messages(self, values: list[Any], seen: Any, max_bytes: int) -> Seen | None:
        """Pack the items of a list, of which some may be known."""

    def unpack_each(self, items: list[bytes], max_bytes: int) -> list[Any] | None:
        """Unpack items, each packed on its own."""

    def has_seen(self, items: list[bytes], made: Any) -> bool:
        """Return whether packed items are those of a list that was unpacked before, or most of them."""

    def unpack_messages(
        self, unpacker: Unpacker, items: list[bytes], made: Any, earlier: Any, max_bytes: int
    ) -> tuple[list[Any], Made, Seen | None, Loan | None] | None:
        """Unpack items of a list that was unpacked before: the result is that of `Codec.unpack_cached`."""


class PythonCore:
    """The core in Python."""

    name = _core.PYTHON

    _FEW = 12
    """Up to this many values are packed one by one."""

    def pack(self, value: Any, max_bytes: int) -> bytes | None:
        packed = encode_small(value, max_bytes)
        return None if packed is None or len(packed) > max_bytes else packed

    def pack_each(self, values: list[Any], max_bytes: int) -> list[bytes | None]:
        if len(values) <= self._FEW:
            return [self.pack(value, max_bytes) for value in values]
        packed: list[bytes | None] = []
        for start in range(0, len(values), BATCH):
            part = values[start : start + BATCH]
            batch = encode_batch(part, max_bytes)
            packed += [None] * len(part) if batch is None or max(map(len, batch)) > max_bytes else batch
        return packed

    def pack_messages(self, values: list[Any], seen: PackedMessages | None, max_bytes: int) -> PackedMessages | None:
        return pack_messages(values, seen, max_bytes)

    def unpack_each(self, items: list[bytes], max_bytes: int) -> list[Any] | None:  # noqa: ARG002 - the unpacker does it
        return None

    def has_seen(self, items: list[bytes], made: MessageParts) -> bool:
        return made.is_prefix_of(items)

    def unpack_messages(
        self, unpacker: Unpacker, items: list[bytes], made: MessageParts, earlier: MessageLoan | None, max_bytes: int
    ) -> tuple[list[Any], Made, Seen | None, Loan | None] | None:
        from holdfast.codec.message_cache import lend  # not needed by those that read once

        extended = unpacker.extend_cache(items, made)
        if extended is None:
            return None
        with collector_paused(len(items) > PAUSE_COLLECTOR):
            values, contents, loan = lend(extended, earlier, max_bytes)
        return values, extended, contents, loan


class NativeCore:
    """The core in Rust."""

    name = _core.NATIVE

    def __init__(self, native: ModuleType) -> None:
        core = native.Core(MODEL_NUMBERS, MODEL_FIELDS)
        self._known: type[Known] = native.Known
        self._unpack = core.unpack_messages
        self._unpack_each: Callable[..., list[Any] | None] = core.unpack_each
        self.pack = core.pack
        self.pack_each = core.pack_each
        self.pack_messages = core.pack_messages

    def unpack_each(self, items: list[bytes], max_bytes: int) -> list[Any] | None:
        return self._unpack_each(items, max_bytes, _parts_of)

    def has_seen(self, items: list[bytes], made: Made) -> bool:
        return items[0] in made.packed  # not those before it, perhaps, which were trimmed

    def unpack_messages(
        self,
        unpacker: Unpacker,  # noqa: ARG002 - of the core in Python
        items: list[bytes],
        made: Made,
        earlier: Loan | None,
        max_bytes: int,
    ) -> tuple[list[Any], Made, Seen | None, Loan | None] | None:
        known = [each for each in (earlier, made) if type(each) is self._known]
        unpacked = self._unpack(items, known, max_bytes, _parts_of)
        return None if unpacked is None else (*unpacked, unpacked[1], unpacked[1])


def _parts_of(number: int) -> tuple[Any, ...] | None:
    return known_plan(number).parts


CORE: Core = PythonCore() if _core.native is None else NativeCore(_core.native)
"""The core of this process."""
