"""The difference of two folded states, reading only what differs.

Two trees are walked together. Nodes that are the same on both sides have the same id and are not read; segments with
the same items, written by other steps or in another line, have the same digest. The result is a *delta*: the old and
the new packed values, no more of them than needed to see what changed.

The difference of a folded state and a packed one, reading only what differs.

A writer that has only the nodes of the last state in memory packs the new one and compares: segments of a list whose
digest is that of the new items at their position are not read at all.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from holdfast.codec import msgpack
from holdfast.engine.model import draft_reader, list_tree, map_tree, sequences
from holdfast.engine.model.diff import MAX_EDITS, NOTHING, ListParts, diff, diff_lists, joined, moved
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.nodes import ChildRef, ListRoot, MapEntry, MapRoot, NodeId, Slot, digest_items
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, KeepRun, Operation, set_to
from holdfast.engine.model.packed_state import Packed, PackedMap, as_items, as_map
from holdfast.engine.model.workspace import Rounds, Workspace

T = TypeVar("T")

Asked: TypeAlias = tuple[list[NodeId], list[NodeId]]
"""The nodes that a walk needs of the old side and of the new one."""

Walk: TypeAlias = Generator[Asked, tuple[Mapping[NodeId, bytes], Mapping[NodeId, bytes]], T]
"""A computation that asks for nodes of both sides, round by round, and ends with a T."""


_FEW = 2
"""So few segments are read without comparing digests."""


class Replaced(NamedTuple):
    """A value that was replaced. None: the side has nothing there."""

    old: Packed | None
    new: Packed | None


class Hunk(NamedTuple):
    """Items of the old list from `start` on that are replaced by those of the new list from `at` on."""

    start: int
    at: int
    old: Sequence[bytes]
    new: Sequence[bytes]


class ListDelta(NamedTuple):
    """A list in which some runs of items changed. A hunk may contain equal items, too."""

    hunks: tuple[Hunk, ...]


class MapDelta(NamedTuple):
    """A dict in which some entries changed, by packed key; and whether those that stayed are in another order."""

    entries: tuple[tuple[bytes, Delta], ...]
    reordered: bool = False


Delta: TypeAlias = Replaced | ListDelta | MapDelta


class FoldedSide(NamedTuple):
    """A folded state, and the nodes of it that are loaded: all of them, if it is `whole`."""

    ws: Workspace
    root: MapRoot
    whole: bool = False


def diff_trees(old: FoldedSide, new: FoldedSide, only: bytes | None = None) -> Walk[MapDelta | Replaced]:
    """Return the difference of two states; if `only` one channel matters, of that one, by its packed name."""
    return (yield from _Differ(old, new).maps(old.root, new.root, only))


def _on_old(rounds: Rounds[T]) -> Walk[T]:
    """Run a computation over the old side's nodes."""
    return _on_side(rounds, 0)


def _on_new(rounds: Rounds[T]) -> Walk[T]:
    """Run a computation over the new side's nodes."""
    return _on_side(rounds, 1)


def _on_side(rounds: Rounds[T], side: int) -> Walk[T]:
    try:
        wanted = next(rounds)
        while True:
            wanted = rounds.send((yield ([], wanted) if side else (wanted, []))[side])
    except StopIteration as done:
        result: T = done.value
        return result


def _together(walks: Sequence[Walk[T]]) -> Walk[list[T]]:
    """Run several walks at once: the nodes that they need at the same time are read in one round."""
    result: dict[int, T] = {}
    request: dict[int, Asked] = {}

    def go_on(number: int, answer: tuple[Mapping[NodeId, bytes], Mapping[NodeId, bytes]] | None) -> None:
        try:
            request[number] = next(walks[number]) if answer is None else walks[number].send(answer)
        except StopIteration as done:
            result[number] = done.value
            request.pop(number, None)

    for number in range(len(walks)):
        go_on(number, None)
    while request:
        old = list(dict.fromkeys(id for request_ids, _ in request.values() for id in request_ids))
        new = list(dict.fromkeys(id for _, request_ids in request.values() for id in request_ids))
        answer = yield old, new
        for number in list(request):
            go_on(number, answer)
    return [result[number] for number in range(len(walks))]


class _Differ:
    """Walks two trees."""

    def __init__(self, old: FoldedSide, new: FoldedSide) -> None:
        self._old = old
        self._new = new

    def _fetch(self, old: Iterable[ChildRef], new: Iterable[ChildRef]) -> Walk[None]:
        """Load nodes of both sides, in one round."""
        yield from _together(
            [
                _on_old(self._old.ws.fetch([child.id for child in old])),
                _on_new(self._new.ws.fetch([child.id for child in new])),
            ]
        )

    def _replaced(self, old: Slot | None, new: Slot | None) -> Walk[Delta | None]:
        """Return both values whole."""
        one, other = yield from _together(
            [
                _on_old(_whole(self._old.ws, old)),
                _on_new(_whole(self._new.ws, new)),
            ]
        )
        return Replaced(one, other)

    def _value(self, old: Slot | None, new: Slot | None) -> Walk[Delta | None]:
        if old is None or new is None:
            return (yield from self._replaced(old, new))
        if old == new:
            return None
        if isinstance(old, bytes) and isinstance(new, bytes):
            return Replaced(old, new)
        if isinstance(old, MapRoot) and isinstance(new, MapRoot):
            delta = yield from self.maps(old, new)
            return None if delta == _NOTHING else delta
        old_list, new_list = _as_list(old), _as_list(new)
        if old_list is not None and new_list is not None:
            hunks = yield from self._lists(old_list, new_list)
            return ListDelta(tuple(hunks)) if hunks else None
        # Of a dict that has nodes of its own and one that does not, both are read.
        replaced = yield from self._replaced(old, new)
        if isinstance(replaced, Replaced) and _is_same(replaced):
            return None
        return replaced

    # Dicts ----------------------------------------------------------------------------------------------------

    def maps(self, old: MapRoot, new: MapRoot, only: bytes | None = None) -> Walk[MapDelta | Replaced]:
        """Return the difference of two dicts. Those whose JSON form is not a plain object are returned whole."""
        if old.child == new.child:
            return _NOTHING
        before, after, unread = yield from self._different_entries(old, new)
        if (yield from self._is_odd(old, new)):
            replaced = yield from self._replaced(old, new)
            assert isinstance(replaced, Replaced)  # noqa: S101 - it is never None
            return replaced
        keys = [*after, *(key for key in before if key not in after)]
        keys = [key for key in keys if only in (None, key)]
        slots = [(_slot(before.get(key)), _slot(after.get(key))) for key in keys]
        deltas = yield from _together([self._value(*pair) for pair in slots])
        changed = tuple((key, delta) for key, delta in zip(keys, deltas, strict=True) if delta is not None)
        return MapDelta(changed, _reordered(before, after, unread))

    def _different_entries(
        self, old: MapRoot, new: MapRoot
    ) -> Walk[tuple[dict[bytes, MapEntry], dict[bytes, MapEntry], bool]]:
        """Return the entries of both, in order, except those in leaves that both have; and whether there are such."""
        left = [] if old.child is None else [old.child]
        right = [] if new.child is None else [new.child]
        unread = False
        while True:
            same = {child.id for child in left}.intersection(child.id for child in right)
            unread = unread or bool(same)
            left = [child for child in left if child.id not in same]
            right = [child for child in right if child.id not in same]
            height = max((child.height for child in (*left, *right)), default=0)
            if not height:
                break
            yield from self._fetch(_of_height(left, height), _of_height(right, height))
            left = _open_indexes(self._old.ws, left, height)
            right = _open_indexes(self._new.ws, right, height)
        yield from self._fetch(left, right)
        return _entries(self._old.ws, left), _entries(self._new.ws, right), unread

    def _is_odd(self, old: MapRoot, new: MapRoot) -> Walk[bool]:
        """Return whether one of two dicts has keys that are not text, or looks like a mark in JSON."""
        firsts = yield from _together(
            [_on_old(_first(self._old.ws, old.child)), _on_new(_first(self._new.ws, new.child))]
        )
        for root, first in zip((old, new), firsts, strict=True):
            if first is None or root.child is None:
                continue
            if not msgpack.is_str(first) or (root.child.size == 1 and msgpack.content(first).startswith(b"$")):
                return True
        return False

    # Lists ----------------------------------------------------------------------------------------------------

    def _lists(self, old: ListRoot | list[bytes], new: ListRoot | list[bytes]) -> Walk[list[Hunk]]:
        if isinstance(new, ListRoot) and self._new.whole:
            new = list_tree.values(self._new.ws, new)
        if isinstance(old, ListRoot) and self._old.whole:
            old = list_tree.values(self._old.ws, old)
        if isinstance(old, list) and isinstance(new, list):
            hunks = [Hunk(0, 0, old, new)]
        elif isinstance(new, list):
            assert isinstance(old, ListRoot)  # noqa: S101
            hunks = [(yield from _on_old(_against_list(self._old.ws, old, new)))]
        elif isinstance(old, list):
            hunk = yield from _on_new(_against_list(self._new.ws, new, old))
            hunks = [Hunk(hunk.at, hunk.start, hunk.new, hunk.old)]
        else:
            hunks = yield from self._in_nodes(old, new)
        return [hunk for hunk in hunks if list(hunk.old) != list(hunk.new)]

    def _in_nodes(self, old: ListRoot, new: ListRoot) -> Walk[list[Hunk]]:
        left = [] if old.child is None else [old.child]
        right = [] if new.child is None else [new.child]
        start = 0
        while True:
            same = _same_from_start(left, right)
            start += sum(child.size for child in left[:same])
            left, right = left[same:], right[same:]
            same = _same_from_start(left[::-1], right[::-1])
            left, right = left[: len(left) - same], right[: len(right) - same]
            height = max((child.height for child in (*left, *right)), default=0)
            if not height:
                break
            yield from self._fetch(_of_height(left, height), _of_height(right, height))
            left = _open_indexes(self._old.ws, left, height)
            right = _open_indexes(self._new.ws, right, height)
        return (yield from self._different_segments(left, right, start))

    def _different_segments(self, left: list[ChildRef], right: list[ChildRef], start: int) -> Walk[list[Hunk]]:
        runs = sequences.alignment([child.digest for child in left], [child.digest for child in right])
        gaps: list[tuple[int, int, list[ChildRef], list[ChildRef]]] = []
        done_left = done_right = 0
        place, at = start, start
        for run in runs:
            gap_left, gap_right = left[done_left : run.start], right[done_right : run.at]
            if gap_left or gap_right:
                gaps.append((place, at, gap_left, gap_right))
            kept = sum(child.size for child in left[run.start : run.start + run.length])
            place += sum(child.size for child in gap_left) + kept
            at += sum(child.size for child in gap_right) + kept
            done_left, done_right = run.start + run.length, run.at + run.length
        hunks = yield from _together([self._hunk(*gap) for gap in gaps])
        return hunks

    def _hunk(self, start: int, at: int, left: list[ChildRef], right: list[ChildRef]) -> Walk[Hunk]:
        """Compare runs of segments that differ. Of long ones, which may have much in common in segments split at other
        places, one side is read, and of the other what differs by its digest."""
        old, new = self._old.ws, self._new.ws
        if min(len(left), len(right)) <= _FEW:
            yield from self._fetch(left, right)
            return Hunk(start, at, _values(old, left), _values(new, right))
        if sum(child.id not in old.ids for child in left) < sum(child.id not in new.ids for child in right):
            yield from self._fetch(left, ())
            hunk = yield from _on_new(_against(new, right, _values(old, left)))
            return Hunk(start + hunk.at, at + hunk.start, hunk.new, hunk.old)
        yield from self._fetch((), right)
        hunk = yield from _on_old(_against(old, left, _values(new, right)))
        return Hunk(start + hunk.start, at + hunk.at, hunk.old, hunk.new)


_NOTHING = MapDelta(())


def _whole(ws: Workspace, slot: Slot | None) -> Rounds[Packed | None]:
    if slot is None:
        return None
    return (yield from draft_reader.whole(ws, slot))


def _slot(entry: MapEntry | None) -> Slot | None:
    return None if entry is None else entry.slot


def _as_list(slot: Slot) -> ListRoot | list[bytes] | None:
    if isinstance(slot, bytes):
        return None if is_pointer(slot) else as_items(slot)
    return slot if isinstance(slot, ListRoot) else None


def _is_same(replaced: Replaced) -> bool:
    """Return whether two forms of a dict are the same, in the same order."""
    old = None if replaced.old is None else as_map(replaced.old)
    new = None if replaced.new is None else as_map(replaced.new)
    return old is not None and new is not None and list(old.items()) == list(new.items())


def _of_height(children: list[ChildRef], height: int) -> list[ChildRef]:
    return [child for child in children if child.height == height]


def _open_indexes(ws: Workspace, children: list[ChildRef], height: int) -> list[ChildRef]:
    """Return the row with the children of its indexes of a height, which are loaded, in place of them."""
    row: list[ChildRef] = []
    for child in children:
        row += ws.children(child) if child.height == height else [child]
    return row


def _entries(ws: Workspace, leaves: list[ChildRef]) -> dict[bytes, MapEntry]:
    result = [entry for child in leaves for entry in ws.leaf(child).entries]
    return {entry.key: entry for entry in sorted(result, key=lambda entry: entry.rank)}


def _reordered(before: dict[bytes, MapEntry], after: dict[bytes, MapEntry], unread: bool) -> bool:
    kept = [key for key in before if key in after]
    if kept != [key for key in after if key in before]:
        return True
    # Ranks in the order are assigned once: an entry with a new rank is after all that existed.
    return unread and any(before[key].rank != after[key].rank for key in kept)


def _first(ws: Workspace, child: ChildRef | None) -> Rounds[bytes | None]:
    """Return the first key below a node."""
    if child is None:
        return None
    while child.height:
        yield from ws.fetch([child.id])
        child = ws.children(child)[0]
    yield from ws.fetch([child.id])
    return next((entry.key for entry in ws.leaf(child).entries), None)


def _against_list(ws: Workspace, root: ListRoot, items: list[bytes]) -> Rounds[Hunk]:
    """Return where a list in nodes differs from one in memory."""
    segments = [] if root.child is None else (yield from ws.load_indexes(root.child))
    return (yield from _against(ws, segments, items))


def _against(ws: Workspace, segments: list[ChildRef], items: list[bytes]) -> Rounds[Hunk]:
    """Return where a run of segments differs from items: segments whose digest is that of the items are not read."""
    first, start = matching(segments, items)
    last, end = matching_back(segments[first:], items[start:])
    unlike = segments[first : len(segments) - last]
    yield from ws.fetch(segment.id for segment in unlike)
    return Hunk(start, start, _values(ws, unlike), items[start : len(items) - end])


def _values(ws: Workspace, segments: list[ChildRef]) -> list[bytes]:
    return [value for segment in segments for value in ws.segment(segment).values]


def _same_from_start(left: Sequence[ChildRef], right: Sequence[ChildRef]) -> int:
    """Return how many nodes contain the same items, up to the first that does not."""
    count = 0
    for one, other in zip(left, right, strict=False):
        alike = one.id == other.id or (not one.height and not other.height and one.digest == other.digest)
        if not alike:
            break
        count += 1
    return count


def diff_folded(ws: Workspace, root: MapRoot, new: PackedMap, depth: int = 0) -> Rounds[EditMap]:
    """Return what a step from the folded state to the packed one changes."""
    if root.child is not None:
        leaves = yield from ws.load_indexes(root.child)
        yield from ws.fetch(leaf.id for leaf in leaves)
    old = {entry.key: entry.slot for entry in map_tree.entries(ws, root)}
    put: list[tuple[bytes, Operation]] = []
    for key, value in new.items():
        slot = old.get(key)
        change: Operation | None = (
            set_to(value) if slot is None else (yield from _diff_slot(ws, slot, value, depth + 1))
        )
        if change is not None:
            put.append((key, change))
    return EditMap(tuple(key for key in old if key not in new), tuple(put), moved(list(old), new))


def _diff_slot(ws: Workspace, slot: Slot, new: Packed, depth: int) -> Rounds[Operation | None]:
    if isinstance(slot, bytes):
        return diff(slot, new, depth)
    if isinstance(slot, MapRoot):
        entries = as_map(new)
        edit: Operation | None = None if entries is None else (yield from diff_folded(ws, slot, entries, depth))
    else:
        items = as_items(new)
        edit = None if items is None else (yield from _diff_list(ws, slot, items, depth))
    if edit == NOTHING:
        return None
    return set_to(new) if edit is None or depth >= MAX_EDITS else edit


def _diff_list(ws: Workspace, root: ListRoot, new: list[bytes], depth: int) -> Rounds[Operation]:
    segments = [] if root.child is None else (yield from ws.load_indexes(root.child))
    first, start = matching(segments, new)
    last, end = matching_back(segments[first:], new[start:])
    unlike = segments[first : len(segments) - last]
    yield from ws.fetch(segment.id for segment in unlike)
    old = [value for segment in unlike for value in ws.segment(segment).values]
    edit = diff_lists(old, new[start : len(new) - end], depth)
    if not isinstance(edit, EditList):
        return NOTHING
    parts: ListParts = [KeepRun(0, start)] if start else []
    parts += (_shifted(part, start) for part in edit.parts)
    if end:
        parts.append(KeepRun(list_tree.size(root) - end, end))
    return EditList(joined(parts))


def _shifted(part: KeepRun | ChangeItem | tuple[bytes, ...], by: int) -> KeepRun | ChangeItem | tuple[bytes, ...]:
    if isinstance(part, KeepRun):
        return KeepRun(part.start + by, part.length)
    return ChangeItem(part.place + by, part.operation) if isinstance(part, ChangeItem) else part


def matching(segments: list[ChildRef], new: list[bytes]) -> tuple[int, int]:
    """Return how many segments, from the start, contain exactly the new items, and how many items those are."""
    start = 0
    for i, segment in enumerate(segments):
        part = new[start : start + segment.size]
        if len(part) != segment.size or digest_items(part) != segment.digest:
            return i, start
        start += segment.size
    return len(segments), start


def matching_back(segments: list[ChildRef], new: list[bytes]) -> tuple[int, int]:
    """Return how many segments, from the end backwards, contain exactly the new items, and how many items those are."""
    end = len(new)
    for i, segment in enumerate(reversed(segments)):
        part = new[max(end - segment.size, 0) : end]
        if len(part) != segment.size or digest_items(part) != segment.digest:
            return i, len(new) - end
        end -= segment.size
    return len(segments), len(new) - end
