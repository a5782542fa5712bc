"""The difference of two packed values, as the operation that turns one into the other."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.codec import msgpack
from holdfast.engine.model import sequences
from holdfast.engine.model.large_pointers import LARGE, is_pointer, parse_pointer, pointer_to
from holdfast.engine.model.operations import (
    ChangeItem,
    Combine,
    EditList,
    EditMap,
    EditText,
    KeepRun,
    Operation,
    Set,
    set_to,
)
from holdfast.engine.model.packed_state import Packed, PackedMap, as_items, as_map, flatten, packed_size

_SHORT = 64
"""A value of so few bytes is replaced as a whole: an edit would take as many."""

_SHORT_LIST = 512
"""A list of so few bytes is replaced as a whole: finding what changed would take longer than writing it."""

_LONG_TEXT = 256
"""A string of fewer bytes is replaced as a whole."""

_MANY_LINES = 2048
"""Where this many bytes in the middle of a text differ, it is compared line by line."""

_PART = 6
"""About how many bytes a part of an edit takes besides its payload."""

NOTHING = EditMap()
"""The edit of a list or dict that is unchanged."""

ListParts = list["KeepRun | ChangeItem | tuple[bytes, ...]"]


MAX_EDITS = 10
"""How deep edits nest. Their stored form has three levels for each, and must not nest deeper than the format allows."""


def diff(old: Packed, new: Packed, depth: int = 0) -> Operation | None:
    """Return the operation that turns `old` into `new`, or None if they are the same value. `depth` is how many edits
    it will be nested in."""
    if isinstance(new, bytes):
        if new == old or (isinstance(old, bytes) and is_pointer(old) and parse_pointer(old).is_of(new)):
            return None
        if len(new) < _SHORT:
            return None if not isinstance(old, bytes) and _is_same(old, new) else Set(new)
    elif isinstance(new, list) and len(new) < _SHORT and sum(map(len, new)) < _SHORT_LIST:
        if new == old:
            return None
        flat = flatten(new)
        return None if flat == old else Set(flat)
    edit = diff_maps(old, new, depth) if type(old) is dict and type(new) is dict else _edit(old, new, depth)
    if edit == NOTHING:
        return None
    if edit is None or depth >= MAX_EDITS or not (_is_small(edit, new) or _weight(edit) < packed_size(new)):
        return set_to(new)
    return edit


def _is_small(edit: Operation, new: Packed) -> bool:
    """Return whether an edit leaves at least half of the parts unchanged: its size need not be compared."""
    if isinstance(edit, EditMap) and isinstance(new, dict):
        return 2 * len(edit.put) <= len(new)
    if isinstance(edit, EditList) and isinstance(new, list):
        return 2 * sum([part.length for part in edit.parts if isinstance(part, KeepRun)]) >= len(new)
    return False


def _is_same(old: list[bytes] | PackedMap, short: bytes) -> bool:
    """Return whether a split value equals that short one."""
    if isinstance(old, list):
        return as_items(short) == old
    entries = as_map(short)
    return entries is not None and diff_maps(old, entries) == NOTHING


def diff_maps(old: PackedMap, new: PackedMap, depth: int = 0) -> EditMap:
    """Return the edit that turns one dict, or state, into the other; an empty edit if they are the same."""
    removed = () if old.keys() <= new.keys() else tuple(key for key in old if key not in new)
    put: list[tuple[bytes, Operation]] = []
    for key, value in new.items():
        before = old.get(key)
        if before is value or (type(value) is bytes and before == value):
            continue  # most of them
        change: Operation | None = set_to(value) if before is None else diff(before, value, depth + 1)
        if change is not None:
            put.append((key, change))
    return EditMap(removed, tuple(put), moved(list(old), new))


def _edit(old: Packed, new: Packed, depth: int) -> Operation | None:
    """Return the edit of a part of the value, where both are of a kind that has parts."""
    old_items, new_items = as_items(old), as_items(new)
    if old_items is not None and new_items is not None:
        return diff_lists(old_items, new_items, depth)
    old_map, new_map = as_map(old), as_map(new)
    if old_map is not None and new_map is not None:
        return diff_maps(old_map, new_map, depth)
    if isinstance(old, bytes) and isinstance(new, bytes) and len(old) >= _LONG_TEXT:
        for is_kind in (msgpack.is_str, msgpack.is_bin):
            if is_kind(old) and is_kind(new):
                return _diff_text(msgpack.content(old), msgpack.content(new))
    return None


# Dicts --------------------------------------------------------------------------------------------------------


def moved(old: list[bytes], new: PackedMap) -> tuple[bytes, ...]:
    """Return the keys that must move to the end, in order, to bring the edited dict into the new one's order."""
    order = list(new)
    if order == old:
        return ()
    kept = [key for key in old if key in new]
    if order[: len(kept)] == kept:
        return ()
    place = {key: i for i, key in enumerate(kept)}
    last = -1
    for i, key in enumerate(order):
        if place.get(key, -1) <= last:
            return tuple(order[i:])
        last = place[key]
    return ()


# Lists --------------------------------------------------------------------------------------------------------


def diff_lists(old: list[bytes], new: list[bytes], depth: int = 0) -> EditList | EditMap:
    """Return the edit that turns one list into the other, `NOTHING` if they are the same."""
    start = sequences.common_prefix(old, new)
    if start == len(old):
        if start == len(new):
            return NOTHING
        return EditList((KeepRun(0, start), tuple(new[start:]))) if start else EditList((tuple(new),))
    end = sequences.common_suffix(old, new, start)
    old_end, new_end = len(old) - end, len(new) - end
    middle, fresh = old[start:old_end], new[start:new_end]
    is_large = max(map(len, fresh), default=0) > LARGE
    pointer = next(filter(is_pointer, middle), None) if is_large else None
    if pointer is not None:
        salt = parse_pointer(pointer).salt
        as_pointers = [pointer_to(item, salt).encode() if len(item) > LARGE else item for item in new]
        return _with_values(diff_lists(old, as_pointers, depth), dict(zip(as_pointers, new, strict=True)))
    parts: ListParts = [KeepRun(0, start)] if start else []
    done = start
    reached = start  # where in the old list the last run ended
    for run in sequences.copies(middle, fresh):
        at = start + run.at
        _add_new(parts, old[reached : start + run.start], new[done:at], reached, depth)
        parts.append(KeepRun(start + run.start, run.length))
        done, reached = at + run.length, start + run.start + run.length
    _add_new(parts, old[reached:old_end], new[done:new_end], reached, depth)
    if end:
        parts.append(KeepRun(old_end, end))
    return EditList(joined(parts))


def _with_values(edit: EditList | EditMap, values: dict[bytes, bytes]) -> EditList | EditMap:
    """Return the edit with values in place of pointers that were only used to compare."""
    if not isinstance(edit, EditList):
        return edit
    parts: ListParts = []
    for part in edit.parts:
        parts.append(part if isinstance(part, KeepRun | ChangeItem) else tuple(values.get(item, item) for item in part))
    return EditList(tuple(parts))


def _add_new(parts: ListParts, gone: Sequence[bytes], fresh: Sequence[bytes], index: int, depth: int) -> None:
    """Add items that are not in the old list, or changes of as many that were removed."""
    if not fresh:
        return
    if len(gone) != len(fresh):
        parts.append(tuple(fresh))
        return
    for i, (before, after) in enumerate(zip(gone, fresh, strict=True)):
        change = diff(before, after, depth + 1)
        if change is None or isinstance(change, Set):
            parts.append((after,))
        else:
            parts.append(ChangeItem(index + i, change))


def joined(parts: ListParts) -> tuple[KeepRun | ChangeItem | tuple[bytes, ...], ...]:
    """Return the parts, with adjacent runs joined."""
    joined: ListParts = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, KeepRun) and isinstance(last, KeepRun) and last.start + last.length == part.start:
            joined[-1] = KeepRun(last.start, last.length + part.length)
        elif _is_new(part) and _is_new(last):
            joined[-1] = (*last, *part)  # type: ignore[misc]
        else:
            joined.append(part)
    return tuple(joined)


def _is_new(part: object) -> bool:
    return type(part) is tuple


# Text ---------------------------------------------------------------------------------------------------------


def _diff_text(old: bytes, new: bytes) -> EditText:
    start = sequences.common_prefix_bytes(old, new)
    end = sequences.common_suffix_bytes(old, new, start)
    old_middle, new_middle = old[start : len(old) - end], new[start : len(new) - end]
    parts: list[KeepRun | bytes] = [KeepRun(0, start)] if start else []
    if min(len(old_middle), len(new_middle)) > _MANY_LINES:
        parts += _diff_lines(old_middle, new_middle, start)
    elif new_middle:
        parts.append(new_middle)
    if end:
        parts.append(KeepRun(len(old) - end, end))
    return EditText(tuple(parts))


def _diff_lines(old: bytes, new: bytes, offset: int) -> list[KeepRun | bytes]:
    old_lines, new_lines = old.splitlines(keepends=True), new.splitlines(keepends=True)
    starts = [offset]
    for line in old_lines:
        starts.append(starts[-1] + len(line))
    parts: list[KeepRun | bytes] = []
    done = 0
    for run in sequences.copies(old_lines, new_lines):
        if done < run.at:
            parts.append(b"".join(new_lines[done : run.at]))
        parts.append(KeepRun(starts[run.start], starts[run.start + run.length] - starts[run.start]))
        done = run.at + run.length
    if done < len(new_lines):
        parts.append(b"".join(new_lines[done:]))
    return parts


# How large an edit is, beside the value itself -----------------------------------------------------------------


def _weight(operation: Operation) -> int:
    if isinstance(operation, Set):
        return _PART + packed_size(operation.packed)
    if isinstance(operation, EditMap):
        keys = sum(map(len, operation.removed)) + sum(map(len, operation.moved))
        return keys + sum(_PART + len(key) + _weight(change) for key, change in operation.put)
    if isinstance(operation, Combine):
        return _PART + len(operation.operand)
    weight = 0
    for part in operation.parts:
        weight += _PART
        if isinstance(part, bytes):
            weight += len(part)
        elif isinstance(part, ChangeItem):
            weight += _weight(part.operation)
        elif not isinstance(part, KeepRun):
            weight += sum(map(len, part))
    return weight
