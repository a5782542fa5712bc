"""Attribution: which parts of a value some steps wrote, computed from the operations of all steps.

A *mark* says for a value whether they wrote all of it (True), nothing (False), or some entries, items or characters. A
part that another step replaced is no longer theirs; a part that it moved, copied or changed in places still is. A
value that replaced another one is its writer's as a whole, unless most of the other is still in it.

Likeness of values: whether one is an edit of another, or took its place and has something in common by coincidence.

People use the same words, and the same small values. What is so short says nothing of who wrote it. A text is an edit
of another one if more than that, and at least half of the other, is still there; a short text only if all of it is, as
one that something was added to: a message that resembles the one before it is a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, TypeAlias

from holdfast._named_tuple import NamedTuple
from holdfast.codec import msgpack
from holdfast.codec.tags import Tag
from holdfast.engine.model.operations import (
    ChangeItem,
    Combine,
    EditList,
    EditMap,
    EditText,
    KeepRun,
    Operation,
    Set,
    apply,
)
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
    mark: Mark,
    edit: EditMap,
    mine: bool,
    before: Packed | None,
    large: Mapping[bytes, bytes],
    *,
    whole: bool = False,
    whole_texts: bool = False,
) -> Mark:
    """Return the mark of a state after the edit of a step, which is a marked step or another one.

    `before` is the state before it. `large` has the large values that the edit sets, by their pointers. With `whole`,
    values that it replaces are compared with nothing: they are its own, as a message of a topic is. With `whole_texts`,
    so are texts.
    """
    return _Attribution(mine, large, whole, whole_texts, mark, before).after_map(mark, edit, before)


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


class _Attribution:
    """Computes the marks of values after an operation of one step."""

    def __init__(
        self,
        mine: bool,
        large: Mapping[bytes, bytes],
        whole: bool,
        whole_texts: bool,
        mark: Mark,
        before: Packed | None,
    ) -> None:
        """`mark` and `before` are of the whole state, from which the step may move or copy values."""
        self._mine = mine
        self._large = large
        self._whole = whole
        self._whole_texts = whole_texts
        self._mark = mark
        self._before = before

    def _is_taken(self, value: Packed) -> bool:
        """Return whether a value was in the state before, and is not the step's own, nor there by coincidence."""
        if self._before is None or not evidence(value):
            return False
        return _has(self._before, self._mark, flatten(value), not self._mine)

    def _after(self, mark: Mark, operation: Operation, before: Packed | None) -> Mark:
        if self._whole:
            return self._mine
        match operation:
            case Set():
                return self._replaced(mark, before, self._large.get(operation.value, operation.value))
            case EditMap():
                return self._after_part(mark, operation, before)
            case EditList():
                return _simple(ListMark(tuple(self._after_list(mark, operation, before))))
            case EditText():
                if before is None:
                    return self._mine
                return self._replaced(mark, before, apply(operation, before, self._large.__getitem__))
        return self._after_operator(mark, operation, before)

    # Dicts ------------------------------------------------------------------------------------------------------

    def after_map(self, mark: Mark, edit: EditMap, before: Packed | None) -> Mark:
        """Return the mark of a dict after an edit of some entries: of others, it stays."""
        base = _as_map_mark(mark)
        keys = dict(base.keys)
        values = (None if before is None else as_map(before)) or {}
        for key in edit.removed:
            keys[key] = False
        for key, operation in edit.put:
            old = None if key in edit.removed else values.get(key)
            keys[key] = self._after(keys.get(key, base.rest), operation, old)
        return _simple(MapMark({key: each for key, each in keys.items() if base.rest or is_marked(each)}, base.rest))

    def _after_part(self, mark: Mark, edit: EditMap, before: Packed | None) -> Mark:
        """Return the mark of a dict in another value. If most of it changed, entries that happen to be equal, such as
        a role, are the step's as well."""
        after = self.after_map(mark, edit, before)
        old = None if before is None else as_map(before)
        if old is None:
            return after
        new = as_map(apply(edit, old, self._large.__getitem__)) or {}
        if is_edited(old, new):
            return after
        changed = {key for key, _ in edit.put}
        base = _as_map_mark(after)
        same = {key: self._mine for key in new if key not in changed and not evidence(new[key])}
        return _joined(MapMark({**{key: base.keys.get(key, base.rest) for key in new}, **same}, False))

    def _replaced_map(self, mark: Mark, old: PackedMap, new: PackedMap) -> Mark:
        base, edited = _as_map_mark(mark), is_edited(old, new)
        keys = {
            key: self._mine
            if not edited and key in old and not evidence(value) and flatten(old[key]) == flatten(value)
            else self._replaced(base.keys.get(key, base.rest), old.get(key), value)
            for key, value in new.items()
        }
        return _joined(MapMark(keys, False))

    # Values that were written as a whole ------------------------------------------------------------------------

    def _new(self, value: Packed) -> Mark:
        """Return the mark of a value that was not there, or not in this place."""
        if self._is_taken(value):
            return not self._mine
        if (entries := as_map(value)) is not None:
            return _joined(MapMark({key: self._new(each) for key, each in entries.items()}, False))
        if (items := as_items(value)) is not None:
            return _simple(ListMark(tuple(map(self._new, items))))
        return self._mine

    def _replaced(self, mark: Mark, before: Packed | None, after: Packed) -> Mark:
        """Return the mark of a value that replaced another one: small ones are written as a whole, also if only a part
        of them changed."""
        if before is None or self._mine is mark:
            return self._new(after)
        if flatten(before) == flatten(after):
            return mark
        if self._is_taken(after):
            return not self._mine
        old_map, new_map = as_map(before), as_map(after)
        if old_map is not None and new_map is not None:
            return self._replaced_map(mark, old_map, new_map)
        old_items, new_items = as_items(before), as_items(after)
        if old_items is not None and new_items is not None:
            return _simple(ListMark(tuple(self._replaced_items(mark, old_items, new_items))))
        texts = texts_of(before, after)
        return self._new(after) if texts is None or self._whole_texts else self._replaced_text(mark, *texts)

    def _replaced_items(self, mark: Mark, old: list[bytes], new: list[bytes]) -> Iterator[Mark]:
        marks, edited = tuple(_items(mark, 0, len(old))), is_edited(old, new)
        for tag, start, stop, at, end in opcodes(old, new):
            if tag == "equal":
                yield from (
                    each if edited or evidence(item) else self._mine
                    for each, item in zip(marks[start:stop], new[at:end], strict=True)
                )
            elif stop - start == end - at:
                pairs = zip(marks[start:stop], old[start:stop], new[at:end], strict=True)
                yield from (self._replaced(each, before, after) for each, before, after in pairs)
            else:
                yield from map(self._new, new[at:end])

    def _replaced_text(self, mark: Mark, old: bytes, new: bytes) -> Mark:
        """Return the mark of a text that replaced another one. If it was edited, the words that both have in common
        keep their marks, unless another wrote them and they may be a coincidence."""
        words = common_words(old, new)
        if not words.is_edit:
            return self._mine
        runs = mark.runs if isinstance(mark, TextMark) else ((len(old), is_marked(mark)),)
        marks = list[tuple[int, bool]]()
        for start, length in words.parts:
            if start is None or not (self._mine or says_something(old[start : start + length])):
                marks.append((length, self._mine))
            else:
                marks += _cut(runs, KeepRun(start, length))
        return _simple(TextMark(tuple(marks)))

    # Lists and operators ----------------------------------------------------------------------------------------

    def _after_list(self, mark: Mark, edit: EditList, before: Packed | None) -> Iterator[Mark]:
        old = (None if before is None else as_items(before)) or []
        for part in edit.parts:
            if isinstance(part, KeepRun):
                yield from _items(mark, part.start, part.length)
            elif isinstance(part, ChangeItem):
                (item,) = _items(mark, part.place, 1) or (False,)
                yield self._after(item, part.operation, old[part.place] if part.place < len(old) else None)
            else:
                yield from map(self._new, part)

    def _after_operator(self, mark: Mark, operator: Combine, before: Packed | None) -> Mark:
        mine = self._mine
        if operator.rule is Rule.APPEND:
            old = None if before is None else as_items(before)
            new = operator.items or []
            if old is None:
                return mine if before is None and not is_marked(mark) else mine or is_marked(mark)
            return _simple(ListMark((*_items(mark, 0, len(old)), *map(self._new, new))))
        if operator.rule is Rule.ADD_TO_SET:
            added, existing = _set_items(operator.operand), _set_items(before)
            marked = mark.items if isinstance(mark, SetMark) else existing if is_marked(mark) else frozenset[bytes]()
            return _simple(SetMark(marked | (added - existing) if mine else marked - added))
        if msgpack.is_str(operator.operand):  # the greater of two texts
            after = flatten(apply(operator, before, self._large.__getitem__))
            return mark if before is not None and after == flatten(before) else self._new(after)
        return mark  # a sum or a maximum of numbers says nothing of who contributed to it


def _has(packed: Packed, mark: Mark, value: bytes, marked: bool) -> bool:
    """Return whether a state has a value that is marked, or one that is not."""
    if packed == value:
        return mark is marked
    if (entries := as_map(packed)) is not None:
        marks = _as_map_mark(mark)
        return any(_has(each, marks.keys.get(key, marks.rest), value, marked) for key, each in entries.items())
    items = as_items(packed) or []
    if value not in b"".join(items):  # much faster than to look into each of many
        return False
    pairs = zip(items, _items(mark, 0, len(items)), strict=True)
    return any(_has(item, each, value, marked) for item, each in pairs if value in item)


def _joined(mark: MapMark) -> Mark:
    """Return the mark of a dict as that of a whole value, if all of it is marked."""
    if mark.keys and all(each is True for each in mark.keys.values()):
        return True
    return _simple(mark)


def _items(mark: Mark, start: int, length: int) -> Iterable[Mark]:
    if isinstance(mark, ListMark):
        return mark.items[start : start + length]
    return (is_marked(mark),) * length


def _cut(runs: Iterable[tuple[int, bool]], part: KeepRun) -> Iterator[tuple[int, bool]]:
    """Return the runs in a part of a text."""
    at, end = 0, part.start + part.length
    for length, marked in runs:
        overlap = min(at + length, end) - max(at, part.start)
        if overlap > 0:
            yield overlap, marked
        at += length


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
            return None if entries is None else _without_entries(entries, mark)
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


def _without_entries(entries: PackedMap, mark: MapMark) -> PackedMap | None:
    marked = {key: without_marked(value, mark.keys.get(key, mark.rest)) for key, value in entries.items()}
    left = {key: value for key, value in marked.items() if value is not None}
    return None if mark.rest and not left else left


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


_MAX_COMPARED = 5000
"""The length of lists, in items, and of texts, in words and the blanks between, that are compared in full."""

_SHORT_TEXT = 200
"""A text of fewer bytes, in one line, is taken for a message or a name, not for a document."""

_FEW_WORDS = 3
_LONG_WORD = 10
"""Fewer words may be a coincidence, unless one of them has so many characters."""

_FEW_BYTES = 32

_WORD = re.compile(rb"\s+|\S+")


def says_something(text: bytes) -> bool:
    """Return whether that two texts have this in common is no coincidence."""
    words = text.decode(errors="replace").split()
    return len(words) >= _FEW_WORDS or any(len(word) >= _LONG_WORD for word in words)


def texts_of(old: Packed, new: Packed) -> tuple[bytes, bytes] | None:
    """Return two texts, or two values of bytes; None if they are of other types."""
    if isinstance(old, bytes) and isinstance(new, bytes) and old and new:
        for is_kind in (msgpack.is_str, msgpack.is_bin):
            if is_kind(old) and is_kind(new):
                return msgpack.content(old), msgpack.content(new)
    return None


def evidence(packed: Packed) -> int:
    """Return how many bytes of a value are no coincidence if another one has them too."""
    return _weigh(packed)[0]


def is_edited(old: Packed, new: Packed) -> bool:
    """Return whether a dict or a list is an edit of another one: at least half of that is still there."""
    (kept, kept_parts), (total, parts) = _common(old, new), _weigh(old)
    return kept * 2 >= total if total else kept_parts * 2 > parts


def _weigh(packed: Packed) -> tuple[int, int]:
    """Return the evidence in a value, and the number of its parts."""
    if (entries := as_map(packed)) is not None:
        return _sum(map(_weigh, entries.values()))
    if (items := as_items(packed)) is not None:
        return _sum(map(_weigh, items))
    if texts := texts_of(packed, packed):
        return (len(texts[0]) if says_something(texts[0]) else 0), 1
    size = len(flatten(packed))
    return (size if size >= _FEW_BYTES else 0), 1


def _common(old: Packed, new: Packed) -> tuple[int, int]:
    """Return the weight of what a value still has of another one."""
    if flatten(old) == flatten(new):
        return _weigh(old)
    old_map, new_map = as_map(old), as_map(new)
    if old_map is not None and new_map is not None:
        return _sum(_common(old_map[key], value) for key, value in new_map.items() if key in old_map)
    old_items, new_items = as_items(old), as_items(new)
    if old_items is not None and new_items is not None:
        return _sum(_common_items(old_items, new_items))
    if texts := texts_of(old, new):
        words = common_words(*texts)
        return (words.kept, 1) if words.is_edit else (0, 0)
    return 0, 0


def _common_items(old: list[bytes], new: list[bytes]) -> Iterator[tuple[int, int]]:
    for tag, start, stop, at, end in opcodes(old, new):
        if tag == "equal" or stop - start == end - at:
            yield from (_common(*pair) for pair in zip(old[start:stop], new[at:end], strict=True))


def _sum(weights: Iterator[tuple[int, int]]) -> tuple[int, int]:
    total = parts = 0
    for weight, count in weights:
        total, parts = total + weight, parts + count
    return total, parts


class CommonWords(NamedTuple):
    """The words that two texts have in common."""

    is_edit: bool
    kept: int
    """How many bytes of the old text are still there, without coincidences."""
    parts: tuple[tuple[int | None, int], ...]
    """The new text: where a part of it starts in the old one, or None if it is new, and its length, in bytes."""


def common_words(old: bytes, new: bytes) -> CommonWords:
    """Compare two texts word by word."""
    words = _WORD.findall(old), _WORD.findall(new)
    starts = [0]
    for word in words[0]:
        starts.append(starts[-1] + len(word))
    kept, left, parts = 0, 0, list[tuple[int | None, int]]()
    for tag, start, stop, at, end in opcodes(*words):
        length = sum(map(len, words[1][at:end]))
        if tag == "equal":
            run = old[starts[start] : starts[stop]]
            kept += length if says_something(run) else 0
            left += len(b"".join(run.split()))
        if length:
            parts.append((starts[start] if tag == "equal" else None, length))
    if len(old) < _SHORT_TEXT and b"\n" not in old:
        is_edit = says_something(old) and left == len(b"".join(old.split()))
    else:
        is_edit = kept * 2 >= len(old)
    return CommonWords(is_edit, kept, tuple(parts))


def opcodes(old: Sequence[Any], new: Sequence[Any]) -> Iterator[tuple[str, int, int, int, int]]:
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
