"""Reads single values of a state, with the step that wrote each, without reading the rest."""

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

NO_ORIGIN = WrittenBy(0, 0)


class PastValue(NamedTuple):
    """The value at a path, or its JSON form if it is inside an object, and the step that wrote it."""

    value: Draft | None
    tree: Any
    origin: WrittenBy
    item_depth: int
    """The index in `path` of the first item of a list, or -1. Values below an item were written with it."""
    path: Path
    """The path, with indexes of lists counted from the start."""


class PastReader(PartialState):
    """Reads values of a state by path, and the steps that wrote them."""

    point: StepRef

    def __init__(self, engine: Engine, line: Line, point: StepRef) -> None:
        super().__init__(engine.states, line, point)
        self._codec = engine.context.codec

    async def value_at(self, path: Path) -> PastValue | None:
        """Read the value at a path; None if there is none."""
        value: Draft = await self._state()
        origin, item_depth = NO_ORIGIN, -1
        resolved: list[Any] = []
        for depth, part in enumerate(path):
            value = await self._fetch_large(value)
            length = draft_reader.length(value)
            entries = as_dict(value, origin)
            if length is not None:
                if type(part) is not int or not -length <= part < length:
                    return None
                start = part % length
                resolved.append(start)
                ((value, origin),) = await self.nodes(
                    draft_reader.written_items(self._ws, value, origin, start, start + 1)
                )
                item_depth = depth if item_depth < 0 else item_depth
            elif entries is not None:
                entry = await self.nodes(draft_reader.one(self._ws, entries, self._codec.pack(part)))
                if entry is None:
                    return None
                value, origin = entry
                resolved.append(part)
            else:
                rest = path[depth:]
                tree = inside(to_json(value) if isinstance(value, bytes) else None, rest)
                return None if tree is NOTHING else PastValue(None, tree, origin, item_depth, (*resolved, *rest))
        return PastValue(value, NOTHING, origin, item_depth, tuple(resolved))

    async def _fetch_large(self, value: Draft) -> Draft:
        if not isinstance(value, bytes) or not is_pointer(value):
            return value
        loaded = self._loaded or await self._load()
        return loaded.fresh.get(value) or (await self._states.load_large(self._line, [value]))[value]

    async def tree(self, past: PastValue) -> Any:
        """Return a value as JSON, with large values as pointers."""
        if past.value is None:
            return past.tree
        return tree_of(await self.nodes(draft_reader.whole(self._ws, past.value)), {})

    async def items(self, past: PastValue, start: int, stop: int) -> list[ListItem]:
        """Return items of a list, each with the step that wrote it."""
        if past.value is None:
            return []
        return await self.nodes(draft_reader.written_items(self._ws, past.value, past.origin, start, stop))

    async def all_items(self, past: PastValue) -> list[ListItem]:
        return await self.items(past, 0, 0 if past.value is None else draft_reader.length(past.value) or 0)

    async def keys(self, past: PastValue) -> list[Any] | None:
        """Return the keys of a dict; None if it is something else."""
        packed = None if past.value is None else await self.nodes(draft_reader.keys(self._ws, past.value))
        return None if packed is None else self._codec.unpack_items(packed)
