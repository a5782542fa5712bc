"""diff(a, b) applied to a gives b's exact bytes, and costs what changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from holdfast.engine.model import large_pointers
from holdfast.engine.model.diff import diff, diff_maps
from holdfast.engine.model.line_salt import NO_SALT
from holdfast.engine.model.operations import (
    ChangeItem,
    EditList,
    EditMap,
    EditText,
    KeepRun,
    Operation,
    Set,
    apply,
    apply_map,
    decode_operation,
    encode_operation,
)
from holdfast.engine.model.packed_state import as_items, as_map, flatten, pack_state, unpack, unpack_state
from holdfast.engine.model.sequences import copies
from holdfast.errors import CorruptError, InvalidError, TooLargeError, UnsupportedError
from tests.codec.values import identical
from tests.codec.values import states as any_states
from tests.engine.model.histories import codec, edited, edited_state, leaves, states
from tests.support.cases import case


@given(any_states)
def test_states_are_packed_and_unpacked(state: dict[str, Any]) -> None:
    packed = pack_state(codec, state)
    assert flatten(packed) == codec.pack(state)
    assert identical(unpack_state(codec, packed), state)


@given(states.flatmap(lambda state: st.tuples(st.just(state), edited_state(state))))
def test_a_diff_applied_gives_the_other_state(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    old, new = (pack_state(codec, state) for state in pair)
    edit = diff_maps(old, new)
    assert decode_operation(encode_operation(edit)) == edit
    assert flatten(apply_map(edit, old)) == codec.pack(pair[1])
    assert (edit == EditMap()) == (flatten(old) == flatten(new))


@given(st.recursive(leaves, lambda inner: st.lists(inner)).flatmap(lambda v: st.tuples(st.just(v), edited(v))))
def test_a_diff_of_whole_values(pair: tuple[Any, Any]) -> None:
    old, new = map(codec.pack, pair)
    operation = diff(old, new)
    assert (operation is None) == (old == new)
    if operation is not None:
        assert flatten(apply(operation, old)) == new


@given(states, states)
def test_a_diff_of_any_two_states(one: dict[str, Any], other: dict[str, Any]) -> None:
    old, new = pack_state(codec, one), pack_state(codec, other)
    assert flatten(apply_map(diff_maps(old, new), old)) == flatten(new)


def change(old: Any, new: Any) -> Operation:
    before, after = pack_state(codec, {"v": old}), pack_state(codec, {"v": new})
    ((_, operation),) = diff_maps(before, after).put
    assert flatten(apply_map(diff_maps(before, after), before)) == codec.pack({"v": new})
    return operation


def packed(*values: Any) -> tuple[bytes, ...]:
    return tuple(codec.pack_items(values))


LONG = [HumanMessage(f"message {i} " + "x" * 100, id=str(i)) for i in range(100)]
NEW = HumanMessage("new " + "y" * 100)


pieces = st.lists(st.integers(0, 200).map(lambda number: b"%d" % number), max_size=150)


@given(old=pieces, cuts=st.lists(st.tuples(st.integers(0, 150), st.integers(0, 150), pieces), max_size=5))
def test_runs_are_those_of_a_search_for_each_item(old: list[bytes], cuts: list[tuple[int, int, list[bytes]]]) -> None:
    """Long runs, and the first items, are found in another way."""
    new = [item for start, end, others in cuts for item in (*old[start:end], *others)]
    expected, at, runs = 0, 0, []
    while at < len(new):
        found = [place for place, item in enumerate(old) if item == new[at]]
        if not found:
            at += 1
            continue
        start = next((place for place in found if place >= expected), found[0])
        length = next(
            (i for i, (one, other) in enumerate(zip(old[start:], new[at:], strict=False)) if one != other),
            min(len(old) - start, len(new) - at),
        )
        runs.append((start, at, length))
        expected, at = start + length, at + length
    assert copies(old, new) == runs


def test_appending() -> None:
    assert change(LONG, [*LONG, NEW]) == EditList((KeepRun(0, 100), packed(NEW)))


def test_inserting_removing_and_moving() -> None:
    assert change(LONG, [*LONG[:50], NEW, *LONG[50:]]) == EditList((KeepRun(0, 50), packed(NEW), KeepRun(50, 50)))
    assert change(LONG, LONG[:10] + LONG[20:]) == EditList((KeepRun(0, 10), KeepRun(20, 80)))
    assert change(LONG, LONG[90:] + LONG[:90]) == EditList((KeepRun(90, 10), KeepRun(0, 90)))
    assert change(LONG, LONG[90:] + LONG + LONG[:5]) == EditList((KeepRun(90, 10), KeepRun(0, 100), KeepRun(0, 5)))
    assert change(LONG, LONG[::-1]) == EditList(tuple(KeepRun(i, 1) for i in reversed(range(100))))


def test_changing_a_part_of_an_item() -> None:
    items = [{"id": i, "text": "word " * 100} for i in range(5)]
    edited_items = [*items[:2], {"id": 2, "text": "word " * 50 + "changed " + "word " * 50}, *items[3:]]
    operation = change(items, edited_items)
    assert isinstance(operation, EditList)
    assert operation.parts[0] == KeepRun(0, 2)
    assert isinstance(operation.parts[1], ChangeItem)
    assert operation.parts[2] == KeepRun(3, 2)
    assert len(encode_operation(operation)) < 60


def test_a_mutated_message_is_replaced() -> None:
    mutated = [*LONG[:3], HumanMessage("other", id="3"), *LONG[4:]]
    assert change(LONG, mutated) == EditList((KeepRun(0, 3), packed(mutated[3]), KeepRun(4, 96)))


def test_dicts_by_key() -> None:
    entries = {f"key {i}": i for i in range(200)}
    assert change(entries, {**entries, "key 7": "x", "new": 1}) == EditMap(
        (), ((codec.pack("key 7"), Set(codec.pack("x"))), (codec.pack("new"), Set(codec.pack(1))))
    )
    smaller = {key: value for key, value in entries.items() if key != "key 3"}
    assert change(entries, smaller) == EditMap((codec.pack("key 3"),))
    moved = {**smaller, "key 3": 3}
    assert change(entries, moved) == EditMap(moved=(codec.pack("key 3"),))


def test_nested_dicts_by_part() -> None:
    old = {"config": {"model": {"name": "m", "prompt": "p" * 2000}, "tools": list(range(50))}, "rest": "r" * 500}
    new = {"config": {"model": {"name": "n", "prompt": "p" * 2000}, "tools": list(range(50))}, "rest": "r" * 500}
    assert len(encode_operation(change(old, new))) < 60


def test_long_texts_by_part() -> None:
    lines = [f"line {i} of a long document\n" for i in range(400)]
    text = "".join(lines)
    assert change(text, text + "more") == EditText((KeepRun(0, len(text)), b"more"))
    assert change(text, text[:100] + text[130:]) == EditText((KeepRun(0, 100), KeepRun(130, len(text) - 130)))
    twice = "".join(["first\n", *lines[1:200], "inserted\n", *lines[200:399], "last\n"])
    assert len(encode_operation(change(text, twice))) < 120
    assert isinstance(change(b"\0" * 500, b"\0" * 250 + b"\1" + b"\0" * 250), EditText)


def test_small_changes_are_not_dressed_up() -> None:
    assert change(1, 2) == Set(b"\x02")
    assert change("short", "shirt") == Set(codec.pack("shirt"))
    assert change([1, 2], [1, 3]) == Set(codec.pack([1, 3]))
    assert change(LONG, [NEW]) == Set(codec.pack([NEW]))
    assert change("x" * 300, ["x" * 300]) == Set(codec.pack(["x" * 300]))


def test_forms_do_not_matter() -> None:
    whole = codec.pack(LONG)
    assert diff(whole, codec.pack_items(LONG)) is None
    assert diff(codec.pack_items(LONG), whole) is None
    entries = {str(i): "x" * 20 for i in range(50)}
    apart = as_map(codec.pack(entries))
    assert apart is not None
    assert diff(codec.pack(entries), apart) is None
    assert as_items(codec.pack([None, 1, {}])) == list(packed(None, 1, {}))
    assert unpack(codec, as_items(codec.pack([None, 1, {}])) or b"") == [None, 1, {}]
    assert as_items(codec.pack(NEW)) is None


def test_pointers_stand_for_large_values() -> None:
    large = codec.pack("x" * 100_000)
    pointer = large_pointers.pointer_to(large, NO_SALT)
    assert pointer.pieces == 1
    assert large_pointers.LargePointer(large_pointers.PIECE + 1, NO_SALT, b"").pieces == 2
    assert large_pointers.parse_pointer(pointer.encode()) == pointer
    assert diff(pointer.encode(), large) is None
    assert diff([b"\x01", pointer.encode()], [b"\x01", large]) is None
    longer = codec.pack("x" * 100_000 + "y")
    assert diff(pointer.encode(), longer) == Set(longer)
    operation = diff(large, longer)
    assert isinstance(operation, EditText)
    assert apply(operation, pointer.encode(), lambda data: {pointer.encode(): large}[data]) == longer
    with pytest.raises(CorruptError, match="not loaded"):
        apply(operation, pointer.encode())
    items: list[bytes] = [pointer.encode(), *packed(*LONG)]
    with pytest.raises(InvalidError, match="not fetched"):
        flatten(items)
    edit = diff(items, [large, *packed(*LONG, NEW)])
    assert edit == EditList((KeepRun(0, 101), packed(NEW)))


def test_pieces_of_large_values() -> None:
    data = b"".join(i.to_bytes(4, "big") for i in range(640_000))
    pieces = large_pointers.split(data)
    assert [len(piece) for piece in pieces] == [
        large_pointers.PIECE,
        large_pointers.PIECE,
        len(data) - 2 * large_pointers.PIECE,
    ]
    assert large_pointers.join(large_pointers.pointer_to(data, b"s" * 16), pieces) == data
    for wrong in (pieces[:2], pieces[::-1], [*pieces, b"x"]):
        with pytest.raises(CorruptError, match="pieces of a large value"):
            large_pointers.join(large_pointers.pointer_to(data, b"s" * 16), wrong)
    for wrong_pointer in (b"", b"x" * 58):
        with pytest.raises(CorruptError):
            large_pointers.parse_pointer(wrong_pointer)


MISFITS: list[tuple[Any, ...]] = [
    (EditList((KeepRun(0, 2),)), [b"\x01"]),
    (EditList((ChangeItem(1, Set(b"\x01")),)), [b"\x01"]),
    (EditList(()), b"\x01"),
    (EditMap((b"\xa1a",)), {}),
    (EditMap((), (), (b"\xa1a",)), {}),
    (EditMap(), b"\x01"),
    (EditMap((), ((b"\xa1a", EditList(())),)), {}),
    (EditText((KeepRun(0, 9),)), b"\xa1a"),
    (EditText(()), b"\x01"),
    (EditText(()), [b"\x01"]),
    (EditText(()), None),
]


def test_operations_that_do_not_fit(subtests: pytest.Subtests) -> None:
    for operation, value in MISFITS:
        with case(subtests, operation, value), pytest.raises(CorruptError):
            apply(operation, value)


def test_forged_edits_do_not_grow_without_bound() -> None:
    text = codec.pack("x" * 100_000)
    with pytest.raises(TooLargeError, match="over the limit"):
        apply(EditText((KeepRun(0, 100_000),) * 5000), text)
    with pytest.raises(TooLargeError, match="over the limit"):
        apply(EditList((KeepRun(0, 1000),) * 500_000), [b"\x01"] * 1000)
    for operation in (EditList(()), EditMap(), EditText(())):
        with pytest.raises(CorruptError):
            apply(operation, b"")


NO_OPERATIONS: list[Any] = [
    None, [], [9], [0], [0, 1], [0, b"", b""], [1, 2], [1, [[9]]], [1, [[0, -1, 1]]], [1, [[1, "x"]]],
    [1, [[2, 0, [7]]]], [2, [], []], [2, [1], [], []], [2, [], [[b"", [0, "s"]]], []], [3, [[1]]],
    [3, ["x"]], [3, [[0, True]]], {"a": 1},
]  # fmt: skip


def test_what_is_no_operation(subtests: pytest.Subtests) -> None:
    for value in NO_OPERATIONS:
        with case(subtests, value), pytest.raises(CorruptError, match="not the stored form of an operation"):
            decode_operation(codec.pack(value))


def test_states_have_named_channels_and_paths() -> None:
    with pytest.raises(InvalidError, match="name of a channel must be a string, not int"):
        pack_state(codec, {1: 2})  # type: ignore[dict-item]
    with pytest.raises(UnsupportedError) as caught:
        pack_state(codec, {"a": {str(i): [1, {"x": object()}] for i in range(20)}})
    assert caught.value.where == "a['0'][1].x"
