"""Attribution: which parts of a value some steps wrote, computed from the operations of all steps.

A *mark* says for a value whether they wrote all of it (True), nothing (False), or some entries, items or characters. A
part that another step replaced is no longer theirs; a part that it moved, copied or changed in places still is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.codec import msgpack
from holdfast.codec.tags import Tag
from holdfast.engine.model.operations import ChangeItem, Combine, EditList, EditMap, EditText, KeepRun, Operation, Set
from holdfast.engine.model.operators import Rule
from holdfast.engine.model.packed_state import Packed, PackedMap, as_items, as_map, flatten


class MapMark(NamedTuple):
    """Some entries of a dict: the marks of keys, and that of all others."""

    keys: Mapping[bytes, Mark]
    rest: bool


class ListMark(NamedTuple):
    """Some items of a list: a mark for each."""

    items: tuple[Mark, ...]


class TextMark(NamedTuple):
    """Some bytes of a text: runs of a length, and whether they are marked."""

    runs: tuple[tuple[int, bool], ...]


class SetMark(NamedTuple):
    """Some items of a set, packed."""

    items: frozenset[bytes]


_COINCIDENCE = 8
"""A run of fewer characters that two texts have in common says nothing."""

_MAX_COMPARED = 5000
"""The length of lists and texts that are compared in full."""

Mark: TypeAlias = bool | MapMark | ListMark | TextMark | SetMark


def is_marked(mark: Mark) -> bool:
    """Return whether anything of a value is marked."""
    match mark:
        case MapMark():
            return mark.rest or any(map(is_marked, mark.keys.values()))
        case ListMark():
            return any(map(is_marked, mark.items))
        case TextMark():
            return any(marked and length for length, marked in mark.runs)
        case SetMark():
            return bool(mark.items)
    return bool(mark)


def mark_after(
    mark: Mark, operation: Operation, mine: bool, before: Packed | None, large: Mapping[bytes, bytes]
) -> Mark:
    """Return the mark of a value after an operation, which is that of a marked step or of another.

    `before` is the value before it. `large` has the large values that the operation sets, by their pointers.
    """
    match operation:
        case Set():
            return _after_set(mark, before, large.get(operation.value, operation.value), mine)
        case EditMap():
            return _after_map(mark, operation, mine, before, large)
        case EditList():
            return _simple(ListMark(tuple(_after_list(mark, operation, mine, before, large))))
        case EditText():
            return _simple(TextMark(tuple(_after_text(mark, operation, mine))))
    return _after_operator(mark, operation, mine, before)


def marked_keys(mark: Mark) -> frozenset[bytes]:
    """Return the keys of a dict that have a mark."""
    return (
        frozenset(key for key, each in mark.keys.items() if is_marked(each))
        if isinstance(mark, MapMark)
        else frozenset()
    )


def with_keys(mark: Mark, keys: Iterable[bytes]) -> Mark:
    """Return the mark of a dict with more keys that are marked as a whole."""
    base = _as_map_mark(mark)
    return MapMark({**base.keys, **dict.fromkeys(keys, True)}, base.rest)


def _simple(mark: Mark) -> Mark:
    return mark if is_marked(mark) else False


def _as_map_mark(mark: Mark) -> MapMark:
    return mark if isinstance(mark, MapMark) else MapMark({}, is_marked(mark))


def _after_set(mark: Mark, before: Packed | None, after: Packed, mine: bool) -> Mark:
    """Return the mark of a value that was written as a whole: small ones are, also if only a part of them changed."""
    if before is None or mine is mark:
        return mine
    if flatten(before) == flatten(after):
        return mark
    old_map, new_map = as_map(before), as_map(after)
    if old_map is not None and new_map is not None:
        base = _as_map_mark(mark)
        keys = {
            key: _after_set(base.keys.get(key, base.rest), old_map.get(key), value, mine)
            for key, value in new_map.items()
        }
        return _simple(MapMark(keys, False))
    old_items, new_items = as_items(before), as_items(after)
    if old_items is not None and new_items is not None:
        return _simple(ListMark(tuple(_replaced_items(mark, old_items, new_items, mine))))
    if isinstance(before, bytes) and isinstance(after, bytes) and msgpack.is_str(before) and msgpack.is_str(after):
        return _simple(TextMark(tuple(_replaced_text(mark, msgpack.content(before), msgpack.content(after), mine))))
    return mine


def _replaced_items(mark: Mark, old: list[bytes], new: list[bytes], mine: bool) -> Iterator[Mark]:
    """Yield the marks of the items of a list that replaced another one."""
    marks = tuple(_items(mark, 0, len(old)))
    for tag, start, stop, at, end in _opcodes(old, new):
        if tag == "equal":
            yield from marks[start:stop]
        elif stop - start == end - at:
            pairs = zip(marks[start:stop], old[start:stop], new[at:end], strict=True)
            yield from (_after_set(each, before, after, mine) for each, before, after in pairs)
        else:
            yield from (mine,) * (end - at)


def _replaced_text(mark: Mark, old: bytes, new: bytes, mine: bool) -> Iterator[tuple[int, bool]]:
    """Yield the runs of a text that replaced another one. What both have in common keeps its marks, unless another
    wrote it and it is so short that it is a coincidence."""
    runs = mark.runs if isinstance(mark, TextMark) else ((len(old), is_marked(mark)),)
    texts = old.decode(errors="surrogateescape"), new.decode(errors="surrogateescape")
    for tag, start, stop, at, end in _opcodes(*texts):
        before = texts[0][:start].encode(errors="surrogateescape")
        length = len(texts[1][at:end].encode(errors="surrogateescape"))
        if tag == "equal" and (mine or stop - start >= _COINCIDENCE):
            yield from _cut(runs, KeepRun(len(before), length))
        else:
            yield length, mine


def _opcodes(old: Sequence[Any], new: Sequence[Any]) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield how a sequence became another one, as `difflib` does. Long ones are compared at both ends only."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    if head:
        yield "equal", 0, head, 0, head
    rest = old[head : len(old) - tail], new[head : len(new) - tail]
    if max(map(len, rest)) <= _MAX_COMPARED:
        for tag, start, stop, at, end in SequenceMatcher(None, *rest, autojunk=False).get_opcodes():
            yield tag, start + head, stop + head, at + head, end + head
    else:
        yield "replace", head, len(old) - tail, head, len(new) - tail
    if tail:
        yield "equal", len(old) - tail, len(old), len(new) - tail, len(new)


def _after_map(mark: Mark, edit: EditMap, mine: bool, before: Packed | None, large: Mapping[bytes, bytes]) -> Mark:
    base = _as_map_mark(mark)
    keys = dict(base.keys)
    values = (None if before is None else as_map(before)) or {}
    for key in edit.removed:
        keys[key] = False
    for key, operation in edit.put:
        removed = key in edit.removed
        old = None if removed else values.get(key)
        keys[key] = mark_after(keys.get(key, base.rest), operation, mine, old, large)
    return _simple(MapMark({key: each for key, each in keys.items() if base.rest or is_marked(each)}, base.rest))


def _items(mark: Mark, start: int, length: int) -> Iterable[Mark]:
    if isinstance(mark, ListMark):
        return mark.items[start : start + length]
    return (is_marked(mark),) * length


def _after_list(
    mark: Mark, edit: EditList, mine: bool, before: Packed | None, large: Mapping[bytes, bytes]
) -> Iterator[Mark]:
    old = (None if before is None else as_items(before)) or []
    for part in edit.parts:
        if isinstance(part, KeepRun):
            yield from _items(mark, part.start, part.length)
        elif isinstance(part, ChangeItem):
            (item,) = _items(mark, part.place, 1) or (False,)
            yield mark_after(item, part.operation, mine, old[part.place] if part.place < len(old) else None, large)
        else:
            yield from (mine,) * len(part)


def _after_text(mark: Mark, edit: EditText, mine: bool) -> Iterator[tuple[int, bool]]:
    for part in edit.parts:
        if isinstance(part, bytes):
            yield len(part), mine
        elif isinstance(mark, TextMark):
            yield from _cut(mark.runs, part)
        else:
            yield part.length, is_marked(mark)


def _cut(runs: Iterable[tuple[int, bool]], part: KeepRun) -> Iterator[tuple[int, bool]]:
    """Return the runs in a part of a text."""
    at, end = 0, part.start + part.length
    for length, marked in runs:
        overlap = min(at + length, end) - max(at, part.start)
        if overlap > 0:
            yield overlap, marked
        at += length


def _after_operator(mark: Mark, operator: Combine, mine: bool, before: Packed | None) -> Mark:
    if operator.rule is Rule.APPEND:
        old = None if before is None else as_items(before)
        new = operator.items or []
        if old is None:
            return mine if before is None and not is_marked(mark) else mine or is_marked(mark)
        return _simple(ListMark((*_items(mark, 0, len(old)), *(mine,) * len(new))))
    if operator.rule is Rule.ADD_TO_SET:
        added, existing = _set_items(operator.operand), _set_items(before)
        marked = mark.items if isinstance(mark, SetMark) else existing if is_marked(mark) else frozenset[bytes]()
        return _simple(SetMark(marked | (added - existing) if mine else marked - added))
    return mark  # a sum or a maximum says nothing of who contributed to it


def _set_items(packed: Packed | None) -> frozenset[bytes]:
    if not isinstance(packed, bytes) or not packed:
        return frozenset()
    typed = msgpack.split_ext(packed)
    return frozenset(msgpack.split_array(typed[1])) if typed is not None and typed[0] in _SETS else frozenset()


_SETS = (Tag.SET, Tag.FROZENSET)


def without_marked(packed: Packed, mark: Mark) -> Packed | None:
    """Return a value without what is marked; None if nothing is left, or it cannot be taken apart. Large values must
    have been loaded."""
    if not is_marked(mark):
        return packed
    match mark:
        case MapMark():
            entries = as_map(packed)
            return None if entries is None or mark.rest else _without_entries(entries, mark)
        case ListMark():
            items = as_items(packed)
            if items is None or len(items) != len(mark.items):
                return None
            left = (without_marked(item, each) for item, each in zip(items, mark.items, strict=True))
            return [flatten(item) for item in left if item is not None]
        case TextMark():
            return _without_runs(packed, mark)
        case SetMark():
            typed = msgpack.split_ext(flatten(packed))
            return (
                None
                if typed is None
                else msgpack.ext(typed[0], msgpack.join_array(sorted(_set_items(packed) - mark.items)))
            )
    return None


def _without_entries(entries: PackedMap, mark: MapMark) -> PackedMap:
    left = {key: without_marked(value, mark.keys.get(key, False)) for key, value in entries.items()}
    return {key: value for key, value in left.items() if value is not None}


def _without_runs(packed: Packed, mark: TextMark) -> bytes | None:
    if not isinstance(packed, bytes) or not (msgpack.is_str(packed) or msgpack.is_bin(packed)):
        return None
    old, new, at = msgpack.content(packed), b"", 0
    if sum(length for length, _ in mark.runs) != len(old):
        return None
    for length, marked in mark.runs:
        if not marked:
            new += old[at : at + length]
        at += length
    if msgpack.is_bin(packed):
        return msgpack.binary(new)
    return msgpack.text(new.decode(errors="ignore").encode())  # a run may end inside of a character


def only_marked(packed: Packed, mark: Mark) -> Packed | None:
    """Return what is marked of a value; None if that is nothing. Large values must have been loaded."""
    if not is_marked(mark):
        return None
    match mark:
        case MapMark():
            entries = {
                key: only_marked(value, mark.keys.get(key, mark.rest)) for key, value in (as_map(packed) or {}).items()
            }
            return {key: value for key, value in entries.items() if value is not None}
        case ListMark():
            pairs = zip(as_items(packed) or [], mark.items, strict=False)
            return [flatten(left) for item, each in pairs if (left := only_marked(item, each)) is not None]
        case TextMark():
            return _without_runs(packed, TextMark(tuple((length, not marked) for length, marked in mark.runs)))
        case SetMark():
            typed = msgpack.split_ext(flatten(packed))
            return None if typed is None else msgpack.ext(typed[0], msgpack.join_array(sorted(mark.items)))
    return packed
