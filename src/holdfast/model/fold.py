"""Folding: a tail of steps into nodes, and states out of nodes.

Folding changes how a state is stored, never what it is, and no commit hash. It loads the nodes along the paths that the
steps touch and writes those paths anew; everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.errors import Corrupt
from holdfast.model import listtree, maptree
from holdfast.model.nodes import Entry, Item, ListRoot, MapRoot, Origin, Slot
from holdfast.model.objects import LARGE, is_pointer, pointer_to
from holdfast.model.operations import (
    Change,
    EditList,
    EditMap,
    EditText,
    Keep,
    LoadLarge,
    Operation,
    Set,
    apply,
)
from holdfast.model.packed import Packed, PackedMap, as_items, as_map, flatten
from holdfast.model.trees import Rounds, Workspace

EMPTY = MapRoot(None, 0)
"""The root of a state without channels."""

_APART = 2048
"""A list or dict of more packed bytes than this gets nodes of its own."""


@dataclass
class _ListDraft:
    root: ListRoot
    pieces: listtree.Pieces


@dataclass
class _MapDraft:
    root: MapRoot
    ranks: int
    changes: dict[bytes, _EntryDraft | None] = field(default_factory=dict)


@dataclass
class _EntryDraft:
    rank: int
    value: _Draft
    origin: Origin


_Draft: TypeAlias = Slot | _ListDraft | _MapDraft


def fold(ws: Workspace, root: MapRoot, steps: Iterable[tuple[Origin, EditMap]], load: LoadLarge) -> Rounds[MapRoot]:
    """The state after these steps, in nodes. New nodes and large values are left in the workspace.

    `load` is asked for large values that a step changes in part.
    """
    draft = _MapDraft(root, root.ranks)
    for origin, edit in steps:
        yield from _edit_map(ws, draft, edit, origin, load)
    return (yield from _finish_map(ws, draft))


def read(ws: Workspace, root: MapRoot) -> Rounds[PackedMap]:
    """The whole state, packed; large values as pointers. One round per level of the tree."""
    yield from ws.load_all([] if root.child is None else [root.child])
    return _read_map(ws, root)


def read_channel(ws: Workspace, root: MapRoot, key: bytes) -> Rounds[Packed | None]:
    """One channel of a state, or None if it has no such channel. Loads nothing of the others."""
    entry = (yield from maptree.lookup(ws, root, [key])).get(key)
    if entry is None:
        return None
    if not isinstance(entry.slot, bytes) and entry.slot.child is not None:
        yield from ws.load_all([entry.slot.child])
    return _read_slot(ws, entry.slot)


def _read_map(ws: Workspace, root: MapRoot) -> PackedMap:
    return {entry.key: _read_slot(ws, entry.slot) for entry in maptree.entries(ws, root)}


def _read_slot(ws: Workspace, slot: Slot) -> Packed:
    if isinstance(slot, bytes):
        return slot
    if isinstance(slot, ListRoot):
        return [item.value for item in listtree.items(ws, slot)]
    return _read_map(ws, slot)


# Editing drafts -----------------------------------------------------------------------------------------------


def _edit_map(ws: Workspace, draft: _MapDraft, edit: EditMap, origin: Origin, load: LoadLarge) -> Rounds[None]:
    touched = {*edit.removed, *edit.moved, *(key for key, _ in edit.put)} - draft.changes.keys()
    stored = yield from maptree.lookup(ws, draft.root, touched)
    for key in stored:
        draft.changes[key] = _EntryDraft(stored[key].rank, stored[key].slot, stored[key].origin)
    for key in edit.removed:
        if draft.changes.get(key) is None:
            raise Corrupt("a step removes an entry that is not there", where=key.hex())
        draft.changes[key] = None
    for key, operation in edit.put:
        entry = draft.changes.get(key)
        if entry is None:
            entry = draft.changes[key] = _EntryDraft(draft.ranks, b"", origin)
            draft.ranks += 1
            entry.value = yield from _change(ws, None, operation, origin, origin, load)
        else:
            entry.value = yield from _change(ws, entry.value, operation, entry.origin, origin, load)
            entry.origin = origin
    for key in edit.moved:
        entry = draft.changes.get(key)
        if entry is None:
            raise Corrupt("a step moves an entry that is not there", where=key.hex())
        entry.rank = draft.ranks
        draft.ranks += 1


def _change(
    ws: Workspace, value: _Draft | None, operation: Operation, before: Origin, origin: Origin, load: LoadLarge
) -> Rounds[_Draft]:
    """The value that an operation makes of a drafted one, whose parts stem from `before`."""
    if isinstance(operation, Set):
        return operation.value
    if isinstance(value, bytes) and is_pointer(value):
        value = load(value)
    if isinstance(operation, EditText):
        return flatten(apply(operation, value if isinstance(value, bytes) else None))
    if isinstance(operation, EditList):
        list_draft = _as_list(value, before)
        if list_draft is None:
            raise Corrupt("a step changes items of a list where there is none")
        yield from _edit_list(ws, list_draft, operation, origin, load)
        return list_draft
    map_draft = _as_map(value, before)
    if map_draft is None:
        raise Corrupt("a step changes entries of a dict where there is none")
    yield from _edit_map(ws, map_draft, operation, origin, load)
    return map_draft


def _as_list(value: _Draft | None, origin: Origin) -> _ListDraft | None:
    if isinstance(value, ListRoot):
        return _ListDraft(value, [Keep(0, listtree.size(value))])
    if isinstance(value, bytes):
        items = as_items(value)
        return None if items is None else _ListDraft(ListRoot(None), [[Item(item, origin) for item in items]])
    return value if isinstance(value, _ListDraft) else None


def _as_map(value: _Draft | None, origin: Origin) -> _MapDraft | None:
    if isinstance(value, MapRoot):
        return _MapDraft(value, value.ranks)
    if isinstance(value, bytes):
        entries = as_map(value)
        if entries is None:
            return None
        drafts = {key: _EntryDraft(rank, flatten(entry), origin) for rank, (key, entry) in enumerate(entries.items())}
        return _MapDraft(EMPTY, len(drafts), dict(drafts))
    return value if isinstance(value, _MapDraft) else None


def _edit_list(ws: Workspace, draft: _ListDraft, edit: EditList, origin: Origin, load: LoadLarge) -> Rounds[None]:
    length = sum(piece.length if isinstance(piece, Keep) else len(piece) for piece in draft.pieces)
    pieces: listtree.Pieces = []
    for part in edit.parts:
        if isinstance(part, Keep | Change):
            keep = part if isinstance(part, Keep) else Keep(part.place, 1)
            if keep.start + keep.length > length:
                raise Corrupt(f"a step keeps {keep.length} items from {keep.start} on of only {length}")
            kept = listtree.slice_pieces(draft.pieces, *keep)
            if isinstance(part, Change):
                kept = [[Item((yield from _changed_item(ws, draft, kept[0], part.operation, load)), origin)]]
            pieces += kept
        else:
            pieces.append([Item(value, origin) for value in part])
    draft.pieces = pieces


def _changed_item(
    ws: Workspace, draft: _ListDraft, piece: Keep | list[Item], operation: Operation, load: LoadLarge
) -> Rounds[bytes]:
    if isinstance(piece, Keep):
        piece = yield from listtree.slice_items(ws, draft.root, piece.start, piece.start + piece.length)
    return flatten(apply(operation, piece[0].value, load))


# From drafts to nodes -----------------------------------------------------------------------------------------


def _finish_map(ws: Workspace, draft: _MapDraft) -> Rounds[MapRoot]:
    changes: dict[bytes, Entry | None] = {}
    for key, entry in draft.changes.items():
        if entry is None:
            changes[key] = None
        else:
            slot = yield from _finish(ws, entry.value, entry.origin)
            changes[key] = Entry(key, entry.rank, slot, entry.origin)
    return (yield from maptree.update(ws, draft.root, changes, draft.ranks))


def _finish(ws: Workspace, value: _Draft, origin: Origin) -> Rounds[Slot]:
    if isinstance(value, bytes) and len(value) > _APART and not is_pointer(value):
        # Long enough to be worth its own nodes, if it has parts.
        value = _as_list(value, origin) or _as_map(value, origin) or value
    if isinstance(value, _ListDraft):
        pieces: listtree.Pieces = [
            piece if isinstance(piece, Keep) else [Item(_aside(ws, item.value), item.origin) for item in piece]
            for piece in value.pieces
        ]
        return (yield from listtree.assemble(ws, value.root, pieces))
    if isinstance(value, _MapDraft):
        return (yield from _finish_map(ws, value))
    return _aside(ws, value) if isinstance(value, bytes) else value


def _aside(ws: Workspace, value: bytes) -> bytes:
    """A value, or the pointer that stands for it if it is too large to lie in a node."""
    if len(value) <= LARGE:
        return value
    pointer = pointer_to(value).encode()
    ws.objects[pointer] = value
    return pointer
