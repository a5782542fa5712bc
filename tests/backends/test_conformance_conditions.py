"""Batches judged by a few rows come to what the model makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.batch_eval import Effect, condition_keys, evaluate, same_columns
from holdfast.backends.conformance.model import Model
from holdfast.backends.conformance.rows import row_of
from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Put, Row
from holdfast.backends.tables import BRANCHES, LINES, METADATA, Key, Scalar, Table

NAMES = st.sampled_from(["a", "b"])
KEYS: dict[Table, st.SearchStrategy[Key]] = {
    LINES: st.tuples(NAMES, NAMES),
    BRANCHES: st.tuples(NAMES, NAMES, st.integers(0, 2)),
}
SPACES = st.sampled_from([LINES, BRANCHES])


def _row(space: Table, key: Key, number: int) -> Row:
    return row_of(space, *key, created=number, body=b"%d" % number)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    space = draw(SPACES)
    key = draw(KEYS[space])
    number = draw(st.integers(0, 2))
    kind: Any = draw(st.sampled_from([Create, Ensure, Put, Delete, Expect]))
    if kind is Delete:
        return Delete(space, key[: draw(st.integers(0, len(key)))])
    if kind is Expect:
        return Expect(space, key, draw(st.sampled_from([None, _row(space, key, number).columns])))
    made: Change = kind(space, _row(space, key, number))
    return made


BATCHES = st.lists(st.lists(changes(), min_size=1, max_size=5), max_size=6)


@given(BATCHES, BATCHES)
def test_groups_come_to_what_the_model_makes_of_their_batches(before: list[Batch], group: list[Batch]) -> None:
    model = Model()
    for batch in before:
        model.apply(batch)
    stored = dict(model.rows)
    places = condition_keys(group)

    def lookup(space: Table, key: Key) -> tuple[Scalar, ...] | None:
        assert (space, key) in places, "looked up, and not said beforehand"
        row = stored.get((space.name, key))
        return None if row is None else row.columns

    outcomes, effect = evaluate(group, lookup)
    failed = [model.apply(batch) for batch in group]
    assert outcomes == [places[0] if places else None for places in failed]
    assert _made(stored, effect) == model.rows


def _made(stored: dict[tuple[str, Key], Row], effect: Effect) -> dict[tuple[str, Key], Row]:
    """What a store holds that first deletes and then writes, and inserts what is fresh."""
    rows = dict(stored)
    for space, prefixes in effect.deleted.items():
        for prefix in prefixes:
            for name, key in list(rows):
                if name == space.name and key[: len(prefix)] == prefix:
                    del rows[name, key]
    for (space, key), row in effect.written.items():
        assert ((space, key) not in effect.created) or (space.name, key) not in rows, "a created row's key is taken"
        rows[space.name, key] = row
    return rows


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ('{"a": 1, "b": [true, null]}', '{"b":[true,null],"a":1}', True),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 1}', '{"a": 1.5}', False),
        ("[1, 2]", "[2, 1]", False),
    ],
    ids=["order of names", "true is not one", "numbers", "order of items"],
)
def test_json_is_compared_by_what_it_means(one: str, two: str, same: bool) -> None:
    assert same_columns(METADATA, (one,), (two,)) is same


def test_text_is_compared_as_it_is() -> None:
    columns = row_of(LINES, "t", "l", created=1).columns
    assert same_columns(LINES, columns, columns)
    assert not same_columns(LINES, columns, None)
    assert not same_columns(LINES, None, columns)
    assert not same_columns(LINES, columns, columns[:-1])
