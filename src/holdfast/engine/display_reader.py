"""A state that is about to be shown: its channels, and parts of them, with the steps that wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TypeVar

from holdfast.engine.model import draft_reader
from holdfast.engine.model.drafts import Draft, MapDraft, draft
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.nodes import WrittenBy
from holdfast.engine.model.operations import LoadLarge
from holdfast.engine.model.packed_state import Packed, as_items
from holdfast.engine.model.workspace import Rounds, Workspace
from holdfast.engine.row_format import Line
from holdfast.engine.state_loader import LoadedState, StateLoader
from holdfast.errors import CorruptError

T = TypeVar("T")


class DisplayReader:
    """Reads a state as far as it is shown. Where it is at hand whole, nothing is read."""

    def __init__(self, states: StateLoader, line: Line, held: LoadedState) -> None:
        self._states = states
        self._line = line
        self._held = held
        self._ws = Workspace()
        self._draft: MapDraft | None = None

    async def channels(self) -> list[tuple[bytes, WrittenBy]]:
        """The channels by their packed names, and the steps that wrote them last."""
        state = await self._state()
        keys = await self._nodes(draft_reader.keys(self._ws, state)) or []
        return [(key, (await self._one(key))[1]) for key in keys]

    async def value(self, key: bytes) -> Packed:
        """The value of a channel. Large values in it may stand as pointers."""
        known = self._held.known
        if known is not None and not known[1]:
            return known[0][key]
        return await self._nodes(draft_reader.whole(self._ws, (await self._one(key))[0]))

    async def find(self, key: bytes) -> Packed | None:
        """The same; None if there is no such channel."""
        known = self._held.known
        if known is not None and not known[1]:
            return known[0].get(key)
        found = await self._nodes(draft_reader.one(self._ws, await self._state(), key))
        return None if found is None else await self._nodes(draft_reader.whole(self._ws, found[0]))

    async def items(self, key: bytes, places: Sequence[int]) -> list[bytes]:
        """Some items of a list, in rising order."""
        if not places:
            return []
        known = self._held.known
        if known is not None and not known[1]:
            listed = as_items(known[0][key]) or []
            found = [listed[place] for place in places]
        else:
            value, _ = await self._one(key)
            found = []
            for _, run in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
                wanted = [place for _, place in run]
                found += await self._nodes(draft_reader.items(self._ws, value, wanted[0], wanted[-1] + 1))
        return await self.whole_items(found)

    async def origins(self, key: bytes) -> list[WrittenBy]:
        """The steps that wrote the items of a list."""
        value, origin = await self._one(key)
        length = draft_reader.length(value) or 0
        return [
            item.origin for item in await self._nodes(draft_reader.written_items(self._ws, value, origin, 0, length))
        ]

    async def whole_items(self, items: Sequence[bytes]) -> list[bytes]:
        """Items with large ones in place of their pointers."""
        pointers = {item for item in items if is_pointer(item)}
        if not pointers:
            return list(items)
        fresh = self._held.fresh
        large = await self._states.large(self._line, pointers - fresh.keys())
        return [fresh.get(item) or large[item] if item in pointers else item for item in items]

    async def _one(self, key: bytes) -> tuple[Draft, WrittenBy]:
        found = await self._nodes(draft_reader.one(self._ws, await self._state(), key))
        if found is None:
            raise CorruptError("a state lacks a channel that it should have", where=key.hex())
        return found

    async def _state(self) -> MapDraft:
        if self._draft is None:
            held = self._held

            async def drafted(load: LoadLarge) -> MapDraft:
                return await self._nodes(draft(self._ws, held.root, held.tail, load))

            self._draft = await self._states.with_large(self._line, held, drafted)
        return self._draft

    async def _nodes(self, rounds: Rounds[T]) -> T:
        return await self._states.nodes(self._line, self._held, rounds)
