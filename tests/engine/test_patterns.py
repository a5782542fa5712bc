"""Patterns of keys match what they say, and no pattern takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.patterns import KeyPattern, matcher
from holdfast.errors import InvalidError
from tests.support.nightly import by_day

PIECES = st.lists(st.sampled_from(["a", "b", "/", "*", "**", "?", "ab", "a/b"]), min_size=1, max_size=8).map("".join)
TEXTS = st.text(alphabet="ab/", max_size=12)


def by_definition(pattern: str, text: str) -> bool:
    """What a pattern means, by an expression that tries everything."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    meaning = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.fullmatch("".join(meaning.get(part) or re.escape(part) for part in parts), text, re.DOTALL) is not None


@settings(max_examples=by_day(400, 100), deadline=None)
@given(pattern=PIECES, texts=st.lists(TEXTS, min_size=10, max_size=10))
def test_a_pattern_matches_what_it_means(pattern: str, texts: list[str]) -> None:
    if pattern.count("*") > 16:
        return
    for text in texts:
        assert matcher(pattern)(text) is by_definition(pattern, text), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("**a*b", "a/ab", True),
        ("*a**b", "a/ab", True),
        ("a*", "a", True),
        ("a*", "a/b", False),
        ("a/**/b", "a/x/y/b", True),
        ("*/b*c", "a/bbc", True),
        ("**", "", True),
        ("a***b", "a/b", True),
    ],
)
def test_stars_and_slashes(pattern: str, text: str, matches: bool) -> None:
    assert matcher(pattern)(text) is matches is by_definition(pattern, text)


@pytest.mark.parametrize("pattern", ["*a" * 16 + "b", "**a" * 8 + "b", "*?" * 16 + "b", "**a*" * 5 + "b", "**?*a" * 5])
def test_no_pattern_takes_long(pattern: str) -> None:
    # With an expression that goes back, the first of them takes years.
    start = time.process_time()
    assert matcher(pattern)("a" * 1000 + "/") is False
    assert not KeyPattern("a" * 500 + "/c").is_within(pattern)
    assert time.process_time() - start < 2


def test_patterns_have_limits() -> None:
    for pattern in ("", "a" * 513, "*" * 17):
        with pytest.raises(InvalidError):
            matcher(pattern)
