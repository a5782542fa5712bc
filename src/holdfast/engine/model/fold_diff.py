"""The difference of a folded state and a packed one, reading only what differs.

A writer that has only the nodes of the last state in memory packs the new one and compares: segments of a list whose
digest is that of the new items at their position are not read at all.
"""

from __future__ import annotations

from holdfast.engine.model import list_tree, map_tree
from holdfast.engine.model.diff import MAX_EDITS, NOTHING, ListParts, diff, diff_lists, joined, moved
from holdfast.engine.model.nodes import ChildRef, ListRoot, MapRoot, Slot, digest_items
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, KeepRun, Operation, set_to
from holdfast.engine.model.packed_state import Packed, PackedMap, as_items, as_map
from holdfast.engine.model.workspace import Rounds, Workspace


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
