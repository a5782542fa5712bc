"""Folded states with changes that are not folded yet.

A draft is a tree of nodes and what steps changed of it; only the paths that they change are read. Folding turns it into
nodes; a lazy reader reads only the parts it needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from msgspec import Struct, field

from holdfast.engine.model import list_tree, map_tree
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.nodes import ListItem, ListRoot, MapRoot, Slot, WrittenBy
from holdfast.engine.model.operations import (
    ChangeItem,
    Combine,
    EditList,
    EditMap,
    EditText,
    KeepRun,
    LoadLarge,
    Operation,
    Set,
    apply,
)
from holdfast.engine.model.packed_state import PackedMap, as_items, as_map, flatten
from holdfast.engine.model.workspace import Rounds, Workspace
from holdfast.errors import CorruptError

EMPTY = MapRoot(None, 0)
"""The root of a state without channels."""


class ListDraft(Struct):
    """A list in nodes, and the pieces that it now consists of."""

    root: ListRoot
    pieces: list_tree.Pieces


class MapDraft(Struct):
    """A dict in nodes, and the entries that differ from there; None for those that are removed."""

    root: MapRoot
    ranks: int
    changes: dict[bytes, EntryDraft | None] = field(default_factory=dict)


class EntryDraft(Struct):
    """An entry of a dict: its rank in the order, its value, and the step that wrote it."""

    rank: int
    value: Draft
    origin: WrittenBy


Draft: TypeAlias = Slot | ListDraft | MapDraft
"""A value: packed, in nodes, or in nodes and changed."""


def draft(
    ws: Workspace, root: MapRoot, steps: Iterable[tuple[WrittenBy, EditMap]], load: LoadLarge
) -> Rounds[MapDraft]:
    """Return the state after these steps. Loads only what they change; `load` loads large values changed in part."""
    state, steps = MapDraft(root, root.ranks), list(steps)
    if any(edit.removed or edit.moved for _, edit in steps):
        for origin, edit in steps:
            yield from edit_map(ws, state, edit, origin, load)
        return state
    # What a later step sets as a whole is skipped, and nodes are read once for all keys. The order of keys here is that
    # in which they were put first, which determines the ranks of new ones.
    effective: dict[bytes, list[tuple[WrittenBy, Operation]]] = {}
    for origin, edit in steps:
        for key, operation in edit.put:
            if key in effective and not isinstance(operation, Set):
                effective[key].append((origin, operation))
            else:
                effective[key] = [(origin, operation)]
    yield from _look_up(ws, state, effective)
    for key, operations in effective.items():
        for origin, operation in operations:
            yield from _put(ws, state, key, operation, origin, load)
    return state


# Editing ----------------------------------------------------------------------------------------------------


def edit_map(ws: Workspace, draft: MapDraft, edit: EditMap, origin: WrittenBy, load: LoadLarge) -> Rounds[None]:
    """Change a draft."""
    yield from _look_up(ws, draft, {key for key, _ in edit.put}.union(edit.removed, edit.moved))
    for key in edit.removed:
        if draft.changes.get(key) is None:
            raise CorruptError("a step removes an entry that does not exist", where=key.hex())
        draft.changes[key] = None
    for key, operation in edit.put:
        yield from _put(ws, draft, key, operation, origin, load)
    for key in edit.moved:
        entry = draft.changes.get(key)
        if entry is None:
            raise CorruptError("a step moves an entry that does not exist", where=key.hex())
        entry.rank = draft.ranks
        draft.ranks += 1


def _look_up(ws: Workspace, draft: MapDraft, keys: Iterable[bytes]) -> Rounds[None]:
    """Load the stored entries of these keys."""
    changes = draft.changes
    missing = [key for key in keys if key not in changes]
    if missing:
        stored = yield from map_tree.lookup(ws, draft.root, missing)
        for key, entry in stored.items():
            changes[key] = EntryDraft(entry.rank, entry.slot, entry.origin)


def _put(
    ws: Workspace, draft: MapDraft, key: bytes, operation: Operation, origin: WrittenBy, load: LoadLarge
) -> Rounds[None]:
    entry = draft.changes.get(key)
    if entry is None:
        entry = draft.changes[key] = EntryDraft(draft.ranks, b"", origin)
        draft.ranks += 1
        value: Draft | None = None
    else:
        value = entry.value
    if isinstance(operation, Set):
        packed = operation.packed
        entry.value = packed if isinstance(packed, bytes) else _split_value(packed, origin)
    else:
        entry.value = yield from _change(ws, value, operation, entry.origin, origin, load)
    entry.origin = origin


def _change(
    ws: Workspace,
    value: Draft | None,
    operation: EditList | EditMap | EditText | Combine,
    before: WrittenBy,
    origin: WrittenBy,
    load: LoadLarge,
) -> Rounds[Draft]:
    """Return the value after an edit of a draft, whose parts were written by `before`."""
    if isinstance(value, bytes) and is_pointer(value):
        value = load(value)
    if isinstance(operation, Combine):
        if value is None:
            return operation.operand
        new = operation.items
        if new is not None and (items := as_list(value, before)) is not None:
            items.pieces = [*items.pieces, [ListItem(item, origin) for item in new]]
            return items
        if not isinstance(value, bytes):
            raise CorruptError("a step applies an operator to a value of another type")
    if isinstance(operation, EditText | Combine):
        return flatten(apply(operation, value if isinstance(value, bytes) else None))
    if isinstance(operation, EditList):
        list_draft = as_list(value, before)
        if list_draft is None:
            raise CorruptError("a step changes items of a list, but the value is not a list")
        yield from _edit_list(ws, list_draft, operation, origin, load)
        return list_draft
    map_draft = as_dict(value, before)
    if map_draft is None:
        raise CorruptError("a step changes entries of a dict, but the value is not a dict")
    yield from edit_map(ws, map_draft, operation, origin, load)
    return map_draft


def as_list(value: Draft | None, origin: WrittenBy) -> ListDraft | None:
    """Return a value as a draft of a list; None if it is not a list."""
    if isinstance(value, ListRoot):
        return ListDraft(value, [KeepRun(0, list_tree.size(value))])
    if isinstance(value, bytes):
        items = as_items(value)
        return None if items is None else _split_list(items, origin)
    return value if isinstance(value, ListDraft) else None


def as_dict(value: Draft | None, origin: WrittenBy) -> MapDraft | None:
    """Return a value as a draft of a dict; None if it is not a dict."""
    if isinstance(value, MapRoot):
        return MapDraft(value, value.ranks)
    if isinstance(value, bytes):
        entries = as_map(value)
        return None if entries is None else _split_dict(entries, origin)
    return value if isinstance(value, MapDraft) else None


def _split_value(packed: list[bytes] | PackedMap, origin: WrittenBy) -> ListDraft | MapDraft:
    return _split_list(packed, origin) if isinstance(packed, list) else _split_dict(packed, origin)


def _split_list(items: list[bytes], origin: WrittenBy) -> ListDraft:
    return ListDraft(ListRoot(None), [[ListItem(item, origin) for item in items]])


def _split_dict(entries: PackedMap, origin: WrittenBy) -> MapDraft:
    drafts: dict[bytes, EntryDraft | None] = {
        key: EntryDraft(rank, flatten(entry), origin) for rank, (key, entry) in enumerate(entries.items())
    }
    return MapDraft(EMPTY, len(drafts), drafts)


def _edit_list(ws: Workspace, draft: ListDraft, edit: EditList, origin: WrittenBy, load: LoadLarge) -> Rounds[None]:
    length = sum(piece.length if isinstance(piece, KeepRun) else len(piece) for piece in draft.pieces)
    pieces: list_tree.Pieces = []
    for part in edit.parts:
        if isinstance(part, KeepRun | ChangeItem):
            keep = part if isinstance(part, KeepRun) else KeepRun(part.place, 1)
            if keep.start + keep.length > length:
                raise CorruptError(
                    f"a step keeps {keep.length} items from index {keep.start}, but the list has only {length}"
                )
            if keep.length == length and not pieces and keep is part:
                pieces += draft.pieces  # most steps append to the list
                continue
            kept = list_tree.slice_pieces(draft.pieces, *keep)
            if isinstance(part, ChangeItem):
                kept = [[ListItem((yield from _changed_item(ws, draft, kept[0], part.operation, load)), origin)]]
            pieces += kept
        else:
            pieces.append([ListItem(value, origin) for value in part])
    draft.pieces = pieces


def _changed_item(
    ws: Workspace, draft: ListDraft, piece: KeepRun | list[ListItem], operation: Operation, load: LoadLarge
) -> Rounds[bytes]:
    if isinstance(piece, KeepRun):
        piece = yield from list_tree.slice_items(ws, draft.root, piece.start, piece.start + piece.length)
    return flatten(apply(operation, piece[0].value, load))
