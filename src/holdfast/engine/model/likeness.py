"""Likeness of values: whether one is an edit of another, or took its place and has something in common by coincidence.

People use the same words, and the same small values. What is so short says nothing of who wrote it. A text is an edit
of another one if more than that, and at least half of the other, is still there; a short text only if all of it is, as
one that something was added to: a message that resembles the one before it is a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from holdfast._named_tuple import NamedTuple
from holdfast.codec import msgpack
from holdfast.engine.model.packed_state import Packed, as_items, as_map, flatten

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
