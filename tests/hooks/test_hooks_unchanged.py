"""A value that is set again as it is makes a new version, and takes next to nothing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from tests.hooks.kit import store

LARGE: dict[str, Any] = {
    "dict": {f"key-{n}": f"value {n} " * 3 for n in range(200)},
    "list": [f"item {n} " * 5 for n in range(200)],
    "text": "".join(f"line {n}\n" for n in range(2000)),
    "bytes": Random(1).randbytes(5000),
    "tuple": tuple(f"item {n} " * 5 for n in range(100)),
    "huge": "x" * 200_000,
    "huge list": ["y" * 100_000, "z" * 100_000, 3],
}


@pytest.mark.parametrize("kind", LARGE)
def test_same_value_again_is_a_small_step(kind: str) -> None:
    held = store()
    state = held.state()
    for version in (1, 2, 3):
        assert state.set("k", LARGE[kind]) == version
        assert state["k"] == LARGE[kind]
    (rows,) = run(held._engine.context.stored.read([Scan(STEPS, ("", "␞global", 0))]))
    first, *again = [len(row.body) for row in rows]
    if kind != "tuple":  # it has no parts that are compared
        assert max(again) < 500 < first or kind.startswith("huge")
    held._engine.context.cache.clear()
    assert state["k"] == LARGE[kind]
    assert state.item("k").version == 3
    held.close()


VALUES = st.recursive(
    st.one_of(st.text(max_size=400), st.binary(max_size=400), st.integers(-(2**60), 2**60), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=40), st.dictionaries(st.text(max_size=20), inner, max_size=40)),
    max_leaves=60,
)


@given(st.lists(VALUES, min_size=1, max_size=4), st.integers(1, 3))
def test_setting_again_changes_nothing_but_the_version(values: list[Any], times: int) -> None:
    held = store()
    state = held.state()
    for value in values:
        for _ in range(times):
            state["k"] = value
            assert state["k"] == value
    held._engine.context.cache.clear()
    assert state["k"] == values[-1]
    assert state.item("k").version == len(values) * times
    held.close()
