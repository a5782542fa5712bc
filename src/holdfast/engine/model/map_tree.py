"""Dicts in nodes, ordered by key, each entry with its rank in the dict's own order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from holdfast.engine.model.nodes import FANOUT, NODE_BYTES, ChildRef, LeafNode, MapEntry, MapRoot, sort_key
from holdfast.engine.model.workspace import Rounds, Workspace, chunks


def entries(ws: Workspace, root: MapRoot) -> list[MapEntry]:
    """Return all entries of a dict whose nodes are loaded, in the dict's order."""
    result = [entry for child in ws.bottom(root.child) for entry in ws.leaf(child).entries]
    return sorted(result, key=lambda entry: entry.rank)


def lookup(ws: Workspace, root: MapRoot, keys: Iterable[bytes]) -> Rounds[dict[bytes, MapEntry]]:
    """Return the entries of these keys. Loads only the nodes on the paths to them."""
    wanted = {key: sort_key(key) for key in keys}
    result: dict[bytes, MapEntry] = {}
    level = [] if root.child is None else [(root.child, list(wanted))]
    while level:
        yield from ws.fetch(child.id for child, _ in level)
        below: list[tuple[ChildRef, list[bytes]]] = []
        for child, here in level:
            if child.height:
                below += _route(ws.children(child), {key: wanted[key] for key in here})
            else:
                result.update((entry.key, entry) for entry in ws.leaf(child).entries if entry.key in wanted)
        level = below
    return result


def update(ws: Workspace, root: MapRoot, changes: Mapping[bytes, MapEntry | None], ranks: int) -> Rounds[MapRoot]:
    """Return the dict with entries put in or, where None, removed. Their keys were looked up before."""
    if not changes:
        return MapRoot(root.child, ranks)
    if root.child is None:
        new_entries = [entry for entry in changes.values() if entry is not None]
        return MapRoot(ws.index(_leaves(ws, new_entries)), ranks)
    row = _update(ws, root.child, changes)
    top = ws.index(row)
    while top is not None and top.height and len(ws.children(top)) == 1:
        top = ws.children(top)[0]  # a tree that shrank needs fewer levels
        yield from ws.fetch([top.id])
    return MapRoot(top, ranks)


def _update(ws: Workspace, child: ChildRef, changes: Mapping[bytes, MapEntry | None]) -> list[ChildRef]:
    """Return the nodes, of the same height, that replace this one."""
    if not child.height:
        here = {entry.key: entry for entry in ws.leaf(child).entries}
        for key, entry in changes.items():
            if entry is None:
                here.pop(key, None)
            else:
                here[key] = entry
        return _leaves(ws, here.values())
    children = ws.children(child)
    routed = {below.id: keys for below, keys in _route(children, {key: sort_key(key) for key in changes})}
    row: list[ChildRef] = []
    for below in children:
        keys = routed.get(below.id)
        row += [below] if keys is None else _update(ws, below, {key: changes[key] for key in keys})
    return ws.raised(row)


def _route(children: tuple[ChildRef, ...], keys: Mapping[bytes, bytes]) -> list[tuple[ChildRef, list[bytes]]]:
    """Return the node that each key belongs to; a key after all of them belongs to the last."""
    lasts = [child.last for child in children]
    routed: dict[int, list[bytes]] = {}
    for key, place in keys.items():
        routed.setdefault(min(bisect_left(lasts, place), len(children) - 1), []).append(key)
    return [(children[i], here) for i, here in sorted(routed.items())]


def _leaves(ws: Workspace, unordered: Iterable[MapEntry]) -> list[ChildRef]:
    rows = sorted(unordered, key=lambda entry: sort_key(entry.key))
    if not rows:
        return []
    weight = sum(len(entry.key) + (len(entry.slot) if isinstance(entry.slot, bytes) else 64) for entry in rows)
    # About the same number of entries each, and few enough that a leaf is not too large.
    limit = min(FANOUT, max(1, len(rows) * NODE_BYTES // max(weight, 1)))
    return [
        ChildRef(ws.add(LeafNode(tuple(part))), 0, len(part), b"", sort_key(part[-1].key))
        for part in chunks(rows, limit)
    ]
