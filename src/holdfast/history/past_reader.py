"""A state of which places are looked at, without reading more of it than lies on the way."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from holdfast.codec.json_codec import to_json
from holdfast.engine.engine import Engine
from holdfast.engine.model import draft_reader
from holdfast.engine.model.drafts import Draft, MapDraft, as_dict, draft
from holdfast.engine.model.edit_paths import inside
from holdfast.engine.model.json_diff import NOTHING, Path, tree_of
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.nodes import ListItem, WrittenBy
from holdfast.engine.model.operations import LoadLarge
from holdfast.engine.model.workspace import Rounds, Workspace
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.state_loader import LoadedState

T = TypeVar("T")

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


class PastReader:
    """A state of which places are looked at."""

    def __init__(self, engine: Engine, line: Line, point: StepRef) -> None:
        self._engine = engine
        self._line = line
        self.point = point
        self._held: LoadedState | None = None
        self._ws = Workspace()
        self._draft: MapDraft | None = None

    async def _state(self) -> tuple[LoadedState, MapDraft]:
        if self._held is None or self._draft is None:
            held = await self._engine.states.hold(self._line, self.point)

            async def drafted(load: LoadLarge) -> MapDraft:
                rounds = draft(self._ws, held.root, held.tail, load)
                return await self._engine.states.nodes(self._line, held, rounds)

            self._held, self._draft = held, await self._engine.states.with_large(self._line, held, drafted)
        return self._held, self._draft

    async def nodes(self, rounds: Rounds[T]) -> T:
        """What a computation over the state's nodes returns."""
        held, _ = await self._state()
        return await self._engine.states.nodes(self._line, held, rounds)

    async def place(self, path: Path) -> PastValue | None:
        """What is at a place; None if there is nothing."""
        _, state = await self._state()
        value: Draft = state
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
                entry = await self.nodes(draft_reader.one(self._ws, entries, self._engine.ground.codec.pack(part)))
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
        held, _ = await self._state()
        known = held.fresh.get(value)
        return known if known is not None else (await self._engine.states.large(self._line, [value]))[value]

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
        return None if packed is None else self._engine.ground.codec.unpack_items(packed)
