"""Finding entries of a large dict in its stored nodes, without creating objects of all the others.

A dict of 100,000 keys lies in a few thousand leaves. To find one entry, three nodes are read; of each only the keys are
decoded, and one value. Nodes come from `StateLoader.nodes`, which has checked their digests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, MutableMapping
from typing import Literal, TypeAlias

from msgspec import Raw

from holdfast._named_tuple import NamedTuple
from holdfast.byte_reader import ByteReader, packed_form
from holdfast.engine.model.nodes import SLOT_FORM, MapRoot, Slot, WrittenBy, parse_slot, sort_key
from holdfast.engine.model.workspace import MissingNode, Rounds

_LEAF_FORM = packed_form(tuple[Literal[1], list[bytes], list[int], list[Raw], list[int]])
_INDEX_FORM = packed_form(tuple[Literal[2], list[tuple[bytes, int, int, bytes, bytes]]])


class StoredEntry(NamedTuple):
    """An entry as it is stored: its key, its value, and the step that wrote it."""

    key: bytes
    slot: Slot
    origin: WrittenBy


Children: TypeAlias = list[tuple[bytes, int, int, bytes, bytes]]
"""The content of an index as it is stored: the fields of each `ChildRef`."""


def find(root: MapRoot, key: bytes, known: MutableMapping[bytes, Children]) -> Rounds[StoredEntry | None]:
    """Return the entry of a key; None if there is none. `known` are indexes that were decoded before."""
    if root.child is None:
        return None
    place, id, height = sort_key(key), root.child.id, root.child.height
    while height:
        children = known.get(id)
        if children is None:
            children = known[id] = _children((yield [id]).get(id), id)
        at = bisect_left(children, place, key=_last)
        if at == len(children):
            return None
        id, height = children[at][0], height - 1
    keys, _, slots, origins = _leaf((yield [id]).get(id), id)
    try:
        at = keys.index(key)
    except ValueError:
        return None
    return _found(keys, slots, origins, at)


def entries(root: MapRoot, start: bytes, enough: Callable[[list[StoredEntry]], bool]) -> Rounds[list[StoredEntry]]:
    """Yield the entries from `start` on, in the order of their keys, until there are enough, or no more."""
    result: list[StoredEntry] = []
    # The nodes yet to read, the first last: ids and heights.
    ahead = [] if root.child is None else [(root.child.id, root.child.height)]
    while ahead and not enough(result):
        id, height = ahead.pop()
        data = (yield [id]).get(id)
        if height:
            children = _children(data, id)
            children = children[bisect_left(children, start, key=_last) :]
            ahead += [(child[0], height - 1) for child in reversed(children)]
            continue
        keys, _, slots, origins = _leaf(data, id)
        first = bisect_left(keys, start, key=sort_key)
        result += [_found(keys, slots, origins, at) for at in range(first, len(keys))]
    return result


def count(root: MapRoot, start: bytes) -> Rounds[int]:
    """Return how many entries there are from `start` on. Reads one node of each level."""
    if root.child is None:
        return 0
    total, id, height = root.child.size, root.child.id, root.child.height
    while height:
        children = _children((yield [id]).get(id), id)
        at = bisect_left(children, start, key=_last)
        total -= sum(child[2] for child in children[:at])
        if at == len(children):
            return total
        id, height = children[at][0], height - 1
    return total - bisect_left(_leaf((yield [id]).get(id), id)[0], start, key=sort_key)


def _last(child: tuple[bytes, int, int, bytes, bytes]) -> bytes:
    return child[4]


def _children(data: bytes | None, id: bytes) -> Children:
    return _reader(data, id).packed(_INDEX_FORM)[1]


def _leaf(data: bytes | None, id: bytes) -> tuple[list[bytes], list[int], list[Raw], list[int]]:
    reader = _reader(data, id)
    _, keys, ranks, slots, origins = reader.packed(_LEAF_FORM)
    if not 2 * len(keys) == 2 * len(slots) == len(origins):
        raise reader.error("has entries without all of their parts")
    return keys, ranks, slots, origins


def _reader(data: bytes | None, id: bytes) -> ByteReader:
    if data is None:
        raise MissingNode("a node is missing", where=id.hex(), hint="Repair it from a mirror or a backup")
    return ByteReader(data, "a node", id, "Verify the line, repair it")


def _found(keys: list[bytes], slots: list[Raw], origins: list[int], at: int) -> StoredEntry:
    reader = ByteReader(bytes(slots[at]), "a node")
    return StoredEntry(
        keys[at], parse_slot(reader.packed(SLOT_FORM), reader), WrittenBy(origins[2 * at], origins[2 * at + 1])
    )
