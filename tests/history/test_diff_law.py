"""The law of differences: the patch of a and b, applied to a, gives b."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.codec import default_codec as codec
from holdfast.history.diff_result import Diff
from holdfast.store.store import Store
from tests.codec import values
from tests.engine.lines import store_on
from tests.engine.model.histories import channels, edited, edited_state, histories, states
from tests.support.nightly import examples


def tree(state: Any) -> Any:
    """The JSON form of a state, in which a patch is made."""
    return codec.to_json(state)


def text(json_form: Any) -> str:
    """A JSON form as text; objects have no order."""
    return json.dumps(json_form, sort_keys=True)


def check(diff: Diff, old: dict[str, Any], new: dict[str, Any]) -> None:
    before, after = tree(old), tree(new)
    patch = json.loads(json.dumps(diff.patch()))
    assert text(jsonpatch.apply_patch(copy.deepcopy(before), patch)) == text(after)
    tested = json.loads(json.dumps(diff.patch(test=True)))
    assert text(jsonpatch.apply_patch(copy.deepcopy(before), tested)) == text(after)
    assert text(tree(diff.apply(old))) == text(after)
    assert bool(diff.patch()) == (text(before) != text(after))
    assert bool(diff) == (json.dumps(before) != json.dumps(after))
    assert bool(diff.summary) == bool(diff)
    assert json.dumps(diff.to_json())
    assert bool(diff.text()) == bool(diff.text(by_word=True)) == bool(diff)


def new_store(fold_every: int = 3) -> Store:
    return store_on(run(MemoryBackend.open("memory://")), fold_every=fold_every)


@given(histories(), st.integers(1, 4), st.data())
@settings(max_examples=examples(60))
def test_patches_lead_from_any_checkpoint_to_any_other(
    line: list[dict[str, Any]], fold_every: int, data: st.DataObject
) -> None:
    store = new_store(fold_every)
    for state in line:
        store.thread("t").put(state)
    a, b = (data.draw(st.integers(0, len(line) - 1)) for _ in range(2))
    check(store.thread("t").diff(f"#{a}", f"#{b}", large=True), line[a], line[b])


@given(states, st.data())
@settings(max_examples=examples(40))
def test_patches_lead_from_a_thread_to_another_and_to_a_given_state(old: dict[str, Any], data: st.DataObject) -> None:
    new = data.draw(edited_state(old))
    store = new_store()
    for state in ({}, old):
        store.thread("one").put(state)
    for state in ({}, {"x": 1}, new):
        store.thread("two").put(state)
    check(store.thread("one").diff(other="two", large=True), old, new)
    check(store.thread("one").diff(state=new, large=True), old, new)


@given(values.values, values.values, st.booleans())
@settings(max_examples=examples(60))
def test_patches_hold_for_values_of_every_type(old: Any, new: Any, apart: bool) -> None:
    store = new_store()
    wrap = (lambda value: [value, "x" * 3000]) if apart else (lambda value: value)
    one, other = {"value": wrap(old), "$x": 1}, {"value": wrap(new), "$x": 1}
    store.thread("t").put(one)
    check(store.thread("t").diff(state=other), one, other)


@given(channels, st.data())
@settings(max_examples=examples(60))
def test_patches_hold_inside_values(value: Any, data: st.DataObject) -> None:
    new = data.draw(edited(value))
    store = new_store()
    one, other = {"$only": {"$in": [value]}}, {"$only": {"$in": [new]}}
    store.thread("t").put(one)
    check(store.thread("t").diff(state=other), one, other)


ODD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"$x": 1}),
    ({"$x": 1}, {"y": 1}),
    ({"$x": {"$y": 1}}, {"$x": {"$z": 1}}),
    ({"a/b": {"~": [1]}}, {"a/b": {"~": [2], "": 0}}),
    ({"x": 1}, {"x": True}),
    ({"x": 0.0}, {"x": -0.0}),
    ({"d": {1: "a", "b": 2, None: 3}}, {"d": {None: 3, 1: "c", 2.5: 1}}),
    ({"d": dict.fromkeys(range(400), "v" * 10)}, {"d": dict.fromkeys(range(1, 401), "v" * 10)}),
    ({"l": ["a"] * 300}, {"l": ["a"] * 301}),
    ({"l": ["a", "b"] * 300}, {"l": ["b", "a"] * 300}),
    ({"big": "x" * 200_000}, {"big": "x" * 100_000 + "y" * 100_000}),
    ({"big": [b"x" * 200_000, 1]}, {"big": [1, b"x" * 200_000]}),
]


def test_odd_states(subtests: pytest.Subtests) -> None:
    for old, new in ODD:
        with subtests.test(old=old):
            store = new_store(1)
            store.thread("t").put(old)
            store.thread("t").put(new)
            check(store.thread("t").diff(large=True), old, new)
            check(store.thread("t").diff("HEAD", "HEAD~1", large=True), new, old)
            assert not store.thread("t").diff("HEAD", "HEAD")
            store.thread("other").put(new)
            assert not store.thread("t").diff(other="other")
            assert not store.thread("t").diff(state=new)
