"""What operations on the items of a list keep aside, and how each item finds its part again later.

Until then items may have been added, changed, moved and removed. A value of a dict is found by its key; an item of a
list by its `id`, if it has one that is its own, or by its content; and one that changed by its position between others.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Container

from holdfast.codec import default_codec
from holdfast.engine.model.packed_state import PackedMap, as_map, flatten, pack_name
from holdfast.errors import InvalidError
from holdfast.schemas.packed_document import Items, read_fields

_ORDER, _ITEMS, _ID = map(pack_name, ("order", "items", "id"))
_SIZE = 8
"""The bytes that an item is recognized by."""


def pop_item_notes(notes: PackedMap, items: Items, *, lossy: bool) -> dict[int, PackedMap]:
    """Return what was kept aside for items, by their position now."""
    order, kept = notes.pop(_ORDER, None), notes.pop(_ITEMS, None)
    if order is None or kept is None:
        return {}
    found = {default_codec.unpack(key): dict(as_map(each) or {}) for key, each in (as_map(kept) or {}).items()}
    stored = default_codec.unpack(flatten(order))
    before = [stored[start : start + _SIZE] for start in range(0, len(stored), _SIZE)]
    matches = _match(before, _recognize(items))
    if items.names is None:
        matches |= _match_between(len(before), len(items.values), matches, found.keys(), lossy=lossy)
    return {now: found[then] for now, then in matches.items() if then in found}


def store_item_notes(notes: PackedMap, items: Items, kept: dict[int, PackedMap]) -> None:
    """Keep aside what belongs to items, by their position."""
    if kept:
        notes[_ORDER] = default_codec.pack(b"".join(_recognize(items)))
        notes[_ITEMS] = {default_codec.pack(position): each for position, each in kept.items()}


def _recognize(items: Items) -> list[bytes]:
    """Return what each item is recognized by."""
    if items.names is not None:
        return [_hash(name) for name in items.names]
    ids = [_read_id(each) for each in items.values]
    counts = Counter(ids)
    return [
        _hash(each if own is None or counts[own] > 1 else _ID + own)
        for each, own in zip(items.values, ids, strict=True)
    ]


def _read_id(item: bytes) -> bytes | None:
    value = (read_fields(item) or {}).get(_ID)
    return value if isinstance(value, bytes) and type(default_codec.unpack(value)) in (str, int) else None


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_SIZE]


def _match(before: list[bytes], now: list[bytes]) -> dict[int, int]:
    """Return the former positions of items that are the same, by their position now. Equal ones stay in order."""
    waiting = defaultdict[bytes, deque[int]](deque)
    for position, each in enumerate(before):
        waiting[each].append(position)
    return {position: waiting[each].popleft() for position, each in enumerate(now) if waiting.get(each)}


def _match_between(
    before: int, now: int, matches: dict[int, int], kept: Container[object], *, lossy: bool
) -> dict[int, int]:
    """Return the former positions of items that changed. As many as there were between two others are those, in
    order; where only some are left, nobody knows which, and that is refused rather than guessed."""
    gaps, new_gaps = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    same, last = set(matches.values()), -1
    for position in range(before):
        last = position if position in same else last
        gaps[last] += [] if position in same else [position]
    last = -1
    for position in range(now):
        last = matches.get(position, last)
        new_gaps[last] += [] if position in matches else [position]
    found: dict[int, int] = {}
    for after, positions in gaps.items():
        changed = new_gaps.get(after, [])
        if len(changed) == len(positions):
            found |= dict(zip(changed, positions, strict=True))
        elif changed and not lossy and any(position in kept for position in positions):
            raise InvalidError(
                "items of a list were changed, and others added or removed beside them: "
                "it is unknown to which of them the values belong that were kept aside",
                where=f"[{changed[0]}]",
                hint="Give the items an id, or declare the operation lossy",
            )
    return found
