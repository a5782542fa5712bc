"""Plans and builds folds.

A fold has the bodies that its epoch left, and an index: of its own epoch, or of several. Indexes are merged as digits
are carried: eight of one level become one of the next. So a row is indexed again only a few times, however long the
shard exists, and a new reader needs few objects.

If more bytes are dead than alive, or on request, a fold is thorough: it has all rows, and refers to no other fold.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from holdfast.backends.interface import Row
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import (
    FOLD,
    BodyLocation,
    BodyObject,
    FoldObject,
    FoldRef,
    Garbage,
    IndexedRow,
    Tombstone,
    encode,
    unpack_location,
)
from holdfast.backends.object_store.object_names import IN_FOLD
from holdfast.backends.object_store.shard_view import TOP_LEVEL, BodyObjectKey, ShardView
from holdfast.backends.tables import Table

MERGE_WIDTH = 8
"""The number of indexes of one level that are merged into one of the next."""

LARGE_ENTRY = 256 << 10
"""An entry with this many bytes of bodies is not copied into folds, only indexed."""

_MIN_DEAD_BYTES = 1 << 20
"""The least dead bytes for a thorough fold."""


class CompactionPlan(NamedTuple):
    """The content of a fold."""

    carried: list[tuple[Table, Row, BodyLocation]]
    """The rows whose bodies are copied into it, and where these are now."""
    level: int
    first: int
    refs: list[FoldRef]


def dead_bytes(view: ShardView) -> int:
    """Count the bytes of bodies that are not needed any more."""
    return sum(
        body_object.size - view.live_bytes.get(object_key, 0) for object_key, body_object in view.body_objects.items()
    )


def plan_fold(view: ShardView) -> CompactionPlan:
    """Plan the fold that ends the epoch of a view."""
    dead, live = dead_bytes(view), sum(view.live_bytes.values())
    thorough = view.last or (dead > _MIN_DEAD_BYTES and dead > live)
    left = {object_key for object_key in view.body_objects if _stays_in_place(view, object_key, thorough)}
    carried = []
    for space, row in view.all_rows():
        location = unpack_location(row.body)
        if (location.epoch, location.entry) not in left and (thorough or location.epoch == view.epoch):
            carried.append((space, row, location))
    carried.sort(key=lambda one: (one[0].name, one[1].key))  # so that rows that are read together are stored together
    if thorough:
        return CompactionPlan(carried, TOP_LEVEL, 0, [])
    level, first, refs = 0, view.epoch, list(view.refs)
    while len(refs) >= MERGE_WIDTH - 1 and all(ref.level == level for ref in refs[1 - MERGE_WIDTH :]):
        first = refs[1 - MERGE_WIDTH].first
        del refs[1 - MERGE_WIDTH :]
        level += 1
    return CompactionPlan(carried, level, first, refs)


class PendingDeletions(NamedTuple):
    """Objects and decisions of transactions that are to be deleted; or the whole shard."""

    garbage: list[Garbage]
    decided_transactions: list[Garbage]
    removed: bool = False


def build_fold(
    view: ShardView, planned: CompactionPlan, bodies: list[bytes], time: float, rest: PendingDeletions
) -> bytes:
    """Build the object of a fold. `bodies` are those of the rows that are copied."""
    offset = 0
    rows: list[IndexedRow] = []
    moved: set[tuple[Table, tuple[object, ...]]] = set()
    used: set[BodyObjectKey] = set()
    for (space, row, location), body in zip(planned.carried, bodies, strict=True):
        rows.append(
            IndexedRow(
                space.name, row.key[2:], row.columns, view.epoch, IN_FOLD, offset, location.length, location.check
            )
        )
        offset += len(body)
        moved.add((space, row.key))
    used_all: set[BodyObjectKey] = set()
    for space, row in view.all_rows():
        if (space, row.key) in moved:
            continue
        location = unpack_location(row.body)
        if location.length:
            used_all.add((location.epoch, location.entry))
        if location.epoch >= planned.first:
            rows.append(IndexedRow(space.name, row.key[2:], row.columns, *location))
            if location.length:
                used.add((location.epoch, location.entry))
    body_objects = [view.body_objects[object_key] for object_key in sorted(used)]
    body_objects.append(BodyObject(view.epoch, IN_FOLD, view.token, 0, offset))
    tombstones = (
        [tombstone for tombstone in view.tombstones if tombstone.epoch >= planned.first]
        if planned.refs
        else list[Tombstone]()
    )
    unneeded = _find_garbage(view, planned, used_all)
    fold = FoldObject(
        names=view.names,
        token=view.token,
        next_token=object_names.next_token(view.token),
        id=secrets.token_bytes(8),
        time=time,
        removed=rest.removed,
        count=view.count,
        entries=view.entries,
        level=planned.level,
        first=planned.first,
        refs=planned.refs,
        garbage=[*rest.garbage, Garbage(time, unneeded)] if unneeded else rest.garbage,
        decided_transactions=[*rest.decided_transactions, Garbage(time, view.transactions)]
        if view.transactions
        else rest.decided_transactions,
        body_objects=body_objects,
        tombstones=tombstones,
        rows=rows,
    )
    return encode(FOLD, fold, bodies)


def _stays_in_place(view: ShardView, object_key: BodyObjectKey, thorough: bool) -> bool:
    """Whether bodies stay in their object."""
    body_object, live = view.body_objects[object_key], view.live_bytes.get(object_key, 0)
    if object_key[1] != IN_FOLD and body_object.size >= LARGE_ENTRY:
        return live == body_object.size or (not thorough and 2 * live >= body_object.size)
    return object_key[0] != view.epoch and not thorough


def _find_garbage(view: ShardView, planned: CompactionPlan, used: set[BodyObjectKey]) -> list[str]:
    """List the objects, by their names in the shard's folder, that the fold makes unnecessary."""
    object_keys = [(view.epoch, position) for position in range(view.position)]
    tokens = dict.fromkeys(object_keys, view.token)
    for object_key, body_object in view.body_objects.items():
        tokens[object_key] = body_object.token
    for ref in view.refs:
        tokens[ref.epoch, IN_FOLD] = ref.token
    needed = used | {(ref.epoch, IN_FOLD) for ref in planned.refs}
    names = []
    for object_key, token in sorted(tokens.items()):
        if object_key not in needed:
            names.append(object_names.body_object(token, object_key[1]))
    return names
