"""A state of which places are looked at, without reading more of it than lies on the way."""

from __future__ import annotations

from typing import Any, NamedTuple

from holdfast.codec.json_codec import to_json
from holdfast.engine.engine import Engine
from holdfast.engine.model import draft_reader
from holdfast.engine.model.drafts import Draft, as_dict
from holdfast.engine.model.edit_paths import inside
from holdfast.engine.model.json_diff import NOTHING, Path, tree_of
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.nodes import ListItem, WrittenBy
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.state_loader import PartialState

NOWHERE = WrittenBy(0, 0)
"""Where nothing comes from."""


class PastValue(NamedTuple):
    """What is at a place: the value, or in an object of a class its JSON form; and the step that wrote it."""

    value: Draft | None
    tree: Any
    origin: WrittenBy
    items: int
    """At which part of the path an item of a list stands; -1 if none does. What is below it was written with it."""
    path: Path
    """The path, with places in lists counted from the start."""


class PastReader(PartialState):
    """Reads what is at places of a state, and the steps that wrote it."""

    point: StepRef

    def __init__(self, engine: Engine, line: Line, point: StepRef) -> None:
        super().__init__(engine.states, line, point)
        self._codec = engine.context.codec

    async def place(self, path: Path) -> PastValue | None:
        """What is at a place; None if there is nothing."""
        value: Draft = await self._state()
        origin, items = NOWHERE, -1
        here: list[Any] = []
        for depth, part in enumerate(path):
            value = await self._fetched(value)
            length = draft_reader.length(value)
            entries = as_dict(value, origin)
            if length is not None:
                if type(part) is not int or not -length <= part < length:
                    return None
                start = part % length
                here.append(start)
                ((value, origin),) = await self.nodes(
                    draft_reader.written_items(self._ws, value, origin, start, start + 1)
                )
                items = depth if items < 0 else items
            elif entries is not None:
                entry = await self.nodes(draft_reader.one(self._ws, entries, self._codec.pack(part)))
                if entry is None:
                    return None
                value, origin = entry
                here.append(part)
            else:
                tree = inside(to_json(value) if isinstance(value, bytes) else None, path[depth:])
                return None if tree is NOTHING else PastValue(None, tree, origin, items, (*here, *path[depth:]))
        return PastValue(value, NOTHING, origin, items, tuple(here))

    async def _fetched(self, value: Draft) -> Draft:
        if not isinstance(value, bytes) or not is_pointer(value):
            return value
        loaded = self._loaded or await self._load()
        return loaded.fresh.get(value) or (await self._states.load_large(self._line, [value]))[value]

    async def tree(self, found: PastValue) -> Any:
        """A value in JSON form; large ones that stand as pointers stay so."""
        if found.value is None:
            return found.tree
        return tree_of(await self.nodes(draft_reader.whole(self._ws, found.value)), {})

    async def items(self, found: PastValue, start: int, stop: int) -> list[ListItem]:
        """Items of a list, each with the step that wrote it."""
        value = found.value
        return (
            []
            if value is None
            else await self.nodes(draft_reader.written_items(self._ws, value, found.origin, start, stop))
        )

    async def all_items(self, found: PastValue) -> list[ListItem]:
        """All items of a list."""
        return await self.items(found, 0, 0 if found.value is None else draft_reader.length(found.value) or 0)

    async def keys(self, found: PastValue) -> list[Any] | None:
        """The keys of a dict; None if it is none."""
        value = found.value
        packed = None if value is None else await self.nodes(draft_reader.keys(self._ws, value))
        return None if packed is None else self._codec.unpack_items(packed)
