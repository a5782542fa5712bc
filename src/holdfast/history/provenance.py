"""Where a place of a state comes from: the steps that changed it, found by what each value says of its origin.

A value knows the step that wrote it last. From the state before that step, the same question leads further back: what
lies between is not read. Some steps wrote a small value again as a whole, though only a part of it changed; whether a
step really changed a place is seen by comparing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.json import encode

from holdfast.backends.interface import Get, Row, Scan
from holdfast.backends.tables import STEPS
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.engine import Engine
from holdfast.engine.model import draft_reader
from holdfast.engine.model.alignment import gaps
from holdfast.engine.model.edit_paths import Said, below, may_touch, opened_map, operation_at, place_before, within
from holdfast.engine.model.json_diff import NOTHING, Edit, Path
from holdfast.engine.model.nodes import ListItem, WrittenBy
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, KeepRun, Set
from holdfast.engine.row_format import MERGE, Line, StepRef, open_step
from holdfast.engine.state_loader import LoadedState
from holdfast.history.comparison import ComparedPoint, differences
from holdfast.history.past_reader import NOWHERE, PastReader, PastValue

_FEW, _PAGE = 2, 256
"""How many steps are read at a time where each has to be looked at: at first, and after a while."""

_SILENT = 16
"""After so many steps that did not touch a place, its state is asked who did."""

_COMPARED = ("save", "input", "loop", MERGE, "restore", "switch")
"""The kinds of steps that say what differs from the state before them. Others, such as updates, say what they were told
to put, which may have been there."""


class ProvenanceStep(NamedTuple):
    """A step that changed a place, and what it changed there."""

    origin: WrittenBy
    edits: tuple[Edit, ...]


class ProvenanceReader:
    """Follows places of a line's states back to the steps that changed them."""

    def __init__(self, engine: Engine, line: Line) -> None:
        self._engine = engine
        self._line = line
        self._layout: BranchGraph | None = None
        self._rows: dict[Position, Row | None] = {}
        """The steps that were read last."""

    async def touches(self, point: StepRef, path: Path) -> AsyncIterator[ProvenanceStep]:
        """The steps that changed a place, the latest first, along first parents. Places in lists follow their items."""
        now: StepRef | None = point
        in_list = False
        while now is not None:
            found = await self.looked(now, path)
            if found is None and in_list:
                return  # what else was at this place in the list is another item
            in_list = found is not None and found[1].items >= 0
            path = path if found is None else found[1].path
            origin = await self._removal(now, path) if found is None else found[1].origin
            if origin is None:
                return
            if found is not None:
                origin = await self._since(origin, path, found[1])
            step = await self.step(origin)
            if step is None or step.pruned:
                older = await self._kept_before(Position(*origin))
                edits, before = await self._pruned(older, path, found)
            else:
                await self._engine.states.get(self._line, step)  # the state before it is made of the same steps
                older = await self.parent(step)
                here = path if found is None or step == now else await self._place_in(step, path, *found)
                edits, before = await self._changed(older, step, here)
            if edits:
                yield ProvenanceStep(origin, tuple(edits))
            if before is None:
                return
            now, path = older, before

    async def written(self, point: StepRef, path: Path) -> WrittenBy | None:
        """The last step that changed a place."""
        async for touch in self.touches(point, path):
            return touch.origin
        return None

    async def looked(self, point: StepRef, path: Path) -> tuple[PastReader, PastValue] | None:
        """What is at a place in the state at a step."""
        look = PastReader(self._engine, self._line, point)
        found = await look.place(path)
        return None if found is None else (look, found)

    # Steps ------------------------------------------------------------------------------------------------------

    async def step(self, origin: WrittenBy) -> StepRef | None:
        """The step of an origin, or the stub that is left of it; None if not even that is."""
        row = await self._row(Position(*origin))
        return None if row is None else StepRef.of(row)

    async def _row(self, place: Position) -> Row | None:
        """The row of a step. The one before it, which is asked for next, is read with it."""
        if place not in self._rows:
            wanted = [place, Position(place.branch, place.seq - 1)] if place.seq else [place]
            (rows,) = await self._engine.context.backend.read([Get(STEPS, [(*self._line, *each) for each in wanted])])
            found = {Position(*StepRef.of(row)[:2]): row for row in rows}
            self._rows = {each: found.get(each) for each in wanted}
        return self._rows[place]

    async def parent(self, point: StepRef) -> StepRef | None:
        """The step before a step that was not pruned; None at the start of the line."""
        rows = [row for row in self._rows.values() if row is not None]
        (head,) = await self._engine.step_info.describe(self._line, [point], rows)
        if not head.header.parents:
            return None
        parent = await self.step(WrittenBy(*head.header.parents[0][:2]))
        if parent is None or parent.pruned:
            return await self._kept_before(Position(*point[:2]))
        held: LoadedState | None = self._engine.context.cache.get((self._line, point.hash))
        if held is not None and held.tail and len(held.tail) - 1 == parent.tail:
            # All that the parent's state is made of is at hand: it need not be read again.
            if self._engine.context.cache.get((self._line, parent.hash)) is None:
                shorter = LoadedState(held.root, held.form, held.tail[:-1], held.tail_weight, fresh=held.fresh)
                self._engine.states.cache_state(self._line, parent.hash, shorter)
        return parent

    async def _kept_before(self, place: Position) -> StepRef | None:
        for end in (await self._layouts()).stretches(place):
            last = Position(end.branch, end.seq - 1) if end == place else end
            found = await self._engine.lines.last_unpruned(self._line, last)
            if found is not None:
                return found
        return None

    async def _removal(self, point: StepRef, path: Path) -> WrittenBy | None:
        """The last step up to this one that may have removed a place which is not there."""
        keys = self._engine.context.codec.pack_items(path)
        async for at, edit in self._steps_back(Position(*point[:2])):
            if edit is not None and may_touch(edit, keys):
                return at
        return None

    async def _since(self, origin: WrittenBy, path: Path, found: PastValue) -> WrittenBy:
        """The step that wrote a value first, of those that wrote the same again as part of something larger."""
        if found.items >= 0 or not isinstance(found.value, bytes):
            return origin
        return (await self._first_writers(origin, path[:-1], {path[-1]: found.value}))[path[-1]]

    async def _first_writers(self, origin: WrittenBy, path: Path, values: Mapping[Any, bytes]) -> dict[Any, WrittenBy]:
        """The same for several entries of a dict, which has them since a step.

        Only what the steps say is looked at, and no state: as long as they write the dict again and again.
        """
        writers = dict.fromkeys(values, origin)
        silent = 0
        pack = self._engine.context.codec.pack
        stem = self._engine.context.codec.pack_items(path)
        todo = {name: (pack(name), value) for name, value in values.items()}
        async for at, edit in self._steps_back(Position(*origin)):
            if edit is None:
                break
            said: Said = edit
            for part in stem:
                said = below(said, part)
            said = opened_map(said) if isinstance(said, bytes) else said
            silent = silent + 1 if said is NOTHING else 0
            for name, (key, value) in list(todo.items()):
                put = below(said, key)
                if put == value:
                    writers[name] = at
                if put != value or isinstance(said, EditMap):  # who puts but a part knows that it is new
                    if put is not NOTHING:
                        del todo[name]
            if not todo or silent > _SILENT:
                break
        return writers

    async def _steps_back(self, place: Position) -> AsyncIterator[tuple[WrittenBy, EditMap | None]]:
        """What a step did, and those before it along first parents; None where one was pruned."""
        page, end = _FEW, place
        while True:
            last = end.seq
            while last >= 0:
                start = max(0, last + 1 - page)
                scan = Scan(STEPS, (*self._line, end.branch), (start,), (last + 1,), reverse=True)
                (rows,) = await self._engine.context.backend.read([scan])
                for row in rows:
                    at = StepRef.of(row)
                    yield WrittenBy(*at[:2]), None if at.pruned else self._opened(row)
                last, page = start - 1, min(2 * page, _PAGE)
            base = (await self._layouts()).base(end.branch)
            if base is None:
                return
            end = base

    async def _layouts(self) -> BranchGraph:
        if self._layout is None:
            self._layout = await self._engine.lines.branch_graph(self._line)
        return self._layout

    # What a step changed ----------------------------------------------------------------------------------------

    async def _changed(self, older: StepRef | None, step: StepRef, path: Path) -> tuple[list[Edit], Path | None]:
        """What a step changed of a place, and where the place was before; None if it was nowhere."""
        channel = self._engine.context.codec.pack(path[0])
        edits = await differences(
            self._engine, ComparedPoint(self._line, older), ComparedPoint(self._line, step), only=channel
        )
        before = None if older is None else place_before(edits, path)
        return [part for edit in edits for part in within(edit, path, before)], before

    async def _pruned(
        self, older: StepRef | None, path: Path, found: tuple[PastReader, PastValue] | None
    ) -> tuple[list[Edit], Path | None]:
        """What one of the pruned steps changed of a place: what it was before is known if an older step was kept."""
        new = NOTHING if found is None else await found[0].tree(found[1])
        if older is None or (found is not None and found[1].items >= 0):
            return [Edit("add", path, path, None, NOTHING, new)], None
        before = await self.looked(older, path)
        old = NOTHING if before is None else await before[0].tree(before[1])
        if old is NOTHING:
            return [Edit("add", path, path, None, old, new)], path
        return [] if encode(old) == encode(new) else [Edit("change", path, path, None, old, new)], path

    async def _place_in(self, step: StepRef, path: Path, look: PastReader, found: PastValue) -> Path:
        """Where a place was just after the step that wrote it. Items before it may have come or gone since."""
        if found.items < 0:
            return path
        stem, index = path[: found.items], path[found.items]
        now = await look.place(path[: found.items + 1])
        then = await self.looked(step, stem)
        if now is None or then is None or not isinstance(now.value, bytes):
            return path
        places = await self._written(step, stem, then[1])
        values = [(await then[0].items(then[1], place, place + 1))[0].value for place in places]
        same = [place for place, value in zip(places, values, strict=True) if value == now.value]
        nearest = min(same, key=lambda place: abs(place - index), default=index)
        return (*stem, nearest, *path[found.items + 1 :])

    async def _written(self, step: StepRef, stem: Path, found: PastValue) -> list[int]:
        """The places in a list whose items a step wrote."""
        assert found.value is not None  # noqa: S101 - a list has a value
        (rows,) = await self._engine.context.backend.read([Get(STEPS, [(*self._line, *step[:2])])])
        operation = operation_at(self._opened(rows[0]), self._engine.context.codec.pack_items(stem))
        if not isinstance(operation, EditList):
            return list(range(draft_reader.length(found.value) or 0))
        places: list[int] = []
        at = 0
        for part in operation.parts:
            length = part.length if isinstance(part, KeepRun) else 1 if isinstance(part, ChangeItem) else len(part)
            if not isinstance(part, KeepRun):
                places += range(at, at + length)
            at += length
        return places

    async def _rewrote(self, origins: Iterable[WrittenBy], path: Path) -> set[WrittenBy]:
        """Those of some steps that set a place, or one above it, as a whole, or set parts of it without looking: what
        they set may have been there."""
        found = set()
        wanted = list(dict.fromkeys(origins))
        keys = self._engine.context.codec.pack_items(path)
        for begin in range(0, len(wanted), _PAGE):
            places = [(*self._line, *origin) for origin in wanted[begin : begin + _PAGE]]
            (rows,) = await self._engine.context.backend.read([Get(STEPS, places)])
            for row in rows:
                at = StepRef.of(row)
                if not at.pruned and (
                    at.kind not in _COMPARED or isinstance(operation_at(self._opened(row), keys), Set)
                ):
                    found.add(WrittenBy(*at[:2]))
        return found

    def _opened(self, row: Row) -> EditMap:
        return open_step(self._line, row, self._engine.context.max_bytes).edit

    # Many places at once ----------------------------------------------------------------------------------------

    async def item_origins(
        self, look: PastReader, found: PastValue, path: Path, start: int, stop: int
    ) -> list[WrittenBy]:
        """The steps that wrote items of a list."""
        items = await look.items(found, start, stop)
        origins: list[WrittenBy] = [item.origin for item in items]
        open_groups = _grouped(enumerate(items))
        rewrote = await self._rewrote(open_groups, path)
        while open_groups:
            origin, group = open_groups.popitem()
            step = await self.step(origin) if origin in rewrote else None
            if step is None:
                continue
            older = await self.parent(step)
            then, before = await self.looked(step, path), None if older is None else await self.looked(older, path)
            if then is None or before is None:
                continue
            written = [item.value for item in await then[0].all_items(then[1])]
            earlier = await before[0].all_items(before[1])
            came_from = _kept(written, [item.value for item in earlier])
            places: dict[bytes, list[int]] = {}
            for place, value in reversed(list(enumerate(written))):
                places.setdefault(value, []).append(place)
            kept = []
            for number, item in group:
                place = places[item.value].pop() if places.get(item.value) else -1
                if place in came_from:
                    origins[number] = earlier[came_from[place]].origin
                    kept.append((number, earlier[came_from[place]]))
            fresh = _grouped(kept)
            rewrote |= await self._rewrote(fresh, path)
            for earlier_origin, members in fresh.items():
                open_groups.setdefault(earlier_origin, []).extend(members)
        return origins

    async def entry_origins(self, look: PastReader, path: Path, keys: Sequence[Any]) -> list[WrittenBy]:
        """The steps that wrote entries of a dict."""
        origins: list[WrittenBy] = []
        values: dict[int, bytes] = {}
        groups: dict[WrittenBy, list[int]] = {}
        for number, key in enumerate(keys):
            found = await look.place((*path, key))
            origins.append(NOWHERE if found is None else found.origin)
            groups.setdefault(origins[-1], []).append(number)
            if found is not None and isinstance(found.value, bytes):
                values[number] = found.value
        rewrote = await self._rewrote(groups, path)
        for origin in [origin for origin in groups if origin in rewrote]:
            # As far as the steps themselves say, no state is looked at.
            known = {keys[number]: values[number] for number in groups[origin] if number in values}
            first = await self._first_writers(origin, path, known)
            for number in groups.pop(origin):
                origins[number] = first.get(keys[number], origin)
                groups.setdefault(origins[number], []).append(number)
        rewrote |= await self._rewrote(groups, path)
        while groups:
            origin, group = groups.popitem()
            step = await self.step(origin) if origin in rewrote else None
            older = None if step is None else await self.parent(step)
            if step is None or older is None:
                continue
            then, before = PastReader(self._engine, self._line, step), PastReader(self._engine, self._line, older)
            for number in group:
                place = (*path, keys[number])
                one, other = await then.place(place), await before.place(place)
                if (
                    one is not None
                    and other is not None
                    and encode(await then.tree(one)) == encode(await before.tree(other))
                ):
                    origins[number] = other.origin
                    groups.setdefault(other.origin, []).append(number)
            rewrote |= await self._rewrote(groups, path)
        return origins


def _grouped(items: Any) -> dict[WrittenBy, list[tuple[int, ListItem]]]:
    groups: dict[WrittenBy, list[tuple[int, ListItem]]] = {}
    for number, item in items:
        groups.setdefault(item.origin, []).append((number, item))
    return groups


def _kept(new: Sequence[bytes], old: Sequence[bytes]) -> Mapping[int, int]:
    """Of the new items that were there before, where they were."""
    kept: dict[int, int] = {}
    start = at = 0
    for gap in [*gaps(old, new), None]:
        stop = len(old) if gap is None else gap.start
        kept.update((at + i, start + i) for i in range(stop - start))
        if gap is not None:
            start, at = gap.stop, gap.until
    return kept
