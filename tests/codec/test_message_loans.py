"""Messages are handed out twice only if nobody has them, and nobody can tell them from new ones."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.codec import Codec
from holdfast.codec.message_cache import MessageParts
from holdfast.engine.model.packed_state import pack_state, unpack_state
from holdfast.engine.pack_cache import PackCache
from holdfast.engine.row_format import Line
from tests.codec.test_message_cache import changeable, messages, wreck
from tests.codec.values import identical
from tests.support.cases import case
from tests.support.cores import CORES, codec_of
from tests.support.nightly import fewer_examples

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without a GIL nothing is handed out twice"
)


def chat(count: int) -> list[Any]:
    calls: Any = [{"name": "f", "args": {"x": [1]}, "id": "1"}]
    usual = [HumanMessage("a", id="1"), AIMessage("b", id="2"), AIMessage("", tool_calls=calls, id="3")]
    return ([*usual, ToolMessage("c", tool_call_id="1", artifact={"k": [1]}, id="4")] * count)[:count]


@pytest.fixture(params=CORES)
def codec(request: pytest.FixtureRequest) -> Codec:
    return codec_of(CORES[request.param])


def lent(codec: Codec, count: int) -> tuple[list[Any], Any, Any]:
    """Messages that were unpacked, what was made, and the loan of them."""
    items = codec.pack_items(chat(count))
    values, made, _, loan = codec.unpack_cached(items, MessageParts.of(items))
    assert loan is not None
    return values, made, loan


def places(values: list[Any]) -> list[set[int]]:
    """Where all that can be changed in each message is."""
    return [{*map(id, changeable(each)), id(each.model_fields_set), id(each.model_extra)} for each in values]


def test_messages_that_came_back_are_not_built_again(codec: Codec) -> None:
    values, made, loan = lent(codec, 80)
    before = places(values)
    values.clear()
    items = codec.pack_items(chat(84))
    values, made, seen, loan = codec.unpack_cached(items, made, loan)
    assert places(values)[:80] == before
    assert identical(values, chat(84))
    assert codec.pack_cached(values.copy(), seen)[0] == items
    kept = places(values)
    again, *_ = codec.unpack_cached(items, made, loan)
    assert not any(one & other for one, other in zip(places(again), kept, strict=True))


KEPT: dict[str, tuple[int, Callable[[list[Any]], object]]] = {
    "the list": (0, lambda values: values),
    "a message": (3, lambda values: values[3]),
    "the fields of a message": (0, lambda values: vars(values[0])),
    "a view of the fields": (0, lambda values: vars(values[0]).items()),
    "the names of the fields that were set": (1, lambda values: values[1].model_fields_set),
    "the extra fields": (1, lambda values: values[1].model_extra),
    "an empty dict": (0, lambda values: values[0].additional_kwargs),
    "an empty list": (1, lambda values: values[1].tool_calls),
    "a list": (2, lambda values: values[2].tool_calls),
    "a dict in a list": (2, lambda values: values[2].tool_calls[0]),
    "a list in a dict in a dict in a list": (2, lambda values: values[2].tool_calls[0]["args"]["x"]),
    "an iterator": (3, lambda values: iter(values[3].artifact["k"])),
    "a method": (0, lambda values: values[0].pretty_repr),
    "a weak reference": (1, lambda values: weakref.ref(values[1])),
    "a proxy": (1, lambda values: weakref.proxy(values[1])),
}
"""What may be kept of messages, and of which of them."""

CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "a field": lambda values: setattr(values[0], "content", "A"),
    "an equal value of another type": lambda values: values[2].tool_calls[0]["args"].update(x=[True]),
    "an entry of an empty dict": lambda values: values[0].additional_kwargs.update(k=1),
    "an item of an empty list": lambda values: values[1].tool_calls.append({}),
    "a nested list": lambda values: values[3].artifact["k"].append(2),
    "a list that is replaced by an equal one": lambda values: setattr(values[3], "artifact", {"k": [1]}),
    "an extra field": lambda values: setattr(values[0], "odd", 1),
    "extra fields that are replaced": lambda values: object.__setattr__(values[0], "__pydantic_extra__", {}),
    "private attributes": lambda values: object.__setattr__(values[0], "__pydantic_private__", {}),
    "the names of the fields that were set": lambda values: values[0].model_fields_set.discard("id"),
    "one name for another": lambda values: (
        values[0].model_fields_set.discard("id"),
        values[0].model_fields_set.add("x"),
    ),
    "an attribute in the fields": lambda values: vars(values[0]).update(odd=1),
    "a removed field": lambda values: vars(values[0]).pop("name"),
    "the class": lambda values: object.__setattr__(values[0], "__class__", AIMessage),
}


def test_what_somebody_has_is_not_handed_out(codec: Codec, subtests: pytest.Subtests) -> None:
    for what, (number, keep) in KEPT.items():
        with case(subtests, what):
            values, made, loan = lent(codec, 80)
            kept, before = keep(values), places(values)
            del values
            values, *_ = codec.unpack_cached(made.packed, made, loan)
            assert identical(values, chat(80))
            assert not places(values)[number] & before[number]
            del kept, values
            values, *_ = codec.unpack_cached(made.packed, made, loan)
            assert places(values) == before  # so that it was what the caller kept


def test_what_was_changed_is_not_handed_out(codec: Codec, subtests: pytest.Subtests) -> None:
    for what, change in CHANGES.items():
        with case(subtests, what):
            values, made, loan = lent(codec, 80)
            change(values)
            del values
            values, *_ = codec.unpack_cached(made.packed, made, loan)
            assert identical(values, chat(80))


def test_a_loan_of_other_messages_is_not_handed_out(codec: Codec) -> None:
    *_, loan = lent(codec, 80)
    items = codec.pack_items([HumanMessage("other"), *chat(79)])
    values, *_ = codec.unpack_cached(items, MessageParts.of(items), loan)
    assert identical(values, codec.unpack_items(items))


@fewer_examples()
@given(data=st.data(), values=st.lists(messages, min_size=2, max_size=8), more=st.lists(messages, max_size=5))
def test_every_read_gets_messages_of_its_own(data: st.DataObject, values: list[Any], more: list[Any]) -> None:
    """Whatever is kept, dropped, changed and put in between, a read returns what unpacking returns, and nothing that
    somebody has."""
    codec = codec_of(data.draw(st.sampled_from([*CORES.values()])))
    cache = PackCache(MemoryCache(1 << 20), codec, Line("", "t"))
    many = [*values, *chat(80)]
    states = [pack_state(codec, {"m": many}), pack_state(codec, {"m": many + more})]
    kept: list[Any] = []
    for _ in range(data.draw(st.integers(2, 8))):
        packed = data.draw(st.sampled_from(states))
        got = cache.unpack(packed)["m"]
        assert identical(got, unpack_state(codec, packed)["m"])
        assert not {*map(id, changeable(got))} & {*map(id, kept)}
        match data.draw(st.sampled_from(["drop", "keep", "keep a part", "change", "put"])):
            case "keep":
                kept += changeable(got)
            case "keep a part":
                kept.append(data.draw(st.sampled_from(changeable(got))))
            case "change":
                wreck(data.draw(st.sampled_from(changeable(got))))
            case "put":
                got.append(HumanMessage("new"))
                cache.pack({"m": got})
        del got


def test_every_second_read_returns_the_same_messages(codec: Codec) -> None:
    """Of a caller that keeps what it read last, as programs keep the result of a run."""
    cache = PackCache(MemoryCache(1 << 20), codec, Line("", "t"))
    packed = pack_state(codec, {"m": chat(80)})
    reads, got = [], []
    for _ in range(6):
        got = cache.unpack(packed)["m"]
        reads.append(list(map(id, got)))
    assert reads[2] == reads[4]
    assert reads[3] == reads[5]
    assert not {*reads[2]} & {*reads[3]}
    assert identical(got, chat(80))
