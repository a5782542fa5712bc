"""Cases and examples that only nightly runs try."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import constants_from_module

from tests.support.nightly import mostly_nightly

_NAME = "konstants"  # short: long texts are no constants to Hypothesis


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


def drawn() -> list[str]:
    """Return the examples of a law about text."""
    found: list[str] = []

    @settings(max_examples=1_000, derandomize=True, database=None)
    @given(st.text())
    def law(text: str) -> None:
        found.append(text)

    law()
    return found


@pytest.mark.skipif(not settings().derandomize, reason="the night draws new examples")
def test_examples_do_not_depend_on_the_modules_that_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = drawn()
    (tmp_path / f"{_NAME}.py").write_text("\n".join(f"C{n} = '{_NAME} {n}'" for n in range(500)))
    monkeypatch.syspath_prepend(tmp_path)
    __import__(_NAME)
    monkeypatch.setattr(providers, "_sys_modules_len", None)
    assert drawn() == before
    constants = constants_from_module(sys.modules.pop(_NAME))
    monkeypatch.setattr(providers, "_get_local_constants", lambda: constants)
    providers.CONSTANTS_CACHE.cache.clear()
    assert any(_NAME in each for each in drawn()), "Hypothesis by itself draws them"
    providers.CONSTANTS_CACHE.cache.clear()
