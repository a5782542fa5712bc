"""Notes of operations on the items of a list, and how each item finds its part again later.

Until then items may have been added, changed, moved and removed. A value of a dict is found by its key; an item of a
list by its `id`, if it has one that is its own, or by its content; and one without an id that changed by its position
between others.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Container, Sequence
from typing import NamedTuple

from holdfast.codec import default_codec
from holdfast.engine.model.packed_state import PackedMap, as_map, flatten, pack_name
from holdfast.errors import InvalidError
from holdfast.schemas.packed_document import Items, read_fields

_ORDER, _ITEMS, _OWN, _ID = map(pack_name, ("order", "items", "own", "id"))
_SIZE = 8
"""The bytes that an item is recognized by."""


class _Mark(NamedTuple):
    """The mark by which an item is recognized, and whether that is an id of its own."""

    hash: bytes
    is_id: bool


def pop_item_notes(notes: PackedMap, items: Items, *, lossy: bool) -> dict[int, PackedMap]:
    """Return what was kept aside for items, by their position now."""
    order, own, kept = notes.pop(_ORDER, None), notes.pop(_OWN, None), notes.pop(_ITEMS, None)
    if order is None or kept is None:
        return {}
    found = {default_codec.unpack(key): dict(as_map(each) or {}) for key, each in (as_map(kept) or {}).items()}
    stored = default_codec.unpack(flatten(order))
    hashes = [stored[start : start + _SIZE] for start in range(0, len(stored), _SIZE)]
    flags = bytes(len(hashes)) if own is None else default_codec.unpack(flatten(own))
    before, now = [_Mark(each, bool(flag)) for each, flag in zip(hashes, flags, strict=True)], _recognize(items)
    matches = _match(before, now)
    if items.names is None:
        matches |= _match_between(before, now, matches, found.keys(), lossy=lossy)
    return {position: found[then] for position, then in matches.items() if then in found}


def store_item_notes(notes: PackedMap, items: Items, kept: dict[int, PackedMap]) -> None:
    """Keep aside what belongs to items, by their position."""
    if kept:
        marks = _recognize(items)
        notes[_ORDER] = default_codec.pack(b"".join(each.hash for each in marks))
        if any(each.is_id for each in marks):
            notes[_OWN] = default_codec.pack(bytes(each.is_id for each in marks))
        notes[_ITEMS] = {default_codec.pack(position): each for position, each in kept.items()}


def _recognize(items: Items) -> list[_Mark]:
    """Return what each item is recognized by."""
    if items.names is not None:
        return [_Mark(_hash(name), False) for name in items.names]
    ids = [_read_id(each) for each in items.values]
    counts = Counter(ids)
    return [
        _Mark(_hash(each), False) if own is None or counts[own] > 1 else _Mark(_hash(_ID + own), True)
        for each, own in zip(items.values, ids, strict=True)
    ]


def _read_id(item: bytes) -> bytes | None:
    value = (read_fields(item) or {}).get(_ID)
    return value if isinstance(value, bytes) and type(default_codec.unpack(value)) in (str, int) else None


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_SIZE]


def _match(before: Sequence[_Mark], now: Sequence[_Mark]) -> dict[int, int]:
    """Return the former positions of items that are the same, by their position now. Equal ones stay in order."""
    waiting = defaultdict[bytes, deque[int]](deque)
    for position, each in enumerate(before):
        waiting[each.hash].append(position)
    return {position: waiting[each.hash].popleft() for position, each in enumerate(now) if waiting.get(each.hash)}


def _match_between(
    before: Sequence[_Mark], now: Sequence[_Mark], matches: dict[int, int], kept: Container[object], *, lossy: bool
) -> dict[int, int]:
    """Return the former positions of items that changed. Where there was one between two others, and is one between
    the same, it is that, unless both have an id. Where there are more, nobody knows which is which, and that is
    refused rather than guessed."""
    same = set(matches.values())
    gaps = _gaps([position if position in same else None for position in range(len(before))])
    new_gaps = _gaps([matches.get(position) for position in range(len(now))])
    found: dict[int, int] = {}
    for start, (positions, end) in gaps.items():
        changed, new_end = new_gaps.get(start, ([], end))
        takes_any = not all(now[position].is_id for position in changed)
        candidates = [position for position in positions if changed and (takes_any or not before[position].is_id)]
        if candidates and len(positions) == len(changed) == 1 and end == new_end:
            found[changed[0]] = positions[0]
        elif not lossy and any(position in kept for position in candidates):
            raise InvalidError(
                "items of a list were changed, added or removed next to each other: "
                "it is unknown to which of them the values belong that were kept aside",
                where=f"[{changed[0]}]",
                hint="Give the items an id, or declare the operation lossy",
            )
    return found


def _gaps(known: Sequence[int | None]) -> dict[int, tuple[list[int], int]]:
    """Return the positions of items that are not known, and the known one after them, by the known one before them."""
    found: dict[int, tuple[list[int], int]] = {}
    start, gap = -1, list[int]()
    for position, each in enumerate([*known, -1]):
        if each is None:
            gap.append(position)
            continue
        if gap:
            found[start] = gap, each
        start, gap = each, []
    return found
