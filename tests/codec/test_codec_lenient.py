"""Values that a lenient codec packs, and others refuse."""

from __future__ import annotations

import collections
import enum
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from holdfast.codec import Codec, OpaqueValue, opaque
from holdfast.codec.registry import Registry
from holdfast.errors import UnsupportedError

strict, lenient = Codec(), Codec(lenient=True)


class Text(str):
    """Overrides what must not be called."""

    __slots__ = ()

    def __str__(self) -> str:
        raise AssertionError("called")


class Slotted(int):
    note: str

    def __iter__(self) -> Any:
        raise AssertionError("called")


class Number(float): ...


class Data(bytes): ...


class Items(list[Any]):
    def copy(self) -> Any:
        raise AssertionError("called")


class Entries(dict[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("called")


class Tally(collections.Counter[str]): ...


class Level(int, enum.Enum):
    LOW = 1


SUBCLASSES = {str: Text, int: Slotted, float: Number, bytes: Data, list: Items, dict: Entries}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4),
)


def subclassed(value: Any) -> Any:
    """The value with all its parts, and keys, in subclasses."""
    if type(value) is dict:
        return Entries((subclassed(key), subclassed(item)) for key, item in dict.items(value))
    if type(value) is list:
        return Items(map(subclassed, value))
    return SUBCLASSES[type(value)](value) if type(value) in SUBCLASSES else value


def local_values() -> list[Any]:
    @dataclass
    class Plan:
        goal: str
        steps: list[int]

    class Model(BaseModel):
        x: int
        y: str = "y"

    class Pair(NamedTuple):
        a: int
        b: str

    return [Plan("g", [1]), Model(x=1), Pair(1, "b")]


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@given(VALUES)
def test_subclasses_are_packed_as_the_built_in_value(value: Any) -> None:
    assert lenient.pack(subclassed(value)) == strict.pack(value)
    assert lenient.pack_items([subclassed(value), value]) == strict.pack_items([value, value])


@pytest.mark.parametrize("value", [Text("a"), Slotted(1), Number(1.5), Data(b"x"), Items([1]), Entries(a=1)], ids=repr)
def test_others_refuse_subclasses(value: Any) -> None:
    with pytest.raises(UnsupportedError, match="cannot be saved"):
        strict.pack({"k": [value]})


def test_the_text_of_a_message_is_text_everywhere() -> None:
    text = AIMessage("hello").text
    assert type(text) is not str
    for codec in (strict, lenient):
        assert codec.pack({"answer": text, text: [text]}) == strict.pack({"answer": "hello", "hello": ["hello"]})
        assert codec.pack_items([text, AIMessage(text)]) == strict.pack_items(["hello", AIMessage("hello")])


def test_a_subclass_that_adds_something_is_refused() -> None:
    number = Slotted(1)
    assert lenient.unpack(lenient.pack(number)) == 1
    number.note = "lost otherwise"
    for value in (number, Tally("aab")):
        with pytest.raises(UnsupportedError, match="cannot be saved"):
            lenient.pack(value)


def test_other_kinds_stay_what_they_are() -> None:
    registry = Registry()
    registry.register(Text, lambda text: [str.upper(text)], lambda parts: Text(parts[0]))
    codec = Codec(registry, lenient=True)
    assert type(codec.unpack(codec.pack(Text("a")))) is Text
    assert lenient.unpack(lenient.pack(Level.LOW)) is Level.LOW
    assert lenient.unpack(lenient.pack(collections.Counter("aab"))) == collections.Counter("aab")


def test_instances_of_local_classes_are_read_with_their_fields() -> None:
    for value, fields in zip(
        local_values(), [{"goal": "g", "steps": [1]}, {"x": 1, "y": "y"}, {"a": 1, "b": "b"}], strict=True
    ):
        with pytest.raises(UnsupportedError, match="defined in a function"):
            strict.pack(value)
        packed = lenient.pack({"v": value})
        read = strict.unpack(packed)["v"]
        assert isinstance(read, OpaqueValue)
        assert read.fields == fields
        assert lenient.pack({"v": read}) == strict.pack({"v": read}) == packed
        assert lenient.unpack(packed)["v"] == value
        assert type(lenient.unpack(packed)["v"]) is type(value)
        with pytest.raises(AttributeError, match=r"defined in a function.*\.fields"):
            getattr(read, "goal")  # noqa: B009 - unknown to a type checker


def test_only_classes_that_were_packed_here_come_back() -> None:
    class Plan(BaseModel):
        goal: str

    name = f"{__name__}:test_only_classes_that_were_packed_here_come_back.<locals>.Plan"
    tag, data = _stored(name)
    assert type(lenient.unpack(lenient.pack(OpaqueValue(tag, data)))) is OpaqueValue  # the class is there
    packed = lenient.pack(Plan(goal="g"))
    assert lenient.unpack(packed) == Plan(goal="g")
    assert type(lenient.unpack(lenient.pack(OpaqueValue(tag, data)))) is OpaqueValue  # of another kind and fields
    restricted = Codec(lenient=True, may_revive=lambda ref: ref != name)
    assert type(restricted.unpack(packed)) is OpaqueValue


def test_the_class_that_was_packed_last_comes_back() -> None:
    first, second = local_values()[0], local_values()[0]
    packed = lenient.pack(first)
    assert type(lenient.unpack(packed)) is type(first)
    assert lenient.pack(second) == packed
    assert type(lenient.unpack(packed)) is type(second)


def test_the_first_opaque_value_of_a_class_is_warned_about() -> None:
    name = "shop.orders:Order"
    packed = strict.pack([OpaqueValue(*_stored(name))] * 2)
    opaque._warned.discard(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        strict.unpack(packed)  # such as that of the command line, which has no classes
        assert not caught
        for _ in range(2):
            lenient.unpack(packed)
    (warned,) = caught
    assert f"OpaqueValue {name}" in str(warned.message)
    assert "import shop.orders before reading" in str(warned.message)
    opaque._warned.discard(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="Order"):  # and is no damage
            lenient.unpack(packed)


def test_what_is_not_data_is_refused_all_the_same() -> None:
    class Client:
        def __call__(self) -> None: ...

    for value in (Client(), object(), lambda: None, open):
        with pytest.raises(UnsupportedError):
            lenient.pack({"client": value})


def test_each_class_is_warned_about_once() -> None:
    class Once(str):
        __slots__ = ()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            lenient.pack([Once("a"), Once("b"), *local_values()[:1] * 2])
    texts = [str(each.message) for each in caught]
    assert len([text for text in texts if "Once: instances are saved, and read, as str" in text]) == 1
    # Each call defines a class of its own.
    assert len([text for text in texts if "Plan: the class cannot be found by its name" in text]) == 3


def test_an_opaque_value_says_which_module_to_import() -> None:
    order = OpaqueValue(*_stored("shop.orders:Order"))
    with pytest.raises(AttributeError, match=r"'total'.*not loaded here, or has changed; import shop\.orders before"):
        getattr(order, "total")  # noqa: B009 - unknown to a type checker
    assert not hasattr(order, "__len__")


def _stored(ref: str) -> tuple[int, bytes]:
    value = strict.unpack(lenient.pack(local_values()[0]))
    name = value.type_name
    start = value.data.index(name.encode())
    return value.tag, b"\x92" + strict.pack(ref) + value.data[start + len(name) :]
