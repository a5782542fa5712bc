"""Laws of update operators: they may be applied in any order, and a merge drops none of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.draft_reader import whole
from holdfast.engine.model.drafts import EMPTY, draft
from holdfast.engine.model.merge import MergedState, merge
from holdfast.engine.model.merge import ours as take_ours
from holdfast.engine.model.nodes import WrittenBy
from holdfast.engine.model.operations import (
    Combine,
    EditMap,
    Operation,
    Set,
    apply,
    apply_map,
    compose,
    decode_operation,
    encode_operation,
)
from holdfast.engine.model.operator_runs import operator_runs
from holdfast.engine.model.operators import AddToSet, Append, Increment, Max, UpdateOperator
from holdfast.engine.model.packed_state import PackedMap, flatten, pack_state, unpack_state
from holdfast.engine.model.workspace import Workspace
from holdfast.errors import CorruptError, InvalidError
from tests.engine.model.histories import codec, edited_state, small, states

State = dict[str, Any]

increments = st.builds(Increment, st.integers(-(2**70), 2**70))
appends = st.lists(small, min_size=1, max_size=3).map(lambda items: Append(*items))
additions = st.lists(st.integers(0, 9) | st.text("ab", max_size=2), min_size=1, max_size=3).map(
    lambda items: AddToSet(*items)
)
maxima = st.builds(Max, st.integers() | st.floats(allow_nan=False))


def pack(state: State) -> PackedMap:
    return pack_state(codec, state)


def packed(operator: UpdateOperator) -> Combine:
    return Combine(operator.rule, flatten(codec.pack(operator.operand)))


def applied(operators: Sequence[UpdateOperator], value: Any) -> Any:
    result: Any = codec.pack(value)
    for operator in operators:
        result = apply(packed(operator), result)
    return codec.unpack(flatten(result))


def in_two_orders(operators: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(operators, min_size=1, max_size=5)
    return several.flatmap(lambda each: st.tuples(st.just(each), st.permutations(each)))


@given(in_two_orders(increments), st.integers())
def test_increments_add_up_in_any_order(both: tuple[list[Increment], list[Increment]], start: int) -> None:
    total = start + sum(each.operand for each in both[0])
    assert applied(both[0], start) == applied(both[1], start) == total


@given(in_two_orders(appends))
def test_appends_keep_everything(both: tuple[list[Append], list[Append]]) -> None:
    found = [Counter(map(codec.pack, applied(order, [0]))) for order in both]
    assert found[0] == found[1] == Counter(map(codec.pack, [0, *(item for each in both[0] for item in each.operand)]))


@given(in_two_orders(additions), st.sets(st.integers(0, 9)))
def test_adding_to_a_set_commutes_and_is_idempotent(
    both: tuple[list[AddToSet], list[AddToSet]], start: set[int]
) -> None:
    assert applied(both[0], start) == applied(both[1], start) == applied([*both[0], *both[1]], start)
    assert applied(both[0], start) == start.union(*(each.operand for each in both[0]))


@given(in_two_orders(maxima), st.integers() | st.floats(allow_nan=False))
def test_maxima_commute(both: tuple[list[Max], list[Max]], start: float) -> None:
    found = [codec.pack(applied(order, start)) for order in both]
    assert found[0] == found[1]
    assert codec.unpack(found[0]) == max(start, *(each.operand for each in both[0]))


@given(st.one_of(*(st.lists(kind, min_size=2, max_size=2) for kind in (increments, appends, additions, maxima))))
def test_operators_compose(pair: list[UpdateOperator]) -> None:
    first, second = map(packed, pair)
    together = compose(first, second)
    assert isinstance(together, Combine)
    assert apply(together, None) == flatten(apply(second, apply(first, None)))
    both = pair[0].then(pair[1])
    assert both is not None
    assert codec.pack(codec.unpack(together.operand)) == codec.pack(both.operand) or isinstance(pair[0], Max)


operators_by_key = st.lists(
    st.tuples(st.just("n"), increments)
    | st.tuples(st.just("log"), appends)
    | st.tuples(st.just("tags"), additions)
    | st.tuples(st.just("best"), maxima),
    max_size=6,
)


def edits_of(changes: Sequence[tuple[str, UpdateOperator]]) -> list[EditMap]:
    """Steps that change values at `stats.…`, next to others that change what is beside them."""
    stats = codec.pack("stats")
    return [EditMap((), ((stats, EditMap((), ((codec.pack(key), packed(operator)),))),)) for key, operator in changes]


@given(operators_by_key, st.integers(), st.booleans())
def test_a_merge_keeps_operators_and_what_the_other_side_set(
    theirs: list[tuple[str, UpdateOperator]], count: int, start_empty: bool
) -> None:
    base: State = {"stats": {} if start_empty else {"n": 1, "log": ["a"], "tags": {1}, "best": 3}, "title": "a"}
    ours = {"stats": {**base["stats"], "n": count, "mine": True}, "title": "b"}
    edits = edits_of(theirs)
    after = pack(base)
    for edit in edits:
        after = apply_map(edit, after)
    runs = operator_runs(pack(base), edits, bytes)
    found = merge(pack(base), pack(ours), after, their_runs=runs)
    expected = pack(ours)
    for edit in edits:
        expected = apply_map(edit, expected)
    assert not found.conflicts
    assert flatten(found.state) == flatten(expected)


@given(states.flatmap(lambda base: st.tuples(st.just(base), edited_state(base), edited_state(base))))
def test_without_operators_a_merge_is_as_ever(fork: tuple[State, State, State]) -> None:
    base, one, other = map(pack, fork)
    runs = operator_runs(base, [diff_maps(base, other)], bytes)
    assert runs == {}
    assert merge(base, one, other, their_runs=runs) == merge(base, one, other)


def merged(base: State, ours: State, *edits: EditMap) -> MergedState:
    after = pack(base)
    for edit in edits:
        after = apply_map(edit, after)
    return merge(pack(base), pack(ours), after, their_runs=operator_runs(pack(base), edits, bytes))


def change(key: str, operation: Operation | UpdateOperator) -> EditMap:
    return EditMap((), ((codec.pack(key), packed(operation) if isinstance(operation, UpdateOperator) else operation),))


def test_values_are_compared_and_operators_are_not() -> None:
    by_value = change("n", Set(codec.pack(1)))
    assert unpack_state(codec, merged({"n": 0}, {"n": 1}, by_value).state) == {"n": 1}
    by_operator = change("n", Increment())
    assert unpack_state(codec, merged({"n": 0}, {"n": 1}, by_operator).state) == {"n": 2}
    # What was set before the operators is compared: 5 is neither 0 nor 6.
    found = merged({"n": 0}, {"n": 6}, change("n", Set(codec.pack(5))), by_operator)
    assert len(found.conflicts) == 1
    # What was set after them replaces what they did.
    assert unpack_state(codec, merged({"n": 0}, {"n": 7}, by_operator, change("n", Set(codec.pack(7)))).state) == {
        "n": 7
    }


@pytest.mark.parametrize("ours", [{"x": 1}, {"stats": "text", "x": 1}, {"stats": {"n": "text"}, "x": 1}, {"stats": {}}])
def test_a_removed_or_replaced_value_is_a_conflict(ours: State) -> None:
    base = {"stats": {"n": 1}}
    edits = edits_of([("n", Increment())])
    found = merged(base, ours, *edits)
    assert [clash.path for clash in found.conflicts] == [(codec.pack("stats"), codec.pack("n"))]
    after = apply_map(edits[0], pack(base))
    runs = operator_runs(pack(base), edits, bytes)
    assert unpack_state(codec, merge(pack(base), pack(ours), after, take_ours, their_runs=runs).state) == ours


@given(operators_by_key)
def test_folding_and_applying_agree(changes: list[tuple[str, UpdateOperator]]) -> None:
    edits = [EditMap((), ((codec.pack("stats"), Set(codec.pack({}))),)), *edits_of(changes)]
    state: PackedMap = {}
    for edit in edits:
        state = apply_map(edit, state)
    ws = Workspace()
    rounds = draft(ws, EMPTY, [(WrittenBy(0, number), edit) for number, edit in enumerate(edits)], bytes)
    with pytest.raises(StopIteration) as done:
        next(rounds)
    with pytest.raises(StopIteration) as read:
        next(whole(ws, done.value.value))
    assert flatten(read.value.value) == flatten(state)


@given(increments | appends | additions | maxima)
def test_the_stored_form_is_of_its_own_kind(operator: UpdateOperator) -> None:
    operation = packed(operator)
    assert decode_operation(encode_operation(operation)) == operation
    assert encode_operation(operation)[1] == operator.rule


@pytest.mark.parametrize(
    ("operator", "value"),
    [
        (Increment(), "text"),
        (Increment(), True),
        (Increment(0.5), 10**400),
        (Append(1), {1}),
        (Append(1), "text"),
        (AddToSet(1), [1]),
        (AddToSet(1), {}),
        (Max(1), "text"),
        (Max(1), math.nan),
        (Max(datetime(2026, 1, 1, tzinfo=UTC)), datetime(2026, 1, 1)),
    ],
)
def test_values_of_other_types(operator: UpdateOperator, value: Any) -> None:
    with pytest.raises(CorruptError):
        applied([operator], value)


def test_operands() -> None:
    for wrong in (math.nan, math.inf, True, "1", None):
        with pytest.raises(InvalidError):
            Increment(wrong)  # type: ignore[arg-type]
    for empty in (Append, AddToSet):
        with pytest.raises(InvalidError):
            empty()
    with pytest.raises(InvalidError, match="unhashable"):
        AddToSet([1])
    for other in (math.nan, True, None, [1]):
        with pytest.raises(InvalidError):
            Max(other)
    later = datetime(2026, 1, 2, tzinfo=UTC)
    assert applied([Max(later)], datetime(2026, 1, 1, tzinfo=UTC)) == later
    assert applied([Max("b")], "a") == "b"
    assert repr(Increment(2)) == "Increment(2)"
