"""Cases that only nightly runs try."""

from __future__ import annotations

import pytest

from tests.support.nightly import mostly_nightly


def test_a_daily_case_that_is_misspelt_is_refused() -> None:
    with pytest.raises(AssertionError, match="sqlit"):
        mostly_nightly((kind for kind in ("memory", "sqlite")), daily=["memory", "sqlit"])
    with pytest.raises(AssertionError, match="no case"):
        mostly_nightly(["memory"], daily=[])


def test_all_but_the_daily_cases_are_nightly() -> None:
    first, second, third = mostly_nightly(((kind, 1) for kind in "abc"), daily=[("b", 1)])
    assert second == ("b", 1)
    for each, kind in ((first, "a"), (third, "c")):
        assert each.values == (kind, 1)
        assert [mark.name for mark in each.marks] == ["nightly"]
