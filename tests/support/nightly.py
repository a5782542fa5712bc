"""Parameters of which the ordinary run takes a part, and `make nightly` all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Number = TypeVar("Number", int, float)

EVERYDAY_EXAMPLES = 12
"""How many examples the ordinary run tries of a law."""


def mostly_nightly(cases: Iterable[Any], *, daily: Collection[Any]) -> list[Any]:
    """Mark all cases as nightly but for the daily ones. A case of several parameters is a tuple."""
    known = list(cases)
    check_daily(known, daily)
    return [case if case in daily else pytest.param(*_tuple(case), marks=pytest.mark.nightly) for case in known]


def fewer_examples(part: int = 3) -> settings:
    """Return settings for a law whose examples take long: the ordinary run tries a part of the usual number."""
    usual = settings().max_examples
    return settings(max_examples=usual if by_night() else usual // part)


def examples(number: int) -> int:
    """Return how many examples of a law are tried that has a number of its own: by day at most half of the usual."""
    return number if by_night() else min(number, EVERYDAY_EXAMPLES // 2)


def by_day(usual: Number, daily: Number) -> Number:
    """Return how often, how much or in what stride a test tries something: the usual, or by day another number."""
    return usual if by_night() else daily


def by_night() -> bool:
    """Return whether this is a run with all examples."""
    return settings().max_examples > EVERYDAY_EXAMPLES


def check_daily(cases: Collection[Any], daily: Collection[Any]) -> None:
    """Refuse a daily case that is none of the cases: it is misspelt, and the one that was meant would be nightly."""
    unknown = [case for case in daily if case not in cases]
    assert daily, "no case is a daily one"
    assert not unknown, f"these daily cases are none of {list(cases)}: {unknown}"


def _tuple(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
