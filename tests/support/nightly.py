"""Parameters of which the ordinary run takes a part, and `make nightly` all."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def mostly_nightly(cases: Iterable[Any], *, daily: Container[Any]) -> list[Any]:
    """Mark all cases as nightly but for the daily ones. A case of several parameters is a tuple."""
    return [case if case in daily else pytest.param(*_tuple(case), marks=pytest.mark.nightly) for case in cases]


def _tuple(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
