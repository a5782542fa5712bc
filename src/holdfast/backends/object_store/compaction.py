"""What a fold is made of.

A fold carries the bodies that its epoch left, one after another, and an index: of its own epoch, or of as many epochs
as are due. Indexes are merged like digits are carried: eight of one level become one of the next. So a row is indexed
again only a few times, however long the shard lives, and a reader that knows nothing needs few objects.

Where more is dead than alive, or on request, a fold is thorough: it carries all that lives, and refers to no other.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from holdfast.backends.interface import Row
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.formats import (
    FOLD,
    IN_FOLD,
    BodyLocation,
    BodyObject,
    FoldObject,
    FoldRef,
    Garbage,
    IndexedRow,
    Tombstone,
    encode,
    unpack_place,
)
from holdfast.backends.object_store.shard_view import TOP, ShardView, Spot
from holdfast.backends.tables import Table

WIDTH = 8
"""How many indexes of one level make one of the next."""

KEPT = 256 << 10
"""An entry with this many bytes of bodies is left where it is, and only indexed."""

_SPARED = 1 << 20
"""So many dead bytes are not worth a thorough fold."""


class CompactionPlan(NamedTuple):
    """What a fold will hold."""

    carried: list[tuple[Table, Row, BodyLocation]]
    """Rows whose bodies it carries, and where these are now."""
    level: int
    first: int
    refs: list[FoldRef]


def dead_bytes(view: ShardView) -> int:
    """How many bytes of bodies nobody needs any more."""
    return sum(holder.size - view.live.get(spot, 0) for spot, holder in view.holders.items())


def plan(view: ShardView) -> CompactionPlan:
    """What the fold of a view's epoch is to hold."""
    dead, live = dead_bytes(view), sum(view.live.values())
    thorough = view.last or (dead > _SPARED and dead > live)
    left = {spot for spot in view.holders if _stays(view, spot, thorough)}
    carried = []
    for space, row in view.everything():
        place = unpack_place(row.body)
        if (place.epoch, place.entry) not in left and (thorough or place.epoch == view.epoch):
            carried.append((space, row, place))
    carried.sort(key=lambda one: (one[0].name, one[1].key))  # what is read together lies together
    if thorough:
        return CompactionPlan(carried, TOP, 0, [])
    level, first, refs = 0, view.epoch, list(view.refs)
    while len(refs) >= WIDTH - 1 and all(ref.level == level for ref in refs[1 - WIDTH :]):
        first = refs[1 - WIDTH].first
        del refs[1 - WIDTH :]
        level += 1
    return CompactionPlan(carried, level, first, refs)


class PendingDeletions(NamedTuple):
    """What still waits to be deleted: objects, and what was decided of transactions; or the whole shard."""

    doomed: list[Garbage]
    settled: list[Garbage]
    removed: bool = False


def build(view: ShardView, planned: CompactionPlan, bodies: list[bytes], time: float, rest: PendingDeletions) -> bytes:
    """The fold as an object. `bodies` are those of what is carried."""
    offset = 0
    rows: list[IndexedRow] = []
    moved: set[tuple[Table, tuple[object, ...]]] = set()
    used: set[Spot] = set()
    for (space, row, place), body in zip(planned.carried, bodies, strict=True):
        rows.append(
            IndexedRow(space.name, row.key[2:], row.columns, view.epoch, IN_FOLD, offset, place.length, place.check)
        )
        offset += len(body)
        moved.add((space, row.key))
    used_all: set[Spot] = set()
    for space, row in view.everything():
        if (space, row.key) in moved:
            continue
        place = unpack_place(row.body)
        if place.length:
            used_all.add((place.epoch, place.entry))
        if place.epoch >= planned.first:
            rows.append(IndexedRow(space.name, row.key[2:], row.columns, *place))
            if place.length:
                used.add((place.epoch, place.entry))
    holders = [view.holders[spot] for spot in sorted(used)]
    holders.append(BodyObject(view.epoch, IN_FOLD, view.token, 0, offset))
    tombs = [tomb for tomb in view.tombs if tomb.epoch >= planned.first] if planned.refs else list[Tombstone]()
    unneeded = _unneeded(view, planned, used_all)
    fold = FoldObject(
        names=view.names,
        token=view.token,
        following=object_names.next_token(view.token),
        id=secrets.token_bytes(8),
        time=time,
        removed=rest.removed,
        count=view.count,
        entries=view.entries,
        level=planned.level,
        first=planned.first,
        refs=planned.refs,
        doomed=[*rest.doomed, Garbage(time, unneeded)] if unneeded else rest.doomed,
        settled=[*rest.settled, Garbage(time, view.transactions)] if view.transactions else rest.settled,
        holders=holders,
        tombs=tombs,
        rows=rows,
    )
    return encode(FOLD, fold, bodies)


def _stays(view: ShardView, spot: Spot, thorough: bool) -> bool:
    """Whether bodies are left in the object that they are in."""
    holder, live = view.holders[spot], view.live.get(spot, 0)
    if spot[1] != IN_FOLD and holder.size >= KEPT:
        return live == holder.size or (not thorough and 2 * live >= holder.size)
    return spot[0] != view.epoch and not thorough


def _unneeded(view: ShardView, planned: CompactionPlan, used: set[Spot]) -> list[str]:
    """The names, in the shard's folder, of what nobody needs once the fold is there."""
    spots = [(view.epoch, position) for position in range(view.position)]
    tokens = dict.fromkeys(spots, view.token)
    for spot, holder in view.holders.items():
        tokens[spot] = holder.token
    for ref in view.refs:
        tokens[ref.epoch, IN_FOLD] = ref.token
    needed = used | {(ref.epoch, IN_FOLD) for ref in planned.refs}
    names = []
    for spot, token in sorted(tokens.items()):
        if spot not in needed:
            name = object_names.fold("", token) if spot[1] == IN_FOLD else object_names.entry("", token, spot[1])
            names.append(name[1:])
    return names
