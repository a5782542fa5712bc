"""Common parts of two sequences, for differences and merges of lists and of texts.

Items are compared as bytes, without Python code per item where they are equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import compress, count
from operator import ne

from holdfast._named_tuple import NamedTuple


class MatchingRun(NamedTuple):
    """`length` items from `start` on in the old sequence stand at `at` in the new one."""

    start: int
    at: int
    length: int


def common_prefix(old: Sequence[bytes], new: Sequence[bytes]) -> int:
    """Return how many items both start with."""
    limit = min(len(old), len(new))
    if old[:limit] == new[:limit]:
        return limit  # as for lists that grow, mostly of the identical items
    return next(compress(count(), map(ne, old, new)), limit)


def common_suffix(old: Sequence[bytes], new: Sequence[bytes], after: int) -> int:
    """Return how many items both end with, not counting the first `after` of either."""
    limit = min(len(old), len(new)) - after
    return min(limit, next(compress(count(), map(ne, reversed(old), reversed(new))), limit))


_as_number = int.from_bytes  # type: ignore[stored-bytes]  # to compare many bytes at once: there are none to read


def common_prefix_bytes(old: bytes, new: bytes) -> int:
    """Return how many bytes both start with."""
    limit = min(len(old), len(new))
    differing = _as_number(old[:limit]) ^ _as_number(new[:limit])
    return limit - (differing.bit_length() + 7) // 8


def common_suffix_bytes(old: bytes, new: bytes, after: int) -> int:
    """Return how many bytes both end with, not counting the first `after` of either."""
    limit = min(len(old), len(new)) - after
    if not limit:
        return 0
    differing = _as_number(old[-limit:]) ^ _as_number(new[-limit:])
    return ((differing & -differing).bit_length() - 1) // 8 if differing else limit


_FEW = 8
"""So many items are looked at one by one: what takes less time for many takes more for them."""


def copies(old: Sequence[bytes], new: Sequence[bytes]) -> list[MatchingRun]:
    """Return runs of the old sequence of which the new one can be composed, in the order of the new one.

    Runs may be moved or used twice; of several possible ones, the one that continues the last run is chosen.
    """
    places: dict[bytes, list[int]] = {}
    runs: list[MatchingRun] = []
    expected = at = searches = 0
    while at < len(new):
        item = new[at]
        searches += 1
        if searches <= _FEW:
            start = _search(old, item, expected)
        else:
            if not places:
                for i, each in enumerate(old):
                    places.setdefault(each, []).append(i)
            result = places.get(item, (-1,))
            nearest = bisect_left(result, expected)
            start = result[nearest] if nearest < len(result) else result[0]
        if start < 0:
            at += 1
            continue
        length = 1
        while start + length < len(old) and at + length < len(new) and old[start + length] == new[at + length]:
            length += 1
            if length == _FEW:
                length += _long_run(old, new, start + length, at + length)
                break
        runs.append(MatchingRun(start, at, length))
        expected = start + length
        at += length
    return runs


def _search(items: Sequence[bytes], item: bytes, expected: int) -> int:
    """Return the first place of an item from the expected one on, or else before it; -1 if it is nowhere."""
    if item not in items:
        return -1  # as most that are searched for
    try:
        return items.index(item, expected)
    except ValueError:
        return items.index(item)


def _long_run(old: Sequence[bytes], new: Sequence[bytes], start: int, at: int) -> int:
    """Return how many items are the same in both from these places on, without Python code for each of them."""
    length, size = 0, 4 * _FEW
    while True:
        same = common_prefix(old[start + length : start + length + size], new[at + length : at + length + size])
        length += same
        if same < size:
            return length
        size *= 4


def alignment(old: Sequence[bytes], new: Sequence[bytes]) -> list[MatchingRun]:
    """Return runs that are in both sequences in the same order, none moved: for three-way merges.

    Items that occur once on either side anchor the alignment (as in patience diff); around the anchors runs are
    extended. Ends with an empty run at the ends of both.
    """
    start = common_prefix(old, new)
    end = common_suffix(old, new, start)
    runs = [MatchingRun(0, 0, start)] if start else []
    anchors = _anchors(old[start : len(old) - end], new[start : len(new) - end])
    done_old = done_new = start
    for a, b in anchors:
        i, j = start + a, start + b
        if i < done_old or j < done_new:
            continue
        low = 0
        while i - low > done_old and j - low > done_new and old[i - low - 1] == new[j - low - 1]:
            low += 1
        high = 1
        while i + high < len(old) - end and j + high < len(new) - end and old[i + high] == new[j + high]:
            high += 1
        runs.append(MatchingRun(i - low, j - low, low + high))
        done_old, done_new = i + high, j + high
    if end:
        runs.append(MatchingRun(len(old) - end, len(new) - end, end))
    runs.append(MatchingRun(len(old), len(new), 0))
    return runs


def _anchors(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the longest list of pairs of equal items, unique on both sides, that ascends on both sides."""
    pairs = []
    places = _unique(new)
    for item, i in _unique(old).items():
        j = places.get(item)
        if j is not None:
            pairs.append((i, j))
    # Longest increasing subsequence of the new positions, the old ones being ascending already.
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for k, (_, j) in enumerate(pairs):
        place = bisect_left(tails, j)
        before.append(ends[place - 1] if place else -1)
        if place == len(tails):
            tails.append(j)
            ends.append(k)
        else:
            tails[place] = j
            ends[place] = k
    chain = []
    k = ends[-1] if ends else -1
    while k >= 0:
        chain.append(pairs[k])
        k = before[k]
    return chain[::-1]


def _unique(items: Sequence[bytes]) -> dict[bytes, int]:
    """Return the position of each item that occurs once."""
    used: dict[bytes, int] = {}
    for i, item in enumerate(items):
        used[item] = -1 if item in used else i
    return {item: i for item, i in used.items() if i >= 0}
