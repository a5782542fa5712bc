"""Lists in nodes: reading them, and composing a new one of parts of an old one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from holdfast.engine.model.nodes import FANOUT, NODE_BYTES, ChildRef, ListItem, ListRoot, SegmentNode, digest_items
from holdfast.engine.model.operations import KeepRun
from holdfast.engine.model.workspace import Rounds, Workspace, chunks
from holdfast.errors import CorruptError

Pieces: TypeAlias = "list[KeepRun | list[ListItem]]"
"""A list composed of runs of an old one and new items."""

_Row: TypeAlias = "list[ChildRef | list[ListItem]]"

_HALF = FANOUT // 2
"""A segment at the end of a list with so many items is not filled up."""


def size(root: ListRoot) -> int:
    """Return how many items a list has."""
    return 0 if root.child is None else root.child.size


def items(ws: Workspace, root: ListRoot) -> list[ListItem]:
    """Return all items of a list whose nodes are loaded."""
    return [item for child in ws.bottom(root.child) for item in ws.segment(child).items]


def values(ws: Workspace, root: ListRoot) -> list[bytes]:
    """Return the values of all items of a list whose nodes are loaded."""
    return [value for child in ws.bottom(root.child) for value in ws.segment(child).values]


def slice_items(ws: Workspace, root: ListRoot, start: int, end: int) -> Rounds[list[ListItem]]:
    """Return some items of a list. Loads only the nodes they lie in."""
    if not 0 <= start <= end <= size(root):
        raise CorruptError(f"items {start} to {end} are out of range: the list has {size(root)}")
    result: list[ListItem] = []
    for part in (yield from _cut(ws, root.child, start, end)):
        if isinstance(part, ChildRef):
            yield from ws.load_all([part])
            part = items(ws, ListRoot(part))
        result += part
    return result


def slice_pieces(pieces: Pieces, start: int, length: int) -> Pieces:
    """Return the pieces of a part of a list that is itself in pieces."""
    result: Pieces = []
    for piece in pieces:
        count = piece.length if isinstance(piece, KeepRun) else len(piece)
        low, high = max(start, 0), min(start + length, count)
        if low < high:
            result.append(KeepRun(piece.start + low, high - low) if isinstance(piece, KeepRun) else piece[low:high])
        start -= count
    return result


def assemble(ws: Workspace, root: ListRoot, pieces: Pieces) -> Rounds[ListRoot]:
    """Return the list that consists of these pieces of an old one. Nodes in the middle of runs are reused."""
    row: _Row = []
    for piece in pieces:
        if isinstance(piece, KeepRun):
            row += yield from _cut(ws, root.child, piece.start, piece.start + piece.length)
        elif piece:
            row.append(piece)
    row = yield from _absorb(ws, row)
    children: list[ChildRef] = []
    for i, part in enumerate(row):
        children += [part] if isinstance(part, ChildRef) else _segments(ws, part, last=i == len(row) - 1)
    opened = yield from _open_seams(ws, children)
    return ListRoot(ws.index(opened))


def _cut(ws: Workspace, child: ChildRef | None, start: int, end: int) -> Rounds[_Row]:
    """Return what lies between two positions below a node: whole nodes where possible, and loose items at the edges."""
    if child is None or start >= end:
        return []
    if start <= 0 and end >= child.size:
        return [child]
    yield from ws.fetch([child.id])
    if not child.height:
        return [ws.segment(child).items[max(start, 0) : end]]
    row: _Row = []
    for below in ws.children(child):
        if start < below.size and end > 0:
            row += yield from _cut(ws, below, start, end)
        start -= below.size
        end -= below.size
    return row


def _absorb(ws: Workspace, row: _Row) -> Rounds[_Row]:
    """Merge loose items with a neighbouring segment where both fit into one, to avoid many tiny segments.

    At the end of a list, which is where most grow, a segment that is half full stays as it is: it is not stored again
    and again until it is full."""
    parts: _Row = []
    for part in row:
        if isinstance(part, list) and parts and isinstance(parts[-1], list):
            parts[-1] += part
        else:
            parts.append(list(part) if isinstance(part, list) else part)
    done: _Row = []
    for number, part in enumerate(parts):
        before = done[-1] if done else None
        if isinstance(part, list) and isinstance(before, ChildRef):
            *rest, last = yield from _open_right(ws, before)
            limit = _HALF if number == len(parts) - 1 else FANOUT
            if last.size < limit and last.size + len(part) <= FANOUT:
                yield from ws.fetch([last.id])
                done[-1:] = [*rest, [*ws.segment(last).items, *part]]
                continue
        elif (
            isinstance(part, ChildRef)
            and isinstance(before, list)
            and not part.height
            and part.size + len(before) <= FANOUT
        ):
            yield from ws.fetch([part.id])
            before += ws.segment(part).items
            continue
        done.append(part)
    return done


def _open_right(ws: Workspace, child: ChildRef, height: int = 0) -> Rounds[list[ChildRef]]:
    """Return the node as a row that ends in one of the given height."""
    row = [child]
    while row[-1].height > height:
        yield from ws.fetch([row[-1].id])
        row[-1:] = ws.children(row[-1])
    return row


def _open_left(ws: Workspace, child: ChildRef, height: int) -> Rounds[list[ChildRef]]:
    """Return the node as a row that starts with one of the given height."""
    row = [child]
    while row[0].height > height:
        yield from ws.fetch([row[0].id])
        row[:1] = ws.children(row[0])
    return row


def _open_seams(ws: Workspace, children: Sequence[ChildRef]) -> Rounds[list[ChildRef]]:
    """Return the row, opened where a high node meets a low one, so that both are under one index in the end."""
    row: list[ChildRef] = []
    for child in children:
        if row and row[-1].height > child.height:
            row[-1:] = yield from _open_right(ws, row[-1], child.height)
        if row and row[-1].height < child.height:
            row += yield from _open_left(ws, child, row[-1].height)
        else:
            row.append(child)
    return row


def _segments(ws: Workspace, loose: list[ListItem], *, last: bool) -> list[ChildRef]:
    """Return loose items in segments. At the end of the list they are filled: that is where it grows."""
    children = []
    for group in _by_bytes(loose):
        for part in chunks(group, FANOUT, filled=last):
            digest = digest_items([item.value for item in part])
            children.append(ChildRef(ws.add(SegmentNode.of(part)), 0, len(part), digest))
    return children


def _by_bytes(loose: list[ListItem]) -> list[list[ListItem]]:
    """Return items in groups none of which, unless it is a single one, has more bytes than a node should."""
    groups: list[list[ListItem]] = [[]]
    weight = 0
    for item in loose:
        weight += len(item.value)
        if weight > NODE_BYTES and groups[-1]:
            groups.append([])
            weight = len(item.value)
        groups[-1].append(item)
    return groups
