"""What a merge brought in was written on the other side: by whom is looked for there.

A merge is a step of its own, whose changes are those of the other side since the common ancestor. So the first that is
found of a value that came that way is the merge. Where the other side has the same value, its writer is meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.json import encode

from holdfast.engine.engine import Engine
from holdfast.engine.model.json_diff import Path
from holdfast.engine.model.nodes import ListItem, WrittenBy
from holdfast.engine.row_format import MERGE, Line
from holdfast.history.ancestry import further_parents
from holdfast.history.past_reader import PastReader, PastValue
from holdfast.history.provenance import ProvenanceReader


class MergeProvenance:
    """Follows places over merges."""

    def __init__(self, engine: Engine, line: Line, tracer: ProvenanceReader) -> None:
        self._engine = engine
        self._line = line
        self._tracer = tracer
        self._looks: dict[bytes, PastReader] = {}
        self._lists: dict[tuple[bytes, Path], list[ListItem]] = {}

    async def origin(self, look: PastReader, path: Path, origin: WrittenBy) -> WrittenBy:
        """The step that wrote what is at a place, if it was a merge that brought it: the one on the other side."""
        while True:
            step = await self._tracer.step(origin)
            if step is None or (step.kind != MERGE and not step.merged):
                return origin
            for parent in await further_parents(self._engine, self._line, [step]):
                point = await self._tracer.step(WrittenBy(parent.branch, parent.seq))
                if point is None or point.pruned or point.hash != parent.commit:
                    continue
                other = self._looks.setdefault(point.hash, PastReader(self._engine, self._line, point))
                there = await self._same(look, path, other)
                if there is not None:
                    look, path = other, there
                    origin = await self._tracer.written(point, there) or origin
                    break
            else:
                return origin

    async def _same(self, look: PastReader, path: Path, other: PastReader) -> Path | None:
        """Where the same value is in the other state; None if it is not there."""
        found = await look.place(path)
        if found is None:
            return None
        if found.items >= 0:
            return await self._same_item(look, found, other)
        there = await other.place(path)
        same = there is not None and encode(await look.tree(found)) == encode(await other.tree(there))
        return path if same else None

    async def _same_item(self, look: PastReader, found: PastValue, other: PastReader) -> Path | None:
        """The same for an item of a list, or what is in one: other items may stand before it there."""
        stem, index, rest = found.path[: found.items], found.path[found.items], found.path[found.items + 1 :]
        item = await look.place((*stem, index))
        value = None if item is None else item.value
        places = [place for place, each in enumerate(await self._items(other, stem)) if each.value == value]
        return (*stem, min(places, key=lambda place: abs(place - index)), *rest) if places else None

    async def _items(self, look: PastReader, stem: Path) -> Sequence[ListItem]:
        key = (look.point.hash, stem)
        if key not in self._lists:
            found = await look.place(stem)
            self._lists[key] = [] if found is None else await look.all_items(found)
        return self._lists[key]
