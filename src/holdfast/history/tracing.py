"""Where a place of a state comes from: the steps that changed it, found by what each value says of its origin.

A value knows the step that wrote it last. From the state before that step, the same question leads further back: what
lies between is not read. Some steps wrote a small value again as a whole, though only a part of it changed; whether a
step really changed a place is seen by comparing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec.json import encode

from holdfast.backends.port import Get, Row, Scan
from holdfast.backends.spaces import STEPS
from holdfast.codec.jsonform import to_json
from holdfast.engine.core import Engine
from holdfast.engine.layout import Layout, Place
from holdfast.engine.records import Line, Point, open_step
from holdfast.engine.states import Held
from holdfast.history.aligning import fields_of, gaps
from holdfast.history.comparing import Spot, differences
from holdfast.history.edits import NOTHING, Edit, Path, tree_of
from holdfast.model import views
from holdfast.model.drafts import Draft, MapDraft, as_dict, draft
from holdfast.model.nodes import Item, Origin
from holdfast.model.objects import is_pointer
from holdfast.model.operations import Change, EditList, EditMap, Keep, LoadLarge, Operation, Set
from holdfast.model.trees import Rounds, Workspace

T = TypeVar("T")

_PAGE = 256
"""How many steps are read at a time where each has to be looked at."""

_NOWHERE = Origin(0, 0)


class Found(NamedTuple):
    """What is at a place: the value, or in an object of a class its JSON form; and the step that wrote it."""

    value: Draft | None
    tree: Any
    origin: Origin
    items: int
    """At which part of the path an item of a list stands; -1 if none does. What is below it was written with it."""
    path: Path
    """The path, with places in lists counted from the start."""


class Touch(NamedTuple):
    """A step that changed a place, and what it changed there."""

    origin: Origin
    edits: tuple[Edit, ...]


class Look:
    """A state of which places are looked at."""

    def __init__(self, engine: Engine, line: Line, point: Point) -> None:
        self._engine = engine
        self._line = line
        self.point = point
        self._held: Held | None = None
        self._ws = Workspace()
        self._draft: MapDraft | None = None

    async def _state(self) -> tuple[Held, MapDraft]:
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

    async def place(self, path: Path) -> Found | None:
        """What is at a place; None if there is nothing."""
        _, state = await self._state()
        value: Draft = state
        origin, items = _NOWHERE, -1
        here: list[Any] = []
        for depth, part in enumerate(path):
            value = await self._fetched(value)
            length = views.length(value)
            entries = as_dict(value, origin)
            if length is not None:
                if type(part) is not int or not -length <= part < length:
                    return None
                start = part % length
                here.append(start)
                ((value, origin),) = await self.nodes(views.written_items(self._ws, value, origin, start, start + 1))
                items = depth if items < 0 else items
            elif entries is not None:
                entry = await self.nodes(views.one(self._ws, entries, self._engine.ground.codec.pack(part)))
                if entry is None:
                    return None
                value, origin = entry
                here.append(part)
            else:
                tree = inside(to_json(value) if isinstance(value, bytes) else None, path[depth:])
                return None if tree is NOTHING else Found(None, tree, origin, items, (*here, *path[depth:]))
        return Found(value, NOTHING, origin, items, tuple(here))

    async def _fetched(self, value: Draft) -> Draft:
        if not isinstance(value, bytes) or not is_pointer(value):
            return value
        held, _ = await self._state()
        known = held.fresh.get(value)
        return known if known is not None else (await self._engine.states.large(self._line, [value]))[value]

    async def tree(self, found: Found) -> Any:
        """A value in JSON form; large ones that stand as pointers stay so."""
        if found.value is None:
            return found.tree
        return tree_of(await self.nodes(views.whole(self._ws, found.value)), {})

    async def items(self, found: Found, start: int, stop: int) -> list[Item]:
        """Items of a list, each with the step that wrote it."""
        value = found.value
        return (
            [] if value is None else await self.nodes(views.written_items(self._ws, value, found.origin, start, stop))
        )

    async def keys(self, found: Found) -> list[Any] | None:
        """The keys of a dict; None if it is none."""
        value = found.value
        packed = None if value is None else await self.nodes(views.keys(self._ws, value))
        return None if packed is None else self._engine.ground.codec.unpack_items(packed)


class Tracer:
    """Follows places of a line's states back to the steps that changed them."""

    def __init__(self, engine: Engine, line: Line) -> None:
        self._engine = engine
        self._line = line
        self._layout: Layout | None = None

    async def touches(self, point: Point, path: Path) -> AsyncIterator[Touch]:
        """The steps that changed a place, the latest first, along first parents. Places in lists follow their items."""
        now: Point | None = point
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
            step = await self.step(origin)
            if step is None or step.pruned:
                older = await self._kept_before(Place(*origin))
                edits, before = await self._pruned(older, path, found)
            else:
                older = await self.parent(step)
                here = path if found is None or step == now else await self._place_in(step, path, *found)
                edits, before = await self._changed(older, step, here)
            if edits:
                yield Touch(origin, tuple(edits))
            if before is None:
                return
            now, path = older, before

    async def looked(self, point: Point, path: Path) -> tuple[Look, Found] | None:
        """What is at a place in the state at a step."""
        look = Look(self._engine, self._line, point)
        found = await look.place(path)
        return None if found is None else (look, found)

    # Steps ------------------------------------------------------------------------------------------------------

    async def step(self, origin: Origin) -> Point | None:
        """The step of an origin, or the stub that is left of it; None if not even that is."""
        (rows,) = await self._engine.ground.backend.read([Get(STEPS, [(*self._line, *origin)])])
        return Point.of(rows[0]) if rows else None

    async def parent(self, point: Point) -> Point | None:
        """The step before a step that was not pruned; None at the start of the line."""
        head = await self._engine.heads.head(self._line, point)
        if not head.header.parents:
            return None
        parent = await self.step(Origin(*head.header.parents[0][:2]))
        if parent is None or parent.pruned:
            return await self._kept_before(Place(*point[:2]))
        held: Held | None = self._engine.ground.cache.get((self._line, point.hash))
        if held is not None and held.tail and len(held.tail) - 1 == parent.tail:
            # All that the parent's state is made of is at hand: it need not be read again.
            if self._engine.ground.cache.get((self._line, parent.hash)) is None:
                shorter = Held(held.root, held.form, held.tail[:-1], held.tail_weight, fresh=held.fresh)
                self._engine.states.keep(self._line, parent.hash, shorter)
        return parent

    async def _kept_before(self, place: Place) -> Point | None:
        if self._layout is None:
            self._layout = Layout(await self._engine.lines.branches(self._line))
        for end in self._layout.stretches(place):
            last = Place(end.branch, end.seq - 1) if end == place else end
            found = await self._engine.lines.last_kept(self._line, last)
            if found is not None:
                return found
        return None

    async def _removal(self, point: Point, path: Path) -> Origin | None:
        """The last step up to this one that may have removed a place which is not there."""
        keys = self._engine.ground.codec.pack_items(path)
        if self._layout is None:
            self._layout = Layout(await self._engine.lines.branches(self._line))
        for end in self._layout.stretches(Place(*point[:2])):
            last = end.seq
            while last >= 0:
                start = max(0, last + 1 - _PAGE)
                scan = Scan(STEPS, (*self._line, end.branch), (start,), (last + 1,), reverse=True)
                (rows,) = await self._engine.ground.backend.read([scan])
                for row in rows:
                    at = Point.of(row)
                    if not at.pruned and _touches(self._opened(row), keys):
                        return Origin(*at[:2])
                last = start - 1
        return None

    # What a step changed ----------------------------------------------------------------------------------------

    async def _changed(self, older: Point | None, step: Point, path: Path) -> tuple[list[Edit], Path | None]:
        """What a step changed of a place, and where the place was before; None if it was nowhere."""
        channel = self._engine.ground.codec.pack(path[0])
        edits = await differences(self._engine, Spot(self._line, older), Spot(self._line, step), only=channel)
        before = None if older is None else _place_before(edits, path)
        return [part for edit in edits for part in _within(edit, path, before)], before

    async def _pruned(
        self, older: Point | None, path: Path, found: tuple[Look, Found] | None
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

    async def _place_in(self, step: Point, path: Path, look: Look, found: Found) -> Path:
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

    async def _written(self, step: Point, stem: Path, found: Found) -> list[int]:
        """The places in a list whose items a step wrote."""
        assert found.value is not None  # noqa: S101 - a list has a value
        (rows,) = await self._engine.ground.backend.read([Get(STEPS, [(*self._line, *step[:2])])])
        operation = _operation(self._opened(rows[0]), self._engine.ground.codec.pack_items(stem))
        if not isinstance(operation, EditList):
            return list(range(views.length(found.value) or 0))
        places: list[int] = []
        at = 0
        for part in operation.parts:
            length = part.length if isinstance(part, Keep) else 1 if isinstance(part, Change) else len(part)
            if not isinstance(part, Keep):
                places += range(at, at + length)
            at += length
        return places

    async def _rewrote(self, origins: Iterable[Origin], path: Path) -> set[Origin]:
        """Those of some steps that set a place, or one above it, as a whole: parts of it may be as they were."""
        found = set()
        wanted = list(dict.fromkeys(origins))
        keys = self._engine.ground.codec.pack_items(path)
        for begin in range(0, len(wanted), _PAGE):
            places = [(*self._line, *origin) for origin in wanted[begin : begin + _PAGE]]
            (rows,) = await self._engine.ground.backend.read([Get(STEPS, places)])
            for row in rows:
                at = Point.of(row)
                if not at.pruned and isinstance(_operation(self._opened(row), keys), Set):
                    found.add(Origin(*at[:2]))
        return found

    def _opened(self, row: Row) -> EditMap:
        return open_step(self._line, row, self._engine.ground.max_bytes).edit

    # Many places at once ----------------------------------------------------------------------------------------

    async def item_origins(self, look: Look, found: Found, path: Path, start: int, stop: int) -> list[Origin]:
        """The steps that wrote items of a list."""
        items = await look.items(found, start, stop)
        origins: list[Origin] = [item.origin for item in items]
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
            written = [item.value for item in await _all_items(*then)]
            earlier = await _all_items(*before)
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

    async def entry_origins(self, look: Look, path: Path, keys: Sequence[Any]) -> list[Origin]:
        """The steps that wrote entries of a dict."""
        origins: list[Origin] = []
        groups: dict[Origin, list[int]] = {}
        for number, key in enumerate(keys):
            found = await look.place((*path, key))
            origins.append(_NOWHERE if found is None else found.origin)
            groups.setdefault(origins[-1], []).append(number)
        rewrote = await self._rewrote(groups, path)
        while groups:
            origin, group = groups.popitem()
            step = await self.step(origin) if origin in rewrote else None
            older = None if step is None else await self.parent(step)
            if step is None or older is None:
                continue
            then, before = Look(self._engine, self._line, step), Look(self._engine, self._line, older)
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


async def _all_items(look: Look, found: Found) -> list[Item]:
    length = 0 if found.value is None else views.length(found.value) or 0
    return await look.items(found, 0, length)


def _grouped(items: Any) -> dict[Origin, list[tuple[int, Item]]]:
    groups: dict[Origin, list[tuple[int, Item]]] = {}
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


def _operation(edit: EditMap, keys: Sequence[bytes]) -> Operation | None:
    """What an edit does at a path, or at a place above it as a whole; None if nothing."""
    found: Operation | None = edit
    for key in keys:
        if not isinstance(found, EditMap):
            return found
        found = dict(found.put).get(key)
    return found


def _touches(operation: Operation, keys: Sequence[bytes]) -> bool:
    """Whether an operation may have changed what is, or was, at a path."""
    if not isinstance(operation, EditMap) or not keys:
        return True
    if keys[0] in operation.removed:
        return True
    return any(key == keys[0] and _touches(change, keys[1:]) for key, change in operation.put)


def inside(tree: Any, path: Path) -> Any:
    """What lies at a path in a JSON form; `NOTHING` if nothing does."""
    for part in path:
        tree = fields_of(tree)
        if type(tree) is list:
            tree = tree[part] if type(part) is int and -len(tree) <= part < len(tree) else NOTHING
        elif type(tree) is not dict:
            return NOTHING
        elif type(pairs := tree.get("$dict")) is list:
            tree = next((value for key, value in pairs if type(key) is type(part) and key == part), NOTHING)
        else:
            tree = tree.get(part, NOTHING) if type(part) is str else NOTHING
    return tree


def _within(edit: Edit, path: Path, before: Path | None) -> list[Edit]:
    """An edit, as far as it is one of a place: the same if it lies below, or what it does there if it lies above."""
    if edit.quiet:
        return []
    mine = before if edit.kind == "remove" else path  # what is gone is told by its place in the old state
    if mine is None:
        return []
    if edit.path[: len(mine)] == mine:
        return [edit]
    if mine[: len(edit.path)] != edit.path or (edit.old is NOTHING and edit.new is NOTHING):
        return []
    rest = path[len(edit.path) :]
    old, new = (NOTHING if tree is NOTHING else inside(tree, rest) for tree in (edit.old, edit.new))
    if old is NOTHING or new is NOTHING:
        kind = edit.kind if old is new else "add" if old is NOTHING else "remove"
        return [] if old is new else [Edit(kind, path, path, None, old, new)]
    return [] if encode(old) == encode(new) else [Edit("change", path, path, None, old, new)]


def _place_before(edits: Sequence[Edit], path: Path) -> Path | None:
    """Where a place was in the old state: items before it may have come or gone; None if it was nowhere."""
    for edit in edits:
        if edit.kind == "add" and not edit.quiet and path[: len(edit.path)] == edit.path:
            return path if type(edit.path[-1]) is not int else None
        if edit.kind == "change" and edit.path[: len(path)] == path:
            return edit.was[: len(path)]
    before: list[Any] = []
    for depth, part in enumerate(path):
        if type(part) is int:
            stem = path[:depth]
            came = {e.path[depth] for e in edits if _is_item(e, "add", stem, path)}
            went = {e.was[depth] for e in edits if _is_item(e, "remove", tuple(before), path)}
            if came or went:
                part = _index_before(part, came, went)
        before.append(part)
    return tuple(before)


def _is_item(edit: Edit, kind: str, stem: Path, path: Path) -> bool:
    place = edit.was if kind == "remove" else edit.path
    return edit.kind == kind and len(place) == len(stem) + 1 <= len(path) and place[:-1] == stem


def _index_before(index: int, came: set[int], went: set[int]) -> int:
    """The place in the old list of an item that stayed."""
    rank = index - sum(1 for place in came if place < index)
    for place in sorted(went):
        if place <= rank:
            rank += 1
    return rank
