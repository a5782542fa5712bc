"""The alignment of two lists, or of the words of two texts: which items are unchanged, changed, added, removed.

Items that occur once on either side anchor the alignment; short stretches between anchors are compared more closely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple, TypeAlias

from msgspec.json import encode

from holdfast.codec.json_codec import fields_of
from holdfast.engine.model import sequences

_CLOSELY = 20_000
"""The largest number of pairs of items of a stretch that is compared one by one."""

_PAIRS = 2_500
"""The largest number of pairs whose similarity is computed, which takes longer."""

_SIMILAR = 0.5
"""The least similarity of an item to one that it is a changed form of."""

_TEXT, _SHORT = 2_000, 200
"""How many characters of a text are compared for similarity; and up to how many, by characters and not by words."""


class AlignmentGap(NamedTuple):
    """Items `start` to `stop` of the old sequence, in whose place stand `at` to `until` of the new one."""

    start: int
    stop: int
    at: int
    until: int


def gaps(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[AlignmentGap]:
    """Yield where two sequences differ."""
    start = at = 0
    for run in sequences.alignment(old, new):
        if run.start > start or run.at > at:
            yield from _closer(old, new, AlignmentGap(start, run.start, at, run.at))
        start, at = run.start + run.length, run.at + run.length


def _closer(old: Sequence[bytes], new: Sequence[bytes], gap: AlignmentGap) -> Iterator[AlignmentGap]:
    start, stop, at, until = gap
    if not 0 < (stop - start) * (until - at) <= _CLOSELY:
        yield gap
        return
    matcher = SequenceMatcher(None, old[start:stop], new[at:until], autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind != "equal":
            yield AlignmentGap(start + i, start + j, at + k, at + m)


# Pairs ----------------------------------------------------------------------------------------------------------


def pairs(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[int | None, int | None]]:
    """Return which of the new items, as JSON, is a changed form of which old one, in the order of both.

    None: the item has no counterpart. Items with ids, as messages have them, are matched by those; others by
    similarity.
    """
    result = _by_similarity(old, new) if len(old) * len(new) <= _PAIRS else _by_id(old, new)
    done: list[tuple[int | None, int | None]] = []
    i = j = 0
    for a, b in [*result, (len(old), len(new))]:
        if a - i == b - j:
            done += _in_place(old, new, i, j, a - i)
        else:
            done += ((k, None) for k in range(i, a))
            done += ((None, k) for k in range(j, b))
        if a < len(old):
            done.append((a, b))
        i, j = a + 1, b + 1
    return done


def _in_place(
    old: Sequence[Any], new: Sequence[Any], i: int, j: int, count: int
) -> Iterator[tuple[int | None, int | None]]:
    """Yield pairs of as many removed as added items: each replaced another, unless their ids differ."""
    for k in range(count):
        one, other = identity(old[i + k]), identity(new[j + k])
        if one == other or None in (one, other):
            yield i + k, j + k
        else:
            yield i + k, None
            yield None, j + k


def _by_id(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[int, int]]:
    names = [[(identity(item) or f"{side} {i}").encode() for i, item in enumerate(items)] for side, items in
             (("old", old), ("new", new))]  # fmt: skip
    runs = sequences.alignment(*names)
    return [(run.start + i, run.at + i) for run in runs for i in range(run.length)]


def _by_similarity(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the pairs, ascending on both sides, with the greatest total similarity."""
    bags: _Bags = {}
    scores = [[similarity(one, other, bags) for other in new] for one in old]
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            paired = best[i + 1][j + 1] + scores[i][j] if scores[i][j] >= _SIMILAR else 0.0
            best[i][j] = max(paired, best[i + 1][j], best[i][j + 1])
    result = []
    i = j = 0
    while i < len(old) and j < len(new):
        if scores[i][j] >= _SIMILAR and best[i][j] == best[i + 1][j + 1] + scores[i][j]:
            result.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return result


_Bags: TypeAlias = dict[str, Counter[str]]
"""The words of texts, so that each is split once however many it is compared with."""


def similarity(one: Any, other: Any, bags: _Bags) -> float:
    """Return the similarity of two values in JSON form, from 0 to 1."""
    if identity(one) != identity(other):
        return 0.0
    if identity(one) is not None:
        return 1.0
    one, other = fields_of(one), fields_of(other)
    if type(one) is not type(other):
        return 0.0
    if type(one) is dict:
        names = one.keys() | other.keys()
        return sum(_entry(one, other, name, bags) for name in names) / max(len(names), 1)
    if type(one) is str:
        return _texts(one, other, bags)
    if type(one) is list:
        parts = SequenceMatcher(None, [*map(encode, one)], [*map(encode, other)], autojunk=False)
        return parts.quick_ratio()
    return 0.0


def _texts(one: str, other: str, bags: _Bags) -> float:
    if max(len(one), len(other)) <= _SHORT:
        return SequenceMatcher(None, one, other, autojunk=False).quick_ratio()
    for text in (one, other):
        if text not in bags:
            bags[text] = Counter(text[:_TEXT].split())
    mine, yours = bags[one], bags[other]
    return 2 * (mine & yours).total() / max(mine.total() + yours.total(), 1)


def _entry(one: dict[str, Any], other: dict[str, Any], name: str, bags: _Bags) -> float:
    if name not in one or name not in other:
        return 0.0
    a, b = one[name], other[name]
    if type(a) is str and type(b) is str and a != b:
        return _texts(a, b, bags)
    return float(encode(a) == encode(b))


def identity(tree: Any) -> str | None:
    """Return the id of an item, if it has one."""
    fields = fields_of(tree)
    id = fields.get("id") if type(fields) is dict else None
    return f"id {id!r}" if type(id) in (str, int) else None
