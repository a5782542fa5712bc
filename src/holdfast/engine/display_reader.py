"""The channels of a state, and parts of them, with the steps that wrote them, for rows that show them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from holdfast.engine.model import draft_reader
from holdfast.engine.model.drafts import Draft
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.nodes import WrittenBy
from holdfast.engine.model.packed_state import Packed, as_items
from holdfast.engine.row_format import Line
from holdfast.engine.state_loader import LoadedState, PartialState, StateLoader
from holdfast.errors import CorruptError


class DisplayReader(PartialState):
    """Reads channels of a state. Where the whole state is in memory, nothing is read from the store."""

    def __init__(self, states: StateLoader, line: Line, loaded: LoadedState) -> None:
        super().__init__(states, line, None, loaded)
        self._fresh = loaded.fresh
        self._whole = loaded.known[0] if loaded.known is not None and not loaded.known[1] else None

    async def channels(self) -> list[tuple[bytes, WrittenBy]]:
        """Return the channels by their packed names, and the steps that wrote them last."""
        keys = await self.nodes(draft_reader.keys(self._ws, await self._state())) or []
        return [(key, (await self._require(key))[1]) for key in keys]

    async def value(self, key: bytes) -> Packed:
        """Return the value of a channel. Large values in it may be pointers."""
        if self._whole is not None:
            return self._whole[key]
        return await self.nodes(draft_reader.whole(self._ws, (await self._require(key))[0]))

    async def find(self, key: bytes) -> Packed | None:
        """Return the value of a channel; None if there is no such channel."""
        if self._whole is not None:
            return self._whole.get(key)
        entry = await self.nodes(draft_reader.one(self._ws, await self._state(), key))
        return None if entry is None else await self.nodes(draft_reader.whole(self._ws, entry[0]))

    async def items(self, key: bytes, numbers: Sequence[int]) -> list[bytes]:
        """Return some items of a list, in rising order."""
        if not numbers:
            return []
        items: list[bytes] = []
        if self._whole is not None:
            every = as_items(self._whole[key]) or []
            items += (every[number] for number in numbers)
        else:
            value, _ = await self._require(key)
            for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
                these = [number for _, number in run]
                items += await self.nodes(draft_reader.items(self._ws, value, these[0], these[-1] + 1))
        return await self.whole_items(items)

    async def origins(self, key: bytes) -> list[WrittenBy]:
        """Return the steps that wrote the items of a list."""
        value, origin = await self._require(key)
        length = draft_reader.length(value) or 0
        items = await self.nodes(draft_reader.written_items(self._ws, value, origin, 0, length))
        return [item.origin for item in items]

    async def whole_items(self, items: Sequence[bytes]) -> list[bytes]:
        """Return items with large ones in place of their pointers."""
        pointers = {item for item in items if is_pointer(item)}
        if not pointers:
            return list(items)
        large = await self._states.load_large(self._line, pointers - self._fresh.keys())
        return [self._fresh.get(item) or large[item] if item in pointers else item for item in items]

    async def _require(self, key: bytes) -> tuple[Draft, WrittenBy]:
        entry = await self.nodes(draft_reader.one(self._ws, await self._state(), key))
        if entry is None:
            raise CorruptError("a state lacks a channel that it should have", where=key.hex())
        return entry
