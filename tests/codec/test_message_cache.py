"""Cached packing and unpacking gives the same as uncached, whatever happens in between."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.codec import Codec
from holdfast.codec.bulk_packing import BATCH
from holdfast.codec.core import Made, Seen
from holdfast.codec.message_cache import MessageParts
from holdfast.engine.model.packed_state import LONG_TEXT, pack_state, unpack_state, unpack_states
from holdfast.engine.pack_cache import PackCache
from holdfast.engine.row_format import Line
from holdfast.errors import HoldfastError, UnsupportedError
from tests.codec.values import identical
from tests.support.cases import case
from tests.support.nightly import fewer_examples

codec = Codec()

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.sampled_from([0.0, -0.0, 1.0, float("nan")]),
    st.text("ab", max_size=3),
)
odd = st.sampled_from([(1, 2), {1, 2}, 2**70, "\ud800", b"bytes", bytearray(b"x"), range(3)])
names = st.one_of(st.sampled_from(["a", "b", "c", "type", "id"]), st.integers(0, 2), st.none(), st.booleans())


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4)


plain = st.recursive(scalars, containers, max_leaves=10)
anything = st.recursive(st.one_of(scalars, scalars, scalars, odd), containers, max_leaves=10)
mappings = st.dictionaries(st.sampled_from(["a", "b", "done", "todo"]), plain, max_size=4)
contents = st.one_of(
    st.text(max_size=8),
    st.lists(
        st.one_of(st.text("xy", max_size=3), st.dictionaries(st.sampled_from(["type", "text"]), scalars)), max_size=3
    ),
)
calls = st.lists(
    st.builds(
        lambda name, args, id: {"name": name, "args": args, "id": id},
        st.text("fg", min_size=1),
        mappings,
        st.text("12"),
    ),
    max_size=3,
)
COUNTS = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
usage = st.none() | st.booleans().map(lambda more: {**COUNTS, **({"input_token_details": {"read": 1}} if more else {})})
common = {"content": contents, "additional_kwargs": mappings, "id": st.none() | st.text("0123456789", max_size=3)}


def of(cls: Callable[..., Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(fields).map(lambda drawn: cls(**drawn))


messages: st.SearchStrategy[Any] = st.one_of(
    of(HumanMessage, name=st.none() | st.text("n", max_size=2), **common),
    of(SystemMessage, **common),
    of(AIMessage, tool_calls=calls, usage_metadata=usage, response_metadata=mappings, **common),
    of(AIMessageChunk, **common),
    of(ToolMessage, tool_call_id=st.text("12"), artifact=plain, **common),
    of(FunctionMessage, content=contents, name=st.just("f")),
    of(ChatMessage, content=contents, role=st.sampled_from(["r", "s"])),
    of(RemoveMessage, id=st.text("12", min_size=1)),
    of(Document, page_content=st.text(max_size=5), metadata=mappings),
)

plain_messages: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": contents | plain}),
    st.dictionaries(names, plain, max_size=4),
)
"""Messages without a class: a caller may change all of them, their keys too."""


# What may happen to messages --------------------------------------------------------------------------------------


def held(value: Any) -> Iterator[Any]:
    """The lists and dicts in a value, each as often as it is found."""
    if isinstance(value, list | dict):
        yield value
        for each in list(value.values()) if isinstance(value, dict) else list(value):
            yield from held(each)


def all_held(values: list[Any]) -> list[Any]:
    own = [vars(each) for each in values if hasattr(each, "__dict__")]
    inside = [found for fields in own for value in fields.values() for found in held(value)]
    return inside + [found for each in values if isinstance(each, dict) for found in held(each)]


def change_list(draw: st.DrawFn, values: list[Any]) -> None:
    """The list of messages itself."""
    at = draw(st.integers(0, len(values)))
    how = draw(st.sampled_from(["insert", "again", "remove", "reverse", "shorten", "extend", "copy", "other"]))
    alike = plain_messages if any(isinstance(each, dict) for each in values) else messages
    if how == "insert":
        values.insert(at, draw(alike))
    elif how == "again" and values:
        values.insert(at, values[at - 1])
    elif how == "remove":
        del values[at : at + 1]
    elif how == "reverse":
        values.reverse()
    elif how == "shorten":
        del values[at:]
    elif how == "extend":
        values.extend(draw(st.lists(alike, min_size=1, max_size=3)))
    elif how == "copy":
        values[at : at + 1] = map(copy, values[at : at + 1])
    elif how == "other":
        values.insert(at, draw(messages | plain_messages | anything))


def change_message(draw: st.DrawFn, message: Any) -> None:
    """A message: its fields, what else it has, its class."""
    fields = vars(message)
    how = draw(st.sampled_from(["set", "retype", "extra", "no extra", "copy", "turn", "class", "drop", "more"]))
    name = draw(st.sampled_from(sorted(fields))) if fields else "content"
    if how == "set":
        fields[name] = draw(anything)
    elif how == "retype":
        fields[name] = 1.0 if isinstance(fields[name], bool) else isinstance(fields[name], int) or 1
    elif how == "extra":
        object.__setattr__(message, "__pydantic_extra__", {"surprise": draw(anything)})
    elif how == "no extra":
        object.__setattr__(message, "__pydantic_extra__", draw(st.sampled_from([None, {}])))
    elif how == "copy":
        object.__setattr__(message, "__dict__", dict(fields))
    elif how == "turn" and fields:  # the same values under other names
        turned = [*list(fields)[1:], next(iter(fields))]
        object.__setattr__(message, "__dict__", dict(zip(turned, fields.values(), strict=True)))
    elif how == "class":
        message.__class__ = draw(st.sampled_from([HumanMessage, SystemMessage, HumanMessageChunk]))
    elif how == "drop":
        fields.pop(name, None)
    elif how == "more":  # into another dict: that a name is changed in place goes unseen, as `Seen.starts` says
        object.__setattr__(message, "__dict__", {**fields, "more": draw(scalars)})


def change_inside(draw: st.DrawFn, values: list[Any]) -> None:
    """Something that messages hold. What is moved stays the same object."""
    found = all_held(values)
    if not found:
        return
    one, other = draw(st.sampled_from(found)), draw(st.sampled_from(found))
    how = draw(st.sampled_from(["put", "take", "move", "move", "rename", "order", "retype", "share"]))
    if how == "put":
        put(draw, one, draw(anything))
    elif how == "take" and one:
        take(draw, one)
    elif how == "move" and one:
        moved = take(draw, one)
        if other not in list(held(moved)):
            put(draw, other, moved)
    elif how == "rename" and isinstance(one, dict) and one:
        keys = list(one)
        new = draw(names)
        items = [(new if key == keys[0] else key, value) for key, value in one.items()]
        one.clear()
        one.update(items)
    elif how == "order":
        items = list(one.items()) if isinstance(one, dict) else list(one)
        one.clear()
        one.update(reversed(items)) if isinstance(one, dict) else one.extend(reversed(items))
    elif how == "retype":
        places = list(one) if isinstance(one, dict) else range(len(one))
        for place in places:
            if isinstance(one[place], int | float):
                one[place] = draw(st.sampled_from([1, True, 1.0, 0, False, -0.0]))
    elif how == "share" and one not in list(held(other)) and other not in list(held(one)):
        put(draw, one, other)


def put(draw: st.DrawFn, into: Any, value: Any) -> None:
    at = draw(st.integers(0, len(into)))
    if isinstance(into, list):
        into.insert(at, value)
    else:
        items = list(into.items())
        items.insert(at, (draw(names), value))
        into.clear()
        into.update(items)


def take(draw: st.DrawFn, out_of: Any) -> Any:
    place = draw(st.sampled_from(list(out_of) if isinstance(out_of, dict) else range(len(out_of))))
    return out_of.pop(place)


@st.composite
def changed(draw: st.DrawFn, values: list[Any]) -> None:
    """Change messages, or the list of them, in place."""
    for _ in range(draw(st.integers(0, 2))):
        models = [each for each in values if isinstance(each, BaseMessage)]
        how = draw(st.integers(0, 3))
        if how == 0:
            change_list(draw, values)
        elif how == 1 and models:
            change_message(draw, draw(st.sampled_from(models)))
        else:
            change_inside(draw, values)


def outcome(work: Callable[[], Any]) -> Any:
    """What comes out of it, or what is wrong."""
    try:
        return work()
    except HoldfastError as error:
        return type(error), str(error)


# The laws ---------------------------------------------------------------------------------------------------------


@given(data=st.data(), values=st.lists(messages, max_size=6) | st.lists(plain_messages, max_size=6))
def test_packing_again_is_packing(data: st.DataObject, values: list[Any]) -> None:
    known: list[Seen | None] = [None]
    for _ in range(data.draw(st.integers(1, 5))):
        data.draw(changed(values))
        seen = data.draw(st.sampled_from(known[-2:]))  # not always that of the last time
        expected = outcome(lambda: codec.pack_items(values))
        got = outcome(lambda: codec.pack_cached(values.copy(), seen))  # noqa: B023
        if isinstance(expected, tuple):
            assert got == expected
            continue
        packed, now = got
        assert packed == expected
        assert packed == [codec.pack(each) for each in values]
        known.append(now)


small = st.one_of(
    messages,
    anything,
    st.lists(messages | anything, max_size=4),
    st.fixed_dictionaries({"messages": st.lists(messages, max_size=3), "other": messages | anything}),
)


@given(st.lists(small, min_size=1, max_size=3))
def test_few_values_are_packed_as_each_alone(values: list[Any]) -> None:
    """The quick way of a few values, and of many."""
    expected = outcome(lambda: [codec.pack(each) for each in values])
    for got in (outcome(lambda: codec.pack_items(values)), outcome(lambda: codec.pack_items([*values, *[1] * 20]))):
        assert isinstance(got, tuple) if isinstance(expected, tuple) else got[: len(values)] == expected


def test_a_field_that_changes_while_it_is_packed_is_packed_as_it_was_or_is() -> None:
    """The quick way encodes copies: what it looked at cannot become something else before it is encoded."""
    message = HumanMessage("", additional_kwargs={"k": [1]})
    forms = {codec.pack(message)}
    message.additional_kwargs["k"] = [1, 2]
    forms.add(codec.pack(message))
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            message.additional_kwargs["k"] = [1]
            message.additional_kwargs["k"] = [1, 2]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert {codec.pack_items([message])[0] for _ in range(2000)} <= forms
    finally:
        done.set()
        thread.join()


def wreck(value: Any) -> None:
    """Change all that can be reached."""
    if isinstance(value, dict):
        for each in list(value.values()):
            wreck(each)
        value.clear()
        value["wrecked"] = True
    elif isinstance(value, list):
        for each in value:
            wreck(each)
        value.append("wrecked")
    elif hasattr(value, "__dict__"):
        wreck(vars(value))
        object.__setattr__(value, "__pydantic_extra__", {"wrecked": True})


def changeable(value: Any) -> list[Any]:
    """All that can be changed in a value."""
    if isinstance(value, list | dict):
        inside = value.values() if isinstance(value, dict) else value
        return [value, *(found for each in inside for found in changeable(each))]
    return [value, *changeable(vars(value))] if hasattr(value, "__dict__") else []


@fewer_examples()
@given(data=st.data(), values=st.lists(messages, min_size=1, max_size=12), more=st.lists(messages, max_size=10))
def test_unpacking_again_is_unpacking(data: st.DataObject, values: list[Any], more: list[Any]) -> None:
    if data.draw(st.integers(0, 3)) == 0:
        values = [*values, data.draw(anything)]
    items = codec.pack_items(values)
    longer = items + codec.pack_items(more)
    made: Made | None = None
    taken: list[Any] = []
    for which in data.draw(st.lists(st.sampled_from([items, items, longer, longer[1:], items[:-1]]), max_size=6)):
        which = [bytes(bytearray(each)) for each in which]  # equal, and not the same
        got, made, seen, _ = codec.unpack_cached(which, made)
        assert identical(got, codec.unpack_items(which))
        now = changeable(got)
        assert not set(map(id, now)) & set(map(id, taken))
        taken += now  # and keeps them, so that no other gets the place in memory of one of them
        again, _ = codec.pack_cached(got.copy(), seen)
        assert again == codec.pack_items(got) == which
        data.draw(changed(got))
        assert outcome(lambda: codec.pack_cached(got.copy(), seen)[0]) == outcome(lambda: codec.pack_items(got))  # noqa: B023
        wreck(got)


MOVES: dict[str, tuple[Callable[[], list[Any]], Callable[[list[Any]], object]]] = {
    "between lists of two messages": (
        lambda: [
            HumanMessage("1", additional_kwargs={"k": ["p", "q"]}),
            HumanMessage("2", additional_kwargs={"k": ["r"]}),
        ],
        lambda m: m[1].additional_kwargs["k"].append(m[0].additional_kwargs["k"].pop(0)),
    ),
    "between lists of a message": (
        lambda: [HumanMessage("1", additional_kwargs={"done": ["p"], "todo": ["q", "r"]})],
        lambda m: m[0].additional_kwargs["done"].append(m[0].additional_kwargs["todo"].pop(0)),
    ),
    "and back": (
        lambda: [HumanMessage("1", additional_kwargs={"done": ["p"], "todo": ["q", "r"]})],
        lambda m: m[0].additional_kwargs["todo"].append(m[0].additional_kwargs["done"].pop(0)),
    ),
    "from a list to a dict": (
        lambda: [HumanMessage("1", additional_kwargs={"todo": ["q"], "done": {}})],
        lambda m: m[0].additional_kwargs["done"].update(q=m[0].additional_kwargs["todo"].pop()),
    ),
    "between dicts": (
        lambda: [HumanMessage("1", additional_kwargs={"a": {"p": 1, "q": 2}, "b": {}, "c": {"r": 3}})],
        lambda m: m[0].additional_kwargs.update(
            {"a": m[0].additional_kwargs["a"].pop("q") and m[0].additional_kwargs["a"]}, b={"q": 2}
        ),
    ),
    "between blocks of content": (
        lambda: [AIMessage([{"type": "text", "text": "t"}, {"type": "text"}])],
        lambda m: m[0].content[1].update(text=m[0].content[0].pop("text")),
    ),
    "between tool calls": (
        lambda: [
            AIMessage("", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "1"}, {"name": "f", "args": {}, "id": "2"}])
        ],
        lambda m: m[0].tool_calls[1]["args"].update(x=m[0].tool_calls[0]["args"].pop("x")),
    ),
    "between names of fields": (
        lambda: [HumanMessage("1", id="i", name="n")],
        lambda m: object.__setattr__(
            m[0],
            "__dict__",
            {{"id": "name", "name": "id"}.get(name, name): value for name, value in vars(m[0]).items()},
        ),
    ),
}


def test_values_that_move_between_containers_are_noticed(subtests: pytest.Subtests) -> None:
    for move in MOVES:
        for unpacked in [False, True]:
            with case(subtests, move, unpacked):
                make, act = MOVES[move]
                values = make()
                packed, seen = codec.pack_cached(values, None)
                if unpacked:
                    values, made, _, _ = codec.unpack_cached(packed, MessageParts.of(packed))
                    values, _, seen, _ = codec.unpack_cached(packed, made)
                act(values)
                assert codec.pack_items(values) != packed
                assert codec.pack_cached(values, seen)[0] == codec.pack_items(values)


def _wrap(message: Any) -> None:
    message["content"] = [message["content"]]


def _reorder(message: Any) -> None:
    message["role"] = message.pop("role")


def _move_key(first: Any, second: Any) -> None:
    second["role"] = first.pop("role")


CHANGES: dict[str, Callable[[list[Any]], object]] = {
    "another text": lambda chat: chat[1].update(content="other"),
    "the text of a part": lambda chat: chat[2]["content"][0].update(text="other"),
    "one more part": lambda chat: chat[2]["content"].append({"type": "text", "text": "more"}),
    "a key of a part": lambda chat: chat[2]["content"][0].update(kind=chat[2]["content"][0].pop("type")),
    "an empty list that is filled": lambda chat: chat[3]["content"].append("x"),
    "an empty dict that is filled": lambda chat: chat[4].update(role="user"),
    "a value that is wrapped": lambda chat: _wrap(chat[0]),
    "a number of another type": lambda chat: chat[0].update(n=True),
    "a key": lambda chat: chat[0].update(name=chat[0].pop("n")),
    "the order of keys": lambda chat: _reorder(chat[0]),
    "a key of the next message": lambda chat: _move_key(chat[3], chat[4]),
    "the first message": lambda chat: chat.pop(0),
    "an equal message": lambda chat: chat.__setitem__(0, {**chat[0], "n": 1.0}),
    "all of a message": lambda chat: chat[1].clear(),
}


def test_plain_messages_that_were_changed_in_place_are_noticed(subtests: pytest.Subtests) -> None:
    for change in CHANGES:
        for before in range(2):
            with case(subtests, change, before):
                chat: list[Any] = [
                    {"role": "user", "content": "a", "n": 1},
                    {"role": "assistant", "content": "b"},
                    {"role": "user", "content": [{"type": "text", "text": "c"}]},
                    {"content": [], "role": "assistant"},
                    {},
                ]
                packed, seen = codec.pack_cached(chat.copy(), None)
                for _ in range(before):  # also of messages that were added to others
                    chat += [{"role": "user", "content": [{"text": "d"}]}]
                    packed, seen = codec.pack_cached(chat.copy(), seen)
                assert seen is not None
                assert codec.pack_cached(chat.copy(), seen)[1] is seen
                CHANGES[change](chat)
                assert codec.pack_items(chat) != packed
                assert codec.pack_cached(chat.copy(), seen)[0] == codec.pack_items(chat)


def test_one_attribute_for_another_is_noticed() -> None:
    message = HumanMessage("1")
    vars(message)["more"] = vars(message).pop("name")
    with pytest.raises(UnsupportedError, match="'more' that is not one of its fields"):
        codec.pack_items([message])
    with pytest.raises(UnsupportedError, match="'more' that is not one of its fields"):
        codec.pack_cached([HumanMessage("0"), message], None)


def test_assigned_fields_are_not_stored_for_known_classes() -> None:
    message: Any = ChatMessage(content="1", role="r")
    message.__class__ = HumanMessage
    del vars(message)["role"]
    assert codec.pack_items([message] * 2) == [codec.pack(message)] * 2


@pytest.mark.parametrize("kind", ["models", "dicts"])
def test_more_than_a_batch(kind: str) -> None:
    values: list[Any] = [HumanMessage(str(n), additional_kwargs={"n": [n]}) for n in range(2 * BATCH + 7)]
    if kind == "dicts":
        values = [{"content": str(n), "n": [n]} for n in range(2 * BATCH + 7)]
    packed, seen = codec.pack_cached(values.copy(), None)
    assert packed == codec.pack_items(values)
    assert seen is not None
    assert seen.weight == sum(map(len, packed))
    for n in (0, BATCH, 2 * BATCH + 6):
        inside = (values[n] if kind == "dicts" else values[n].additional_kwargs)["n"]
        inside.append("new")
        assert codec.pack_cached(values.copy(), seen)[0] == codec.pack_items(values)
        inside.pop()
    assert codec.pack_cached(values.copy(), seen)[1] is seen
    values += [{"content": "one more"} if kind == "dicts" else HumanMessage("one more")] * (BATCH + 1)
    again, seen = codec.pack_cached(values.copy(), seen)
    assert again == codec.pack_items(values)
    assert seen is not None
    assert len(seen.packed) == len(values)


OTHERS: list[Any] = [[], [1, 2], ["a", HumanMessage("b")], [{"a": (1,)}] * 20, [{"a": 1}, 1], [Document("d"), None]]
OTHERS += [[*[{"a": 1}] * BATCH, HumanMessage("b")], [*[HumanMessage("b")] * BATCH, {"a": 1}]]


def test_others_are_packed_as_ever(subtests: pytest.Subtests) -> None:
    for values in OTHERS:
        with case(subtests, values):
            packed, _ = codec.pack_cached(values, None)
            assert packed == codec.pack_items(values)
            first, made, _, _ = codec.unpack_cached(packed, None)
            again, _, _, _ = codec.unpack_cached(packed, made)
            assert identical(first, values)
            assert identical(again, values)


def test_limits_hold_again() -> None:
    small = Codec(max_bytes=500)
    values = [HumanMessage("short")]
    _, seen = small.pack_cached(values, None)
    assert seen is not None
    for wrong in (HumanMessage("x" * 600), HumanMessage("y", additional_kwargs={"k": ["z" * 600]})):
        assert outcome(lambda: small.pack_cached([*values, wrong], seen)) == outcome(  # noqa: B023
            lambda: small.pack_items([*values, wrong])  # noqa: B023
        )
    large = [*codec.pack_items(values), *codec.pack_items([HumanMessage("x" * 600)])]
    _, made, _, _ = small.unpack_cached(large[:1], MessageParts.of(large[:1]))
    assert outcome(lambda: small.unpack_cached(large, made)) == outcome(lambda: small.unpack_items(large))


@pytest.mark.parametrize("kind", ["models", "dicts"])
def test_another_thread_changes_them_all_the_time(kind: str) -> None:
    values: list[Any] = [HumanMessage("old", additional_kwargs={"k": ["old", {"a": "old"}]}) for _ in range(20)]
    if kind == "dicts":
        values = list(map(vars, values))

    def turn(to: str) -> None:
        fields: list[dict[str, Any]] = values if kind == "dicts" else [each.__dict__ for each in values]
        for value in fields:
            value["content"] = to
            value["additional_kwargs"]["k"][0] = to
            value["additional_kwargs"]["k"][1] = {"a": to}

    def states() -> set[bytes]:
        """What a message may be while it turns."""
        first, either = HumanMessage("", additional_kwargs={"k": ["", {}]}), ("old", "new")
        found = set()
        for content in either:
            for item in either:
                for inner in either:
                    first.content, first.additional_kwargs["k"] = content, [item, {"a": inner}]
                    found.add(codec.pack(vars(first) if kind == "dicts" else first))
        return found

    stop = threading.Event()

    def keep_turning() -> None:
        while not stop.is_set():
            turn("new")
            turn("old")

    allowed = states()
    interval = sys.getswitchinterval()
    thread = threading.Thread(target=keep_turning)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        seen: Seen | None = None
        for _ in range(400):
            packed, now = codec.pack_cached(values.copy(), seen)
            assert set(packed) <= allowed
            seen = now or seen
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert codec.pack_cached(values.copy(), seen)[0] == codec.pack_items(values)


# What a line remembers --------------------------------------------------------------------------------------------


texts = st.builds(
    lambda letter, size: letter * size, st.sampled_from("ab"), st.sampled_from([LONG_TEXT, LONG_TEXT + 1, 9000])
)
long_chats = st.lists(messages, min_size=14, max_size=20) | st.lists(plain_messages, min_size=14, max_size=20)
channels = st.one_of(texts, long_chats, st.lists(messages, max_size=3), plain)
states = st.dictionaries(st.sampled_from(["messages", "more", "text", "n"]), channels, max_size=4)


@fewer_examples()
@given(data=st.data(), cache_bytes=st.sampled_from([0, 5_000, 40_000, 1 << 24]))
def test_lines_and_channels_do_not_get_mixed_up(data: st.DataObject, cache_bytes: int) -> None:
    cache = MemoryCache(cache_bytes)
    lines = [PackCache(cache, codec, Line("", "one")), PackCache(cache, codec, Line("", "two"))]
    state: dict[str, Any] = data.draw(states)
    for _ in range(data.draw(st.integers(1, 6))):
        line = data.draw(st.sampled_from(lines))
        packed = line.pack(state)
        assert packed == pack_state(codec, state)
        assert list(packed) == list(pack_state(codec, state))
        got = line.unpack(packed)
        assert identical(got, unpack_state(codec, packed))
        assert line.pack(got) == packed
        assert cache.size <= cache_bytes
        what = data.draw(st.sampled_from(["keep", "other", "swap", "change", "got"]))
        if what == "other":
            state = data.draw(states)
        elif what == "swap":
            state = dict(zip(state, reversed(state.values()), strict=True))
        elif what == "got":
            state = got
        elif what == "change":
            for value in state.values():
                if isinstance(value, list):
                    data.draw(changed(value))
            try:
                pack_state(codec, state)
            except HoldfastError:
                state = {}


def test_a_long_text_is_packed_once() -> None:
    recent = PackCache(MemoryCache(1 << 20), codec, Line("", "t"))
    text, same = "x" * (LONG_TEXT + 1), "".join(["x"] * (LONG_TEXT + 1))
    packed = recent.pack({"text": text})
    assert recent.pack({"text": text})[b"\xa4text"] is packed[b"\xa4text"]
    assert recent.unpack(packed)["text"] is text
    assert recent.pack({"text": same}) == packed
    assert recent.unpack(pack_state(codec, {"text": same + "y"})) == {"text": same + "y"}


@pytest.mark.parametrize("calls", [[], [{"name": "f", "args": {"x": [1]}, "id": "1"}]], ids=["plain", "tool calls"])
def test_nothing_is_encoded_twice(calls: list[Any]) -> None:
    """That it is quick is the point of it: the bytes are the very ones that are at hand."""
    values = [HumanMessage("a", id="1"), AIMessage("b", id="2", tool_calls=calls)] * 3
    items = codec.pack_items(values)
    made: Made = MessageParts.of(items)
    for _ in range(2):
        again, found, seen, _ = codec.unpack_cached(items, made)
        assert found is not None
        assert seen is not None
        made = found
        packed, now = codec.pack_cached([*again, HumanMessage("c")], seen)
        assert now is not None
        assert all(one is other for one, other in zip(items, packed, strict=False))
        assert codec.pack_cached([*again, HumanMessage("d")], now)[0] != packed


@fewer_examples()
@given(st.lists(messages, min_size=1, max_size=6), st.lists(messages, max_size=4), st.lists(anything, max_size=2))
def test_several_states_are_unpacked_as_each_alone(values: list[Any], more: list[Any], others: list[Any]) -> None:
    """Lists that grow and shrink from one to the next, with other items, and without the list."""
    values = values * 16
    lists = [values, values[:-1], values + more, values[1:], values + others, [], values[:3], values]
    states = [pack_state(codec, {"m": each, "n": number}) for number, each in enumerate(lists)]
    states.append(pack_state(codec, {"n": others}))
    got = unpack_states(codec, states)
    assert identical(got, [unpack_state(codec, each) for each in states])
    found = [each for state in got for each in changeable(state)]
    assert len({*map(id, found)}) == len(found)  # none has anything of another
