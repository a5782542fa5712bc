"""Provenance: the steps that changed the value at a path.

A value records the step that wrote it last. Looking it up in the state before that step leads further back, without
reading the steps in between. Some steps rewrite a small value as a whole although only a part of it changed, so whether
a step changed a value is found out by comparing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.json import encode

from holdfast.backends.interface import Get, Row, Scan
from holdfast.backends.tables import STEPS
from holdfast.codec.json_codec import to_json
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.engine import Engine
from holdfast.engine.model import draft_reader
from holdfast.engine.model.alignment import gaps
from holdfast.engine.model.drafts import Draft, as_dict
from holdfast.engine.model.edit_paths import (
    Said,
    below,
    inside,
    may_touch,
    opened_map,
    operation_at,
    place_before,
    within,
)
from holdfast.engine.model.json_diff import NOTHING, Edit, Path, tree_of
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.nodes import ListItem, WrittenBy
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, KeepRun, Set
from holdfast.engine.row_format import MERGE, Line, StepRef, open_step
from holdfast.engine.state_loader import LoadedState, PartialState
from holdfast.history.ancestry import merged_parents
from holdfast.history.comparison import ComparedPoint, differences

# Past reader ----------------------------------------------------------------------------------------------------------
#
# Reads single values of a state, with the step that wrote each, without reading the rest.

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


_FIRST_PAGE, _PAGE = 2, 256
"""How many steps are read at a time: at first, and at most."""

_MAX_UNRELATED = 16
"""After this many steps that did not touch a path, its writer is looked up in the state instead."""

_DIFF_KINDS = ("save", "input", "loop", MERGE, "restore", "switch")
"""The kinds of steps that contain only differences to the state before. Others, such as updates, contain whatever the
caller passed, which may have been there before."""


class ProvenanceStep(NamedTuple):
    """A step that changed the value at a path, and its edits there."""

    origin: WrittenBy
    edits: tuple[Edit, ...]


class ProvenanceReader:
    """Finds the steps of a line that changed the value at a path."""

    def __init__(self, engine: Engine, line: Line) -> None:
        self._engine = engine
        self._line = line
        self._graph: BranchGraph | None = None
        self._rows: dict[Position, Row | None] = {}
        """The steps that were read last."""

    async def changes(self, point: StepRef, path: Path) -> AsyncIterator[ProvenanceStep]:
        """Iterate over the steps that changed a value, the latest first, along first parents.

        An index of a list follows its item.
        """
        now: StepRef | None = point
        in_list = False
        while now is not None:
            located = await self.locate(now, path)
            if located is None and in_list:
                return  # whatever was at this index before is another item
            in_list = located is not None and located[1].item_depth >= 0
            path = path if located is None else located[1].path
            origin = await self._removal(now, path) if located is None else located[1].origin
            if origin is None:
                return
            if located is not None:
                origin = await self._first_writer(origin, path, located[1])
            step = await self.step(origin)
            if step is None or step.pruned:
                older = await self._last_unpruned(Position(*origin))
                edits, before = await self._edits_of_pruned(older, path, located)
            else:
                await self._engine.states.get(self._line, step)  # caches the parts of its parent's state, too
                older = await self.parent(step)
                here = path if located is None or step == now else await self._path_in(step, path, *located)
                edits, before = await self._edits(older, step, here)
            if edits:
                yield ProvenanceStep(origin, tuple(edits))
            if before is None:
                return
            now, path = older, before

    async def last_writer(self, point: StepRef, path: Path) -> WrittenBy | None:
        """Return the last step that changed a value."""
        async for change in self.changes(point, path):
            return change.origin
        return None

    async def locate(self, point: StepRef, path: Path) -> tuple[PastReader, PastValue] | None:
        """Read the value at a path of the state at a step; None if there is none."""
        reader = PastReader(self._engine, self._line, point)
        past = await reader.value_at(path)
        return None if past is None else (reader, past)

    # Steps ------------------------------------------------------------------------------------------------------

    async def step(self, origin: WrittenBy) -> StepRef | None:
        """Return the step of an origin, or its stub; None if neither exists."""
        row = await self._row(Position(*origin))
        return None if row is None else StepRef.of(row)

    async def _row(self, position: Position) -> Row | None:
        """Read the row of a step, together with the one before it, which is usually needed next."""
        if position not in self._rows:
            pair = [position, Position(position.branch, position.seq - 1)] if position.seq else [position]
            keys = [(*self._line, *key) for key in pair]
            (rows,) = await self._engine.context.backend.read([Get(STEPS, keys, required=True)])
            by_position = {Position(*StepRef.of(row)[:2]): row for row in rows}
            self._rows = {key: by_position.get(key) for key in pair}
        return self._rows[position]

    async def parent(self, point: StepRef) -> StepRef | None:
        """Return the last unpruned step before a step; None at the start of the line."""
        rows = [row for row in self._rows.values() if row is not None]
        (head,) = await self._engine.step_info.describe(self._line, [point], rows)
        if not head.header.parents:
            return None
        parent = await self.step(WrittenBy(*head.header.parents[0][:2]))
        if parent is None or parent.pruned:
            return await self._last_unpruned(Position(*point[:2]))
        loaded: LoadedState | None = self._engine.context.cache.get((self._line, point.hash))
        if loaded is not None and loaded.tail and len(loaded.tail) - 1 == parent.tail:
            # All parts of the parent's state are cached: it need not be read again.
            if self._engine.context.cache.get((self._line, parent.hash)) is None:
                tail = loaded.tail[:-1]
                older = LoadedState(loaded.root, loaded.form, tail, loaded.tail_weight, fresh=loaded.fresh)
                self._engine.states.cache_state(self._line, parent.hash, older)
        return parent

    async def _last_unpruned(self, position: Position) -> StepRef | None:
        for end in (await self._branch_graph()).stretches(position):
            last = Position(end.branch, end.seq - 1) if end == position else end
            point = await self._engine.lines.last_unpruned(self._line, last)
            if point is not None:
                return point
        return None

    async def _removal(self, point: StepRef, path: Path) -> WrittenBy | None:
        """Return the last step up to this one that may have removed the value at a path."""
        keys = self._engine.context.codec.pack_items(path)
        async for at, edit in self._steps_back(Position(*point[:2])):
            if edit is not None and may_touch(edit, keys):
                return at
        return None

    async def _first_writer(self, origin: WrittenBy, path: Path, past: PastValue) -> WrittenBy:
        """Return the first of the consecutive steps that wrote the same value, as part of a larger one."""
        if past.item_depth >= 0 or not isinstance(past.value, bytes):
            return origin
        return (await self._first_writers(origin, path[:-1], {path[-1]: past.value}))[path[-1]]

    async def _first_writers(self, origin: WrittenBy, path: Path, values: Mapping[Any, bytes]) -> dict[Any, WrittenBy]:
        """Return the first writer of several entries of a dict.

        Reads only steps and no state, as long as they keep rewriting the dict.
        """
        writers = dict.fromkeys(values, origin)
        unrelated = 0
        pack = self._engine.context.codec.pack
        stem = self._engine.context.codec.pack_items(path)
        todo = {name: (pack(name), value) for name, value in values.items()}
        async for at, edit in self._steps_back(Position(*origin)):
            if edit is None:
                break
            effect: Said = edit
            for part in stem:
                effect = below(effect, part)
            effect = opened_map(effect) if isinstance(effect, bytes) else effect
            unrelated = unrelated + 1 if effect is NOTHING else 0
            for name, (key, value) in list(todo.items()):
                put = below(effect, key)
                if put == value:
                    writers[name] = at
                # An edit of a part contains only new values.
                if put is not NOTHING and (put != value or isinstance(effect, EditMap)):
                    del todo[name]
            if not todo or unrelated > _MAX_UNRELATED:
                break
        return writers

    async def _steps_back(self, position: Position) -> AsyncIterator[tuple[WrittenBy, EditMap | None]]:
        """Iterate over the edits of a step and those before it along first parents; None for pruned ones."""
        page, end = _FIRST_PAGE, position
        while True:
            last = end.seq
            while last >= 0:
                start = max(0, last + 1 - page)
                count = last + 1 - start
                scan = Scan(STEPS, (*self._line, end.branch), (start,), (last + 1,), reverse=True, required=count)
                (rows,) = await self._engine.context.backend.read([scan])
                for row in rows:
                    point = StepRef.of(row)
                    yield WrittenBy(*point[:2]), None if point.pruned else self._edit_of(row)
                last, page = start - 1, min(2 * page, _PAGE)
            base = (await self._branch_graph()).base(end.branch)
            if base is None:
                return
            end = base

    async def _branch_graph(self) -> BranchGraph:
        if self._graph is None:
            self._graph = await self._engine.lines.branch_graph(self._line)
        return self._graph

    # Edits ------------------------------------------------------------------------------------------------------

    async def _edits(self, older: StepRef | None, step: StepRef, path: Path) -> tuple[list[Edit], Path | None]:
        """Return the edits of a step at a path, and the value's path before, or None."""
        channel = self._engine.context.codec.pack(path[0])
        edits = await differences(
            self._engine, ComparedPoint(self._line, older), ComparedPoint(self._line, step), only=channel
        )
        before = None if older is None else place_before(edits, path)
        return [part for edit in edits for part in within(edit, path, before)], before

    async def _edits_of_pruned(
        self, older: StepRef | None, path: Path, located: tuple[PastReader, PastValue] | None
    ) -> tuple[list[Edit], Path | None]:
        """Return the edits of pruned steps at a path. The old value is known only if an older step remains."""
        new = NOTHING if located is None else await located[0].tree(located[1])
        if older is None or (located is not None and located[1].item_depth >= 0):
            return [Edit("add", path, path, None, NOTHING, new)], None
        before = await self.locate(older, path)
        old = NOTHING if before is None else await before[0].tree(before[1])
        if old is NOTHING:
            return [Edit("add", path, path, None, old, new)], path
        return [] if encode(old) == encode(new) else [Edit("change", path, path, None, old, new)], path

    async def _path_in(self, step: StepRef, path: Path, reader: PastReader, past: PastValue) -> Path:
        """Return the path of a value just after the step that wrote it, when other items were before it."""
        depth = past.item_depth
        if depth < 0:
            return path
        stem, index = path[:depth], path[depth]
        now = await reader.value_at(path[: depth + 1])
        then = await self.locate(step, stem)
        if now is None or then is None or not isinstance(now.value, bytes):
            return path
        indexes = await self._written_indexes(step, stem, then[1])
        first = indexes[0] if indexes else 0
        items = await then[0].items(then[1], first, indexes[-1] + 1) if indexes else []
        same = [i for i in indexes if items[i - first].value == now.value]
        nearest = min(same, key=lambda i: abs(i - index), default=index)
        return (*stem, nearest, *path[depth + 1 :])

    async def _written_indexes(self, step: StepRef, stem: Path, past: PastValue) -> list[int]:
        """Return the indexes of the items of a list that a step wrote."""
        assert past.value is not None  # noqa: S101 - a list has a value
        (rows,) = await self._engine.context.backend.read([Get(STEPS, [(*self._line, *step[:2])], True)])
        operation = operation_at(self._edit_of(rows[0]), self._engine.context.codec.pack_items(stem))
        if not isinstance(operation, EditList):
            return list(range(draft_reader.length(past.value) or 0))
        indexes: list[int] = []
        at = 0
        for part in operation.parts:
            length = part.length if isinstance(part, KeepRun) else 1 if isinstance(part, ChangeItem) else len(part)
            if not isinstance(part, KeepRun):
                indexes += range(at, at + length)
            at += length
        return indexes

    async def _rewriters(self, origins: Iterable[WrittenBy], path: Path) -> set[WrittenBy]:
        """Return the steps that may have written values which were there before.

        They set the value at the path, or one above it, as a whole, or set parts of it without comparing.
        """
        result = set()
        distinct = list(dict.fromkeys(origins))
        keys = self._engine.context.codec.pack_items(path)
        for begin in range(0, len(distinct), _PAGE):
            step_keys = [(*self._line, *origin) for origin in distinct[begin : begin + _PAGE]]
            (rows,) = await self._engine.context.backend.read([Get(STEPS, step_keys, required=True)])
            for row in rows:
                point = StepRef.of(row)
                if not point.pruned and (
                    point.kind not in _DIFF_KINDS or isinstance(operation_at(self._edit_of(row), keys), Set)
                ):
                    result.add(WrittenBy(*point[:2]))
        return result

    def _edit_of(self, row: Row) -> EditMap:
        return open_step(self._line, row, self._engine.context.max_bytes).edit

    # Many values at once ----------------------------------------------------------------------------------------

    async def item_origins(
        self, reader: PastReader, past: PastValue, path: Path, start: int, stop: int
    ) -> list[WrittenBy]:
        """Return the steps that wrote items of a list."""
        items = await reader.items(past, start, stop)
        origins: list[WrittenBy] = [item.origin for item in items]
        open_groups = _group(enumerate(items))
        rewriters = await self._rewriters(open_groups, path)
        while open_groups:
            origin, group = open_groups.popitem()
            step = await self.step(origin) if origin in rewriters else None
            if step is None:
                continue
            older = await self.parent(step)
            then, before = await self.locate(step, path), None if older is None else await self.locate(older, path)
            if then is None or before is None:
                continue
            written = [item.value for item in await then[0].all_items(then[1])]
            earlier = await before[0].all_items(before[1])
            old_indexes = _unchanged_items(written, [item.value for item in earlier])
            indexes: dict[bytes, list[int]] = {}
            for index, value in reversed(list(enumerate(written))):
                indexes.setdefault(value, []).append(index)
            unchanged = []
            for number, item in group:
                index = indexes[item.value].pop() if indexes.get(item.value) else -1
                if index in old_indexes:
                    origins[number] = earlier[old_indexes[index]].origin
                    unchanged.append((number, earlier[old_indexes[index]]))
            earlier_groups = _group(unchanged)
            rewriters |= await self._rewriters(earlier_groups, path)
            for earlier_origin, members in earlier_groups.items():
                open_groups.setdefault(earlier_origin, []).extend(members)
        return origins

    async def entry_origins(self, reader: PastReader, path: Path, keys: Sequence[Any]) -> list[WrittenBy]:
        """Return the steps that wrote entries of a dict."""
        origins: list[WrittenBy] = []
        values: dict[int, bytes] = {}
        groups: dict[WrittenBy, list[int]] = {}
        for number, key in enumerate(keys):
            past = await reader.value_at((*path, key))
            origins.append(NO_ORIGIN if past is None else past.origin)
            groups.setdefault(origins[-1], []).append(number)
            if past is not None and isinstance(past.value, bytes):
                values[number] = past.value
        rewriters = await self._rewriters(groups, path)
        for origin in [origin for origin in groups if origin in rewriters]:
            # Steps alone, as far as they are enough: no state is read.
            packed = {keys[number]: values[number] for number in groups[origin] if number in values}
            first = await self._first_writers(origin, path, packed)
            for number in groups.pop(origin):
                origins[number] = first.get(keys[number], origin)
                groups.setdefault(origins[number], []).append(number)
        rewriters |= await self._rewriters(groups, path)
        while groups:
            origin, group = groups.popitem()
            step = await self.step(origin) if origin in rewriters else None
            older = None if step is None else await self.parent(step)
            if step is None or older is None:
                continue
            then, before = PastReader(self._engine, self._line, step), PastReader(self._engine, self._line, older)
            for number in group:
                entry = (*path, keys[number])
                new, old = await then.value_at(entry), await before.value_at(entry)
                if (
                    new is not None
                    and old is not None
                    and encode(await then.tree(new)) == encode(await before.tree(old))
                ):
                    origins[number] = old.origin
                    groups.setdefault(old.origin, []).append(number)
            rewriters |= await self._rewriters(groups, path)
        return origins


def _group(items: Any) -> dict[WrittenBy, list[tuple[int, ListItem]]]:
    groups: dict[WrittenBy, list[tuple[int, ListItem]]] = {}
    for number, item in items:
        groups.setdefault(item.origin, []).append((number, item))
    return groups


def _unchanged_items(new: Sequence[bytes], old: Sequence[bytes]) -> Mapping[int, int]:
    """Return the old indexes of unchanged items by their new ones."""
    indexes: dict[int, int] = {}
    start = at = 0
    for gap in [*gaps(old, new), None]:
        stop = len(old) if gap is None else gap.start
        indexes.update((at + i, start + i) for i in range(stop - start))
        if gap is not None:
            start, at = gap.stop, gap.until
    return indexes


class MergeProvenance:
    """Finds the writers of values that merges brought in: on the other side, if that has the same value."""

    def __init__(self, engine: Engine, line: Line, provenance: ProvenanceReader) -> None:
        self._engine = engine
        self._line = line
        self._provenance = provenance
        self._readers: dict[bytes, PastReader] = {}
        self._lists: dict[tuple[bytes, Path], list[ListItem]] = {}

    async def origin(self, reader: PastReader, path: Path, origin: WrittenBy) -> WrittenBy:
        """Return the step that wrote a value; if that is a merge, the one on the other side."""
        while True:
            step = await self._provenance.step(origin)
            if step is None or (step.kind != MERGE and not step.merged):
                return origin
            for parent in await merged_parents(self._engine, self._line, [step]):
                point = await self._provenance.step(WrittenBy(parent.branch, parent.seq))
                if point is None or point.pruned or point.hash != parent.commit:
                    continue
                other = self._readers.setdefault(point.hash, PastReader(self._engine, self._line, point))
                other_path = await self._same_value(reader, path, other)
                if other_path is not None:
                    reader, path = other, other_path
                    origin = await self._provenance.last_writer(point, path) or origin
                    break
            else:
                return origin

    async def _same_value(self, reader: PastReader, path: Path, other: PastReader) -> Path | None:
        """Return the path of the same value in the other state; None if there is none."""
        past = await reader.value_at(path)
        if past is None:
            return None
        if past.item_depth >= 0:
            return await self._same_item(reader, past, other)
        candidate = await other.value_at(path)
        same = candidate is not None and encode(await reader.tree(past)) == encode(await other.tree(candidate))
        return path if same else None

    async def _same_item(self, reader: PastReader, past: PastValue, other: PastReader) -> Path | None:
        """Find an item of a list, or a value inside one, by the nearest equal item of the other list."""
        depth = past.item_depth
        stem, index, rest = past.path[:depth], past.path[depth], past.path[depth + 1 :]
        item = await reader.value_at((*stem, index))
        value = None if item is None else item.value
        indexes = [i for i, candidate in enumerate(await self._items(other, stem)) if candidate.value == value]
        return (*stem, min(indexes, key=lambda i: abs(i - index)), *rest) if indexes else None

    async def _items(self, reader: PastReader, stem: Path) -> Sequence[ListItem]:
        key = (reader.point.hash, stem)
        if key not in self._lists:
            past = await reader.value_at(stem)
            self._lists[key] = [] if past is None else await reader.all_items(past)
        return self._lists[key]
