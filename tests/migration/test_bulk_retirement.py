"""Versions are retired only if no latest state has them, and are in use again when a state of one comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import pytest

import holdfast
from holdfast.schemas import Migration, Schema, SchemaSet, add
from holdfast.store import Store


class Plan1(TypedDict):
    """The first version."""

    n: int


class Plan2(TypedDict):
    """One channel more, which an older program need not know."""

    n: int
    k: int


PLAN_1, PLAN_2 = Schema("plan", "1.0.0", Plan1), Schema("plan", "2.0.0", Plan2)
FIRST = SchemaSet(PLAN_1)
SECOND = SchemaSet(PLAN_1, PLAN_2, Migration("plan", "1.0.0", "2.0.0", add("k", default=0)))


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    with holdfast.open(tmp_path / "a.db") as first, holdfast.open(tmp_path / "a.db") as second:
        yield first, second


@pytest.mark.parametrize("times", [1, 100])
def test_an_older_program_that_stores_states_behind_the_run(stores: tuple[Store, Store], times: int) -> None:
    new, old = stores
    old.schemas.attach(FIRST, threads="*")
    old.put("t", {"n": 1})
    stored: list[str] = []

    def interfere(*progress: object) -> None:
        del progress
        if len(stored) < times:
            stored.append(f"a{len(stored)}")
            old.put(stored[-1], {"n": 5})

    report = new.schemas.up(SECOND, progress=interfere)
    assert stored
    found, retired = new.schemas.status(SECOND)[0].states, set(new.schemas.registered().retired)
    if times == 1:
        assert (found, retired, report.complete) == ({"2.0.0": 2}, {"plan@1.0.0"}, True)
        old.put("later", {"n": 6})
        assert not new.schemas.registered().retired
    else:
        assert found["1.0.0"] == 1, "the last one came behind every pass"
        assert (retired, report.complete, report.still_written) == (set(), False, ["1.0.0"])
