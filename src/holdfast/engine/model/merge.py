"""Three-way merge of packed states.

What only one side changed is taken from that side. Dicts are merged key by key, lists item by item around what is
unchanged, texts line by line; so are dicts in lists, where neither side added or removed items. Where both sides
changed the same thing differently there is a *conflict*: a resolver may resolve it, else our side is used and the
conflict is reported. Without a base, every difference of the sides is one.

Values are compared, not what was done: if both sides add 1 to the same number, it grows by 1. What update operators did
is known, and is applied to the merged value (`operator_runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from holdfast._named_tuple import NamedTuple
from holdfast.codec import msgpack
from holdfast.engine.model import sequences
from holdfast.engine.model.diff import diff
from holdfast.engine.model.operator_runs import (
    KeyPath,
    OperatorRun,
    OperatorRuns,
    put_at,
    undo_runs,
    value_at,
)
from holdfast.engine.model.packed_state import Packed, PackedMap, as_items, as_map, flatten
from holdfast.errors import InvalidError

T = TypeVar("T")

Path: TypeAlias = tuple[bytes | int | slice, ...]
"""The path to a value: packed keys of dicts, indexes and slices of lists, as merged so far with our side in them."""


class PackedConflict(NamedTuple):
    """Both sides changed the same thing differently. None: the side has nothing there.

    Where the path ends in a slice of a list, the three are the items there, of which there may be none.
    """

    path: Path
    base: Packed | None
    ours: Packed | None
    theirs: Packed | None


class PackedResolution(NamedTuple):
    """The resolution of a conflict: this value, or, if None, nothing there."""

    value: Packed | None


class MergedState(NamedTuple):
    """A merged state, and the conflicts that no resolver resolved, in which it has our side."""

    state: PackedMap
    conflicts: tuple[PackedConflict, ...]


Resolver: TypeAlias = Callable[[PackedConflict], PackedResolution | None]
"""Resolves a conflict, or returns None to leave it."""


def ours(clash: PackedConflict) -> PackedResolution:
    """Resolve every conflict with our side."""
    return PackedResolution(clash.ours)


def theirs(clash: PackedConflict) -> PackedResolution:
    """Resolve every conflict with their side."""
    return PackedResolution(clash.theirs)


def union(clash: PackedConflict) -> PackedResolution | None:
    """Resolve conflicts in lists with the items of both sides, ours first, and take what only one side has where it is
    unknown whether the other one removed it; leave all others."""
    if clash.base is None and (clash.ours is None or clash.theirs is None):
        return PackedResolution(clash.theirs if clash.ours is None else clash.ours)
    if not isinstance(clash.ours, list) or not isinstance(clash.theirs, list):
        return None
    known = {*clash.ours, *(clash.base if isinstance(clash.base, list) else ())}
    return PackedResolution([*clash.ours, *(item for item in clash.theirs if item not in known)])


def merge(
    base: PackedMap | None,
    ours: PackedMap,
    theirs: PackedMap,
    resolver: Resolver = lambda _: None,
    *,
    their_runs: OperatorRuns = MappingProxyType({}),
) -> MergedState:
    """Return the state with the changes of both sides since the base.

    The base is None if it is unknown. Then additions of one side cannot be told from removals of the other, and every
    difference is a conflict. `their_runs` are the operators that were applied on their side; they are applied to what
    the rest merges to.
    """
    merge_state = _Merge(resolver, exact=base is not None)
    merged = merge_state.value((), base, ours, undo_runs(theirs, their_runs))
    state = (None if merged is None else as_map(merged)) or {}
    for path, run in their_runs.items():
        state = merge_state.apply_run(state, path, run, (base or {}, ours, theirs))
    return MergedState(state, tuple(merge_state.conflicts))


class _Merge:
    """A merge in progress, and its conflicts."""

    def __init__(self, resolver: Resolver, *, exact: bool) -> None:
        self._resolver = resolver
        self._exact = exact
        self.conflicts: list[PackedConflict] = []

    def value(self, path: Path, base: Packed | None, ours: Packed | None, theirs: Packed | None) -> Packed | None:
        if _same(ours, theirs):
            return ours
        if self._exact:
            if _same(base, theirs):
                return ours
            if _same(base, ours):
                return theirs
        if ours is not None and theirs is not None:
            our_map, their_map = as_map(ours), as_map(theirs)
            if our_map is not None and their_map is not None:
                return self._maps(path, _or_empty(base), our_map, their_map)
            our_items, their_items = as_items(ours), as_items(theirs)
            if our_items is not None and their_items is not None:
                base_items = None if base is None else as_items(base)
                if not self._exact:
                    base_items = _shared(our_items, their_items)
                return self._lists(path, base_items or [], our_items, their_items)
            lines = _merge_lines(base, ours, theirs)
            if lines is not None:
                return lines
        return self._clash(PackedConflict(path, base, ours, theirs))

    def apply_run(self, state: PackedMap, path: KeyPath, run: OperatorRun, sides: Sequence[PackedMap]) -> PackedMap:
        """Apply the operators of one side to the merged state. Where the other side removed the value, or put another
        that they do not go with, there is a conflict."""
        value = value_at(state, path)
        holder = value_at(state, path[:-1])
        in_dict = holder is not None and as_map(holder) is not None
        if in_dict and (value is not None or run.before is None):
            try:
                return put_at(state, path, run.apply(value))
            except InvalidError:
                pass
        resolved = self._clash(PackedConflict(path, *(value_at(side, path) for side in sides)))
        return state if resolved is None and not in_dict else put_at(state, path, resolved)

    def _clash(self, clash: PackedConflict) -> Packed | None:
        resolution = self._resolver(clash)
        if resolution is None:
            self.conflicts.append(clash)
            return clash.ours
        return resolution.value

    def _maps(self, path: Path, base: PackedMap, ours: PackedMap, theirs: PackedMap) -> PackedMap:
        merged: PackedMap = {}
        for key in dict.fromkeys((*ours, *theirs)):
            value = self.value((*path, key), base.get(key), ours.get(key), theirs.get(key))
            if value is not None:
                merged[key] = value
        return merged

    def _lists(self, path: Path, base: list[bytes], ours: list[bytes], theirs: list[bytes]) -> list[bytes]:
        merged: list[bytes] = []
        for part in _regions(base, ours, theirs):
            settled = _settle(*part) if self._exact or part[1] == part[2] else None
            if settled is None:
                settled = self._stretch(path, len(merged), *map(list, part))
            merged += settled
        return merged

    def _stretch(
        self, path: Path, start: int, base: list[bytes], ours: list[bytes], theirs: list[bytes]
    ) -> list[bytes]:
        """Merge a slice of a list that both sides changed.

        The resolver is called for conflicts inside its items first, and then for the slice as a whole.
        """
        known = len(self.conflicts)
        items = self._items(path, start, base, ours, theirs)
        inside = self.conflicts[known:]
        if items is not None and not inside:
            return items
        del self.conflicts[known:]
        clash = PackedConflict((*path, slice(start, start + len(ours))), base, ours, theirs)
        resolution = self._resolver(clash)
        if resolution is None:
            self.conflicts += inside or [clash]
            return ours if items is None else items
        return [] if resolution.value is None else as_items(resolution.value) or []

    def _items(
        self, path: Path, start: int, base: list[bytes], ours: list[bytes], theirs: list[bytes]
    ) -> list[bytes] | None:
        """Merge a slice item by item, where each has its counterparts, and is a dict if both sides changed it."""
        if not self._exact or not len(base) == len(ours) == len(theirs):
            return None
        items = list(zip(base, ours, theirs, strict=True))
        if any(_settle(*each) is None and None in map(as_map, each) for each in items):
            return None
        merged = (self.value((*path, start + place), *each) for place, each in enumerate(items))
        return [flatten(value) for value in merged if value is not None]


def _shared(one: list[bytes], other: list[bytes]) -> list[bytes]:
    """Return the items that both lists have, in the order of both."""
    return [item for run in sequences.alignment(one, other) for item in one[run.start : run.start + run.length]]


def _same(one: Packed | None, other: Packed | None) -> bool:
    if one is None or other is None or one is other:
        return one is other
    if type(one) is type(other) and not isinstance(one, dict):
        return one == other
    return diff(one, other) is None


def _or_empty(base: Packed | None) -> PackedMap:
    entries = None if base is None else as_map(base)
    return {} if entries is None else entries


def _settle(base: T, ours: T, theirs: T) -> T | None:
    """Return the merged region or item, if at most one side changed it or both did the same; else None."""
    if ours == theirs or base == theirs:
        return ours
    return theirs if base == ours else None


def _regions(
    base: Sequence[bytes], ours: Sequence[bytes], theirs: Sequence[bytes]
) -> list[tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]]]:
    """Split the three lists into regions, alternately different and equal, around items that all three share."""
    in_ours = _matches(base, ours)
    in_theirs = _matches(base, theirs)
    regions = []
    b = o = t = 0
    for i in [*(i for i in range(len(base)) if i in in_ours and i in in_theirs), len(base)]:
        next_o, next_t = in_ours.get(i, len(ours)), in_theirs.get(i, len(theirs))
        if (b, o, t) != (i, next_o, next_t):
            regions.append((base[b:i], ours[o:next_o], theirs[t:next_t]))
        if i < len(base):
            regions.append((base[i : i + 1], ours[next_o : next_o + 1], theirs[next_t : next_t + 1]))
        b, o, t = i + 1, next_o + 1, next_t + 1
    return regions


def _matches(base: Sequence[bytes], side: Sequence[bytes]) -> dict[int, int]:
    """Return where the base's items are in a side's list."""
    return {run.start + i: run.at + i for run in sequences.alignment(base, side) for i in range(run.length)}


def _merge_lines(base: Packed | None, ours: Packed, theirs: Packed) -> bytes | None:
    """Merge three texts line by line, if they are texts and no line conflicts."""
    texts = []
    for side in (base, ours, theirs):
        if not isinstance(side, bytes) or not msgpack.is_str(side):
            return None
        texts.append(msgpack.content(side).splitlines(keepends=True))
    settled = [_settle(*part) for part in _regions(*texts)]
    if None in settled:
        return None
    return msgpack.text(b"".join(line for part in settled if part is not None for line in part))
