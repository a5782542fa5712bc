"""What became of the items of a list, or of the words of a text: kept, changed, added, removed.

Items that occur once on either side anchor the alignment; short stretches between anchors are compared more closely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple, TypeAlias

from msgspec.json import encode

from holdfast.codec.json_codec import is_mark
from holdfast.engine.model import sequences

_CLOSELY = 20_000
"""How many pairs of items a stretch has at most to be compared one by one."""

_PAIRS = 2_500
"""The same for looking how like two items are, which takes longer."""

_ALIKE = 0.5
"""From here on an item is taken for a changed form of another."""

_TEXT, _SHORT = 2_000, 200
"""So much of a text is looked at to see how like another it is; and up to here, by its characters and not its words."""


class AlignmentGap(NamedTuple):
    """Items `start` to `stop` of the old sequence, in whose place stand `at` to `until` of the new one."""

    start: int
    stop: int
    at: int
    until: int


def gaps(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[AlignmentGap]:
    """Where two sequences differ."""
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
    """Which of the new items, as JSON, is a changed form of which old one, in the order of both.

    None: the item has no counterpart. Items with ids, as messages have them, go by those; others by how like they are.
    """
    found = _by_likeness(old, new) if len(old) * len(new) <= _PAIRS else _by_id(old, new)
    done: list[tuple[int | None, int | None]] = []
    i = j = 0
    for a, b in [*found, (len(old), len(new))]:
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
    """As many items went as came: each took the place of another, unless their ids say that they are two."""
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


def _by_likeness(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[int, int]]:
    """The pairs, ascending on both sides, that are most like each other altogether."""
    bags: _Bags = {}
    scores = [[likeness(one, other, bags) for other in new] for one in old]
    best = [[0.0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            paired = best[i + 1][j + 1] + scores[i][j] if scores[i][j] >= _ALIKE else 0.0
            best[i][j] = max(paired, best[i + 1][j], best[i][j + 1])
    found = []
    i = j = 0
    while i < len(old) and j < len(new):
        if scores[i][j] >= _ALIKE and best[i][j] == best[i + 1][j + 1] + scores[i][j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


_Bags: TypeAlias = dict[str, Counter[str]]
"""The words of texts, so that each is taken apart once however many it is compared with."""


def likeness(one: Any, other: Any, bags: _Bags) -> float:
    """How like two values in JSON form are, from 0 to 1."""
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
    """The id that an item has, if it has one."""
    fields = fields_of(tree)
    id = fields.get("id") if type(fields) is dict else None
    return f"id {id!r}" if type(id) in (str, int) else None


def fields_of(tree: Any) -> Any:
    """What a value in JSON form holds: of an object of a class, its fields."""
    if type(tree) is not dict or not is_mark(tree):
        return tree
    ((mark, content),) = tree.items()
    if type(content) is list and len(content) > 1 and type(content[0]) is str and type(content[1]) is dict:
        return content[1]
    return content if type(content) is dict or mark == "$tuple" else tree
