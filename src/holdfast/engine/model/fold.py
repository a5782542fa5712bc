"""Folding: steps into nodes, and states out of nodes.

Folding changes how a state is stored, never its content, and no commit hash. It loads the nodes along the paths that
the steps change and rewrites those paths; everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.engine.model import list_tree, map_tree
from holdfast.engine.model.drafts import Draft, ListDraft, MapDraft, as_dict, as_list, draft
from holdfast.engine.model.large_pointers import LARGE, is_pointer, pointer_to
from holdfast.engine.model.nodes import ListItem, ListRoot, MapEntry, MapRoot, Slot, WrittenBy
from holdfast.engine.model.operations import EditMap, KeepRun, LoadLarge
from holdfast.engine.model.packed_state import Packed, PackedMap
from holdfast.engine.model.workspace import Rounds, Workspace

_APART = 2048
"""A list or dict of more packed bytes than this gets nodes of its own."""


def fold(ws: Workspace, root: MapRoot, steps: Iterable[tuple[WrittenBy, EditMap]], load: LoadLarge) -> Rounds[MapRoot]:
    """Return the state after these steps, in nodes.

    New nodes and large values are left in the workspace. `load` is called for large values that a step changes in part.
    """
    state = yield from draft(ws, root, steps, load)
    return (yield from _finish_map(ws, state))


def read(ws: Workspace, root: MapRoot) -> Rounds[PackedMap]:
    """Return the whole state, packed; large values as pointers. One round per level of the tree."""
    yield from ws.load_all([] if root.child is None else [root.child])
    return read_map(ws, root)


def read_map(ws: Workspace, root: MapRoot) -> PackedMap:
    """Return a dict whose nodes are loaded."""
    return {entry.key: read_slot(ws, entry.slot) for entry in map_tree.entries(ws, root)}


def read_slot(ws: Workspace, slot: Slot) -> Packed:
    """Return a value whose nodes are loaded."""
    if isinstance(slot, bytes):
        return slot
    if isinstance(slot, ListRoot):
        return list_tree.values(ws, slot)
    return read_map(ws, slot)


# From drafts to nodes -----------------------------------------------------------------------------------------


def _finish_map(ws: Workspace, draft: MapDraft) -> Rounds[MapRoot]:
    changes: dict[bytes, MapEntry | None] = {}
    for key, entry in draft.changes.items():
        if entry is None:
            changes[key] = None
        else:
            slot = entry.value
            if not isinstance(slot, bytes) or len(slot) > _APART:
                slot = yield from _finish(ws, slot, entry.origin)
            changes[key] = MapEntry(key, entry.rank, slot, entry.origin)
    return (yield from map_tree.update(ws, draft.root, changes, draft.ranks))


def _finish(ws: Workspace, value: Draft, origin: WrittenBy) -> Rounds[Slot]:
    if isinstance(value, bytes) and len(value) > _APART and not is_pointer(value):
        # Long enough for nodes of its own, if it has parts.
        value = as_list(value, origin) or as_dict(value, origin) or value
    if isinstance(value, ListDraft):
        pieces: list_tree.Pieces = [
            piece if isinstance(piece, KeepRun) else [ListItem(_aside(ws, item.value), item.origin) for item in piece]
            for piece in value.pieces
        ]
        return (yield from list_tree.assemble(ws, value.root, pieces))
    if isinstance(value, MapDraft):
        return (yield from _finish_map(ws, value))
    return _aside(ws, value) if isinstance(value, bytes) else value


def _aside(ws: Workspace, value: bytes) -> bytes:
    """Return a value, or a pointer to it if it is too large for a node."""
    if len(value) <= LARGE:
        return value
    pointer = pointer_to(value, ws.salt).encode()
    ws.objects[pointer] = value
    return pointer
