"""Laws of the three-way merge."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.merge import MergedState, PackedConflict, PackedResolution, merge, ours, theirs, union
from holdfast.engine.model.operations import apply_map
from holdfast.engine.model.packed_state import PackedMap, flatten, pack_state, unpack_state
from tests.engine.model.histories import codec, edited_state, states
from tests.support.cases import case

State = dict[str, Any]
forks = states.flatmap(lambda base: st.tuples(st.just(base), edited_state(base), edited_state(base)))


def pack(state: State) -> PackedMap:
    return pack_state(codec, state)


def merged(base: State, our: State, their: State, *args: Any) -> MergedState:
    return merge(pack(base), pack(our), pack(their), *args)


def path_of(clash: PackedConflict) -> list[Any]:
    return [codec.unpack(part) if isinstance(part, bytes) else part for part in clash.path]


def state_of(result: MergedState) -> State:
    return unpack_state(codec, result.state)


@given(forks)
def test_what_only_one_side_changed_is_taken(fork: tuple[State, State, State]) -> None:
    base, one, _ = map(pack, fork)
    for result in (merge(base, one, base), merge(base, base, one), merge(base, one, one)):
        assert flatten(result.state) == flatten(one)
        assert not result.conflicts


@given(forks)
def test_sides_may_be_swapped(fork: tuple[State, State, State]) -> None:
    base, one, other = map(pack, fork)
    there, back = merge(base, one, other), merge(base, other, one)
    assert {clash.path[:1] for clash in there.conflicts} == {clash.path[:1] for clash in back.conflicts}
    if not there.conflicts:
        # The same entries; only the order in which both sides added keys may differ.
        assert there.state.keys() == back.state.keys()


@given(forks)
def test_resolvers_settle_everything(fork: tuple[State, State, State]) -> None:
    base, one, other = map(pack, fork)
    assert merge(base, one, other, ours).conflicts == merge(base, one, other, theirs).conflicts == ()
    assert flatten(merge(base, one, other, ours).state) == flatten(merge(base, one, other).state)


@given(states, states, states)
def test_any_three_states_merge(base: State, one: State, other: State) -> None:
    result = merged(base, one, other, union)
    assert flatten(pack(state_of(result))) == flatten(result.state)


@given(states.filter(lambda s: len(s) >= 2), st.data())
def test_changes_of_different_channels_are_both_applied(base: State, data: st.DataObject) -> None:
    first, second, *_ = base
    one = {**base, first: "changed by us"}
    other = {**base, second: ["changed by them"], "theirs": 1}
    packed = pack(base)
    result = merge(packed, pack(one), pack(other))
    assert not result.conflicts
    both = apply_map(diff_maps(packed, pack(other)), apply_map(diff_maps(packed, pack(one)), packed))
    assert flatten(result.state) == flatten(both)


LIST = [f"item {i}" for i in range(10)]


def test_edits_in_different_places_of_a_list() -> None:
    our, their = ["new", *LIST], [*LIST[:5], *LIST[6:], "end"]
    result = merged({"l": LIST}, {"l": our}, {"l": their})
    assert state_of(result) == {"l": ["new", *LIST[:5], *LIST[6:], "end"]}
    assert not result.conflicts


def test_a_list_that_was_reordered_by_one_side() -> None:
    our, their = [*LIST[5:], *LIST[:5]], [*LIST, "end"]
    result = merged({"l": LIST}, {"l": our}, {"l": their})
    assert set(state_of(result)["l"]) >= {*LIST}


def test_both_append() -> None:
    base, our, their = {"l": LIST}, {"l": [*LIST, "ours"]}, {"l": [*LIST, "theirs", "more"]}
    result = merged(base, our, their)
    assert state_of(result) == our
    (clash,) = result.conflicts
    assert path_of(clash) == ["l", slice(10, 11)]
    assert (clash.base, clash.ours) == ([], [codec.pack("ours")])
    assert state_of(merged(base, our, their, theirs)) == their
    assert state_of(merged(base, our, their, union)) == {"l": [*LIST, "ours", "theirs", "more"]}
    nothing = merged(base, our, their, lambda _: PackedResolution(None))
    assert state_of(nothing) == base


def test_dicts_nest() -> None:
    base = {"d": {"a": {"x": 1, "y": 2}, "b": 1, "gone": 1}}
    our = {"d": {"a": {"x": 5, "y": 2}, "b": 1}}
    their = {"d": {"a": {"x": 1, "y": 6}, "b": 2, "gone": 1, "new": 3}}
    result = merged(base, our, their)
    assert state_of(result) == {"d": {"a": {"x": 5, "y": 6}, "b": 2, "new": 3}}
    assert not result.conflicts
    both_new = merged({}, {"d": {"a": 1}}, {"d": {"b": 2}})
    assert state_of(both_new) == {"d": {"a": 1, "b": 2}}
    assert not both_new.conflicts


CLASHES: list[tuple[Any, ...]] = [
    ({"a": 1}, {"a": 2}, {"a": 3}, ["a"]),
    ({"a": 1}, {}, {"a": 3}, ["a"]),
    ({"a": 1}, {"a": 2}, {}, ["a"]),
    ({}, {"a": 2}, {"a": 3}, ["a"]),
    ({"d": {"x y": 1}}, {"d": {"x y": 2}}, {"d": {"x y": 3}}, ["d", "x y"]),
    ({"d": {1: 1}}, {"d": {1: 2}}, {"d": {1: 3}}, ["d", 1]),
    ({"a": 1}, {"a": [1]}, {"a": {"b": 1}}, ["a"]),
    ({"t": "one\ntwo\n"}, {"t": "one\n2\n"}, {"t": "one\nzwei\n"}, ["t"]),
]


def test_clashes(subtests: pytest.Subtests) -> None:
    for base, our, their, path in CLASHES:
        with case(subtests, base, our, their, path):
            result = merged(base, our, their)
            assert [path_of(clash) for clash in result.conflicts] == [path]
            assert state_of(result) == our
            assert state_of(merged(base, our, their, theirs)) == their
            assert merged(base, our, their, union).conflicts


def test_texts_by_line() -> None:
    base = {"t": "one\ntwo\nthree\n"}
    result = merged(base, {"t": "1\ntwo\nthree\n"}, {"t": "one\ntwo\nthree\nfour\n"})
    assert state_of(result) == {"t": "1\ntwo\nthree\nfour\n"}
    assert not result.conflicts


def test_lists_without_a_common_base() -> None:
    result = merged({"l": 1}, {"l": [1]}, {"l": [1, 2]})
    assert state_of(result) == {"l": [1]}
    assert isinstance(result.conflicts[0], PackedConflict)


TASKS = [{"task": f"task {i}", "state": "open", "by": ""} for i in range(3)]


def tasks(place: int, **changes: str) -> State:
    return {"l": [{**task, **changes} if i == place else task for i, task in enumerate(TASKS)]}


def test_dicts_in_lists_are_merged_key_by_key() -> None:
    result = merged({"l": TASKS}, tasks(1, state="done"), tasks(1, by="ada"))
    assert state_of(result) == tasks(1, state="done", by="ada")
    assert not result.conflicts
    neighbours = merged({"l": TASKS}, tasks(1, state="done"), tasks(2, by="ada"))
    assert state_of(neighbours)["l"] == [TASKS[0], tasks(1, state="done")["l"][1], tasks(2, by="ada")["l"][2]]


def test_clashes_inside_a_list() -> None:
    base, our, their = {"l": TASKS}, tasks(1, state="done", by="bob"), tasks(1, state="failed", task="other")
    result = merged(base, our, their)
    assert [path_of(clash) for clash in result.conflicts] == [["l", 1, "state"]]
    assert state_of(result) == tasks(1, state="done", by="bob", task="other")
    assert state_of(merged(base, our, their, theirs)) == tasks(1, state="failed", by="bob", task="other")
    # What the smaller question leaves open, the larger may settle.
    both = merged(base, our, their, union)
    assert state_of(both)["l"] == [TASKS[0], our["l"][1], their["l"][1], TASKS[2]]
    assert not both.conflicts
    asked: list[list[Any]] = []

    def note(clash: PackedConflict) -> None:
        asked.append(path_of(clash))

    merged(base, our, their, note)
    assert asked == [["l", 1, "state"], ["l", slice(1, 2)]]
