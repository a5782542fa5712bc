"""Reading parts of a draft: a key of a dict, a run of a list. Loads only the nodes that they lie in."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.codec import msgpack
from holdfast.engine.model import list_tree, map_tree
from holdfast.engine.model.drafts import Draft, ListDraft, MapDraft, as_dict, as_list
from holdfast.engine.model.fold import read_slot
from holdfast.engine.model.nodes import ListItem, ListRoot, MapRoot, WrittenBy
from holdfast.engine.model.operations import KeepRun
from holdfast.engine.model.packed_state import Packed
from holdfast.engine.model.workspace import Rounds, Workspace

_NOWHERE = WrittenBy(0, 0)


def entry(ws: Workspace, value: Draft, path: Sequence[bytes]) -> Rounds[Draft | None]:
    """Return the value at a path of packed keys of dicts and indexes of lists; None if there is none."""
    result: Draft | None = value
    for key in path:
        if result is None:
            return None
        state = as_dict(result, _NOWHERE)
        if state is None:
            result = yield from _item(ws, result, key)
        else:
            written = yield from one(ws, state, key)
            result = None if written is None else written[0]
    return result


def parse_dict(value: Draft | None) -> MapDraft | None:
    """Return a value as a dict whose keys can be looked up one by one; None if it is not a dict."""
    return as_dict(value, _NOWHERE)


def _item(ws: Workspace, value: Draft, key: bytes) -> Rounds[Draft | None]:
    """Return the item of a list at a packed index; None if there is none."""
    size, index = length(value) or 0, msgpack.integer(key)
    if index is None or not -size <= index < size:
        return None
    index %= size
    return (yield from items(ws, value, index, index + 1))[0]


def one(ws: Workspace, state: MapDraft, key: bytes) -> Rounds[tuple[Draft, WrittenBy] | None]:
    """Return the value of a packed key, and the step that wrote it last; None if there is none."""
    if key in state.changes:
        change = state.changes[key]
        return None if change is None else (change.value, change.origin)
    stored = (yield from map_tree.lookup(ws, state.root, [key])).get(key)
    return None if stored is None else (stored.slot, stored.origin)


def is_dict(value: Draft) -> bool:
    """Return whether a value is a dict, without reading it."""
    return msgpack.is_map(value) if isinstance(value, bytes) else isinstance(value, MapRoot | MapDraft)


def keys(ws: Workspace, value: Draft) -> Rounds[list[bytes] | None]:
    """Return the packed keys of a dict, in its order; None if it is not a dict. All leaves are read."""
    state = as_dict(value, _NOWHERE)
    if state is None:
        return None
    ranks = {key: change.rank for key, change in state.changes.items() if change is not None}
    if state.root.child is not None:
        leaves = yield from ws.load_indexes(state.root.child)
        yield from ws.fetch(leaf.id for leaf in leaves)
        for stored in map_tree.entries(ws, state.root):
            if stored.key not in state.changes:
                ranks[stored.key] = stored.rank
    return sorted(ranks, key=ranks.__getitem__)


def length(value: Draft) -> int | None:
    """Return how many items a list has, without reading them; None if it is not a list."""
    items = as_list(value, _NOWHERE)
    if items is None:
        return None
    return sum(piece.length if isinstance(piece, KeepRun) else len(piece) for piece in items.pieces)


def items(ws: Workspace, value: Draft, start: int, stop: int) -> Rounds[list[bytes]]:
    """Return a run of a list's packed items."""
    return [item.value for item in (yield from written_items(ws, value, _NOWHERE, start, stop))]


def written_items(ws: Workspace, value: Draft, origin: WrittenBy, start: int, stop: int) -> Rounds[list[ListItem]]:
    """Return a run of a list's items with the steps that wrote them; `origin` wrote a list that is not in nodes."""
    state = as_list(value, origin)
    result: list[ListItem] = []
    for piece in [] if state is None else list_tree.slice_pieces(state.pieces, start, stop - start):
        if state is not None and isinstance(piece, KeepRun):
            piece = yield from list_tree.slice_items(ws, state.root, piece.start, piece.start + piece.length)
        if not isinstance(piece, KeepRun):
            result += piece
    return result


def whole(ws: Workspace, value: Draft) -> Rounds[Packed]:
    """Return a whole value, packed."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, ListRoot | MapRoot):
        yield from ws.load_all([] if value.child is None else [value.child])
        return read_slot(ws, value)
    if isinstance(value, ListDraft):
        return (yield from items(ws, value, 0, length(value) or 0))
    return (yield from _whole_dict(ws, value))


def _whole_dict(ws: Workspace, value: MapDraft) -> Rounds[Packed]:
    yield from ws.load_all([] if value.root.child is None else [value.root.child])
    result: dict[bytes, tuple[int, Packed]] = {}
    for stored in map_tree.entries(ws, value.root):
        if stored.key not in value.changes:
            result[stored.key] = (stored.rank, read_slot(ws, stored.slot))
    for key, change in value.changes.items():
        if change is not None:
            result[key] = (change.rank, (yield from whole(ws, change.value)))
    return {key: packed for key, (_, packed) in sorted(result.items(), key=lambda pair: pair[1][0])}
