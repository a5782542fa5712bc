"""Unsupported values are refused when they are saved, with their path and a hint."""

from __future__ import annotations

import collections
import dataclasses
import enum
import importlib.resources
import inspect
import re
import sys
import threading
import zoneinfo
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import StructuredTool
from msgspec.msgpack import Ext

from holdfast.codec import Codec
from holdfast.codec.registry import Registry
from holdfast.errors import (
    CircularReferenceError,
    CorruptError,
    HoldfastError,
    InvalidError,
    TooDeepError,
    TooLargeError,
    UnsupportedError,
)
from tests.codec import app
from tests.support.cases import case
from tests.support.nightly import by_day

codec = Codec()


class Called(NamedTuple):
    a: int

    def __call__(self) -> None: ...


@dataclasses.dataclass
class Deleted:
    def __del__(self) -> None: ...


@dataclasses.dataclass
class Guarded:
    a: int

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@dataclasses.dataclass
class Dynamic:
    a: int

    def __getattr__(self, name: str) -> int:
        return 1


@dataclasses.dataclass
class DictData(dict[str, int]):
    a: int = 1


class TupleWithMore(collections.namedtuple("TupleWithMore", "a")):
    pass


class MyStr(str):
    pass


class Member(enum.Enum):
    A = 1


class Descriptor:
    def __get__(self, obj: object, owner: type) -> int:
        return 1

    def __set__(self, obj: object, value: int) -> None: ...


@dataclasses.dataclass
class Described:
    a: int = Descriptor()  # type: ignore[assignment]


def make_local() -> Any:
    @dataclasses.dataclass
    class Local:
        a: int = 1

    return Local()


def unnamed_zone() -> zoneinfo.ZoneInfo:
    with importlib.resources.files("tzdata.zoneinfo").joinpath("UTC").open("rb") as file:
        return zoneinfo.ZoneInfo.from_file(file)


def with_attribute() -> app.Plan:
    plan = app.Plan("g")
    plan.surprise = 1  # type: ignore[attr-defined]
    return plan


def tuple_with_attribute() -> TupleWithMore:
    value = TupleWithMore(1)
    value.more = 2  # type: ignore[attr-defined]
    return value


REFUSED: list[tuple[Any, ...]] = [
    (app.Client(), "tests.codec.app:Client object cannot be saved: it is not a data class"),
    (Called(1), "__call__"),
    (Deleted(), "__del__"),
    (Guarded(1), "__setattr__"),
    (Dynamic(1), "__getattr__"),
    (DictData(), "DictData"),
    (Described(), "descriptor"),
    (make_local(), "cannot be found by its name"),
    (with_attribute(), "'surprise' that is not one of its fields"),
    (tuple_with_attribute(), "attributes besides its fields"),
    (MyStr("x"), "MyStr"),
    (StructuredTool.from_function(app.search), "which is not data"),
    (memoryview(b"x"), "memoryview"),
    (Ext(5, b"x"), "Ext"),
    (app.search, "holdfast.allow(search)"),
    (app.Plan, "holdfast.allow(Plan)"),
    (lambda: 1, "<lambda> cannot be saved"),
    ("".join, "code, which is saved only by a name"),
    (object(), "register(object"),
    (threading.Lock(), "it is not a data class that Holdfast supports"),
    (iter([1]), "list_iterator"),
    (unnamed_zone(), "ZoneInfo without a key"),
]


def test_refused(subtests: pytest.Subtests) -> None:
    for value, says in REFUSED:
        with case(subtests, says, value):
            for wrapped, path in ((value, "the value itself"), ({"a": [0, value]}, "a[1]"), ({"m": (value,)}, "m[0]")):
                with pytest.raises(UnsupportedError, match=re.escape(says)) as caught:
                    codec.pack(wrapped)
                assert caught.value.where == path
                assert caught.value.hint
                assert isinstance(caught.value, TypeError)
            with pytest.raises(UnsupportedError) as caught:
                codec.pack_items([1, value])
            assert caught.value.where == "[1]"


PATHS: list[tuple[Any, ...]] = [
    ({"messages": [1, 2, 3, AIMessage("x", additional_kwargs={"client": app.Client()})]},
     "messages[3].additional_kwargs.client"),
    ({"messages": [HumanMessage("x", surprise=app.Client())]}, "messages[0].surprise"),
    ({"plan": app.Plan("g", [app.Slotted(1, app.Client())])}, "plan.steps[0].b"),
    ({"a b": {1: {"x": app.Client()}}}, "['a b'][1].x"),
    ({"keys": {(1, MyStr("x")): 1}}, "keys[the key (1, 'x')][1]"),
    ({"s": {MyStr("x")}}, "s[the item 'x']"),
    ({"e": ValueError(app.Client())}, "e.args[0]"),
    ({"p": app.Pair(1, app.Client())}, "p.right"),
    ({"d": collections.deque([app.Client()])}, "d[0]"),
    ({"dd": collections.defaultdict(app.Client)}, "dd"),
    ({"m": app.FrozenModel(a=app.Client())}, "m.a"),
]  # fmt: skip


def test_the_path_is_named(subtests: pytest.Subtests) -> None:
    for value, path in PATHS:
        with case(subtests, path):
            with pytest.raises(UnsupportedError) as caught:
                codec.pack(value)
            assert caught.value.where == path
            assert f"(at {path})" in str(caught.value)


def test_causes_and_private_attributes_are_on_the_path() -> None:
    error = app.AgentError("x", code=1)
    error.__cause__ = ValueError(app.Client())
    with pytest.raises(UnsupportedError) as caught:
        codec.pack([error])
    assert caught.value.where == "[0].__cause__.args[0]"
    model = app.Private()
    model._secret = app.Client()
    with pytest.raises(UnsupportedError) as caught:
        codec.pack([model])
    assert caught.value.where == "[0]._secret"


def cycles() -> list[tuple[Any, str]]:
    items: list[Any] = [1]
    items.append({"back": items})
    entries: dict[str, Any] = {}
    entries["self"] = entries
    plan = app.Plan("g")
    plan.steps.append((plan,))
    message = AIMessage("x")
    message.additional_kwargs["me"] = [message]
    return [
        (items, "[1].back"),
        (entries, "self"),
        (plan, "steps[0][0]"),
        (message, "additional_kwargs.me[0]"),
    ]


def test_circular_references(subtests: pytest.Subtests) -> None:
    for value, path in cycles():
        with case(subtests, path):
            with pytest.raises(CircularReferenceError) as caught:
                codec.pack(value)
            assert caught.value.where == path
            with pytest.raises(CircularReferenceError):
                codec.pack_items([value])


def nested(depth: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


DEPTHS: dict[str, tuple[Any, int]] = {
    "lists": (lambda v: [v], 48),
    "dicts": (lambda v: {"a": v}, 48),
    "tuples": (lambda v: (v,), 24),
    "objects": (app.Frozen, 24),
}


def test_depth(subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooDeepError):
        codec.pack(nested(by_day(5000, 400), lambda v: [v]))  # takes long for what is deeper: its path is looked for
    monkeypatch.setattr("holdfast.codec.packer._MAX_PATH", 25)  # a longer path takes a second to find
    for name, (wrap, limit) in DEPTHS.items():
        with case(subtests, name):
            packed = codec.pack(nested(limit, wrap))
            assert codec.pack(codec.unpack(packed)) == packed
            for depth in (limit + 1, 100, 5000):
                with pytest.raises(TooDeepError, match="deep"):
                    codec.pack(nested(depth, wrap))
                with pytest.raises(TooDeepError):
                    codec.pack_items([nested(depth, wrap)])


def unpacked_in_a_thread(packed: list[bytes]) -> list[Any]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(codec.unpack_items(packed)))
    thread.start()
    thread.join()
    return found


def test_values_deep_inside_a_message_can_be_read_in_any_thread(subtests: pytest.Subtests) -> None:
    for depth in range(40, 55):
        with case(subtests, depth):
            message = AIMessage("x" * 3000, additional_kwargs={"deep": nested(depth, lambda v: [v])})
            codec.pack_items([AIMessage("x")])  # from now on messages are packed many at once
            try:
                packed = codec.pack_items([message])
            except TooDeepError:
                with pytest.raises(TooDeepError):
                    codec.pack(message)
                continue
            assert unpacked_in_a_thread([*packed, codec.pack(message)]) == [message, message]


def test_size_limit() -> None:
    small = Codec(max_bytes=1000)
    assert small.unpack(small.pack("x" * 900)) == "x" * 900
    for value in (
        "x" * 1001,
        b"x" * 1001,
        ["x" * 501] * 2,
        {"k": "x" * 1001},
        {"k" * 1001: 1},
        (["x" * 999],),
    ):
        with pytest.raises(TooLargeError, match="limit"):
            small.pack(value)
        with pytest.raises(TooLargeError):
            small.pack_items([value, value])
    with pytest.raises(TooLargeError, match="1002 packed bytes are over the limit of 1000"):
        small.unpack(b"\xc5\x03\xe7" + b"x" * 999)
    with pytest.raises(TooLargeError) as caught:
        small.pack({"big": ["x" * 1001]})
    assert caught.value.where == "big"


def test_shared_parts_do_not_blow_up() -> None:
    value: Any = ["x"]
    for _ in range(50):
        value = [value, value]
    with pytest.raises(TooLargeError):
        Codec(max_bytes=1 << 17).pack(value)
    wide: Any = ["x"] * 1000
    for _ in range(5):
        wide = [wide] * 1000
    with pytest.raises(TooLargeError):
        Codec(max_bytes=1 << 17).pack_items([wide])


def test_too_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.codec.packer.MAX_VALUES", 100)
    assert codec.pack([1] * 92)
    for value in ([1] * 101, [[1] * 50] * 2, [()] * 12):
        with pytest.raises(TooLargeError, match="more than 100 values"):
            codec.pack(value)


class Same:
    """Objects whose hashes are all the same."""

    def __hash__(self) -> int:
        return 1


def test_values_that_take_too_long_to_make() -> None:
    huge = 1 << 70_000
    registry = Registry()
    registry.register(Same, lambda _: None, lambda _: Same())
    own = Codec(registry)
    for value in (range(huge), Fraction(1, huge)):
        with pytest.raises(TooLargeError, match="more than 65536 bits"):
            own.pack(value)
    for pattern in (re.compile("a" * 20_001), re.compile("é" * 201, re.IGNORECASE)):
        with pytest.raises(UnsupportedError, match="the regular expression is too long"):
            own.pack(pattern)
    crowd = {Same() for _ in range(1100)}
    for collection in (crowd, dict.fromkeys(crowd), frozenset(crowd)):
        with pytest.raises(UnsupportedError, match="same hash"):
            own.pack(collection)


def test_dicts_with_attributes() -> None:
    counter = collections.Counter("a")
    counter.note = 1  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="Counter with attributes of its own"):
        codec.pack(counter)


def test_too_little_stack_left() -> None:
    value = nested(20, lambda v: ([[[[v]]]],))
    assert codec.pack(codec.unpack(codec.pack(value))) == codec.pack(value)

    def deeper(frames: int) -> bytes:
        return deeper(frames - 1) if frames else codec.pack(value)

    here = len(inspect.stack(0))
    with pytest.raises(TooDeepError, match="for the remaining stack"):
        deeper(sys.getrecursionlimit() - here - 60)


def test_registered_types() -> None:
    registry = Registry()
    own = Codec(registry)
    with pytest.raises(UnsupportedError):
        own.pack(app.Temperature(1.0))
    registry.register(app.Temperature, lambda t: {"k": t.kelvin}, lambda d: app.Temperature(d["k"]))
    value = {"t": [app.Temperature(3.5)]}
    packed = own.pack(value)
    assert own.unpack(packed) == value
    inert = codec.unpack(packed)["t"][0]
    assert inert.type_name == "tests.codec.app:Temperature"
    assert codec.pack({"t": [inert]}) == packed
    registry.register(app.Temperature, lambda t: t.kelvin, app.Temperature)  # the same type again: replaced
    assert own.unpack(own.pack(app.Temperature(2.0))) == app.Temperature(2.0)


def test_registered_types_that_fail() -> None:
    registry = Registry()
    own = Codec(registry)
    registry.register(app.Temperature, lambda t: 1 / 0, lambda d: app.Temperature(d))
    with pytest.raises(UnsupportedError, match="dump function registered for .* failed: ZeroDivisionError") as caught:
        own.pack([app.Temperature(1)])
    assert caught.value.where == "[0]"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    registry.register(app.Temperature, lambda t: t.kelvin, lambda d: app.Temperature(1 / d))
    with pytest.raises(CorruptError, match="load function registered .* refused stored data: ZeroDivisionError"):
        own.unpack(own.pack(app.Temperature(0)))
    registry.register(app.Client, lambda _: app.Client(), lambda _: app.Client())
    with pytest.raises(TooDeepError):
        own.pack(app.Client())


def test_registry_refuses_ambiguous_names() -> None:
    registry = Registry()
    with pytest.raises(InvalidError, match="dict is already supported"):
        registry.register(dict, lambda d: d, lambda d: d)
    with pytest.raises(InvalidError, match="HumanMessage is already supported"):
        registry.register(HumanMessage, lambda m: m.content, HumanMessage)
    registry.register(app.Temperature, lambda t: t.kelvin, app.Temperature, name="temp")
    with pytest.raises(InvalidError, match="the name 'temp' is in use by tests.codec.app:Temperature"):
        registry.register(app.Client, lambda c: None, lambda _: app.Client(), name="temp")
    with pytest.raises(InvalidError, match="neither a function nor a class"):
        registry.allow(3)
    with pytest.raises(InvalidError, match="lambda or defined in a function"):
        registry.allow(lambda: 1)
    registry.allow(app.search, name="tool")
    with pytest.raises(InvalidError, match="the name 'tool' is in use"):
        registry.allow(app.Plan, name="tool")


def test_allowed_code_comes_back_by_name() -> None:
    registry = Registry()
    own = Codec(registry)
    registry.allow(app.search)
    registry.allow(app.Plan)
    registry.allow(app.Extra)
    value = [app.search, app.Plan, collections.defaultdict(app.Extra)]
    back = own.unpack(own.pack(value))
    assert back == value
    assert back[0] is app.search
    inert = codec.unpack(own.pack(app.search))
    assert inert.type_name == "tests.codec.app:search"
    assert codec.unpack(own.pack(collections.defaultdict(app.Extra))).type_name == "defaultdict"


def test_errors_are_one_tree() -> None:
    error = InvalidError("what", where="here", hint="Do this")
    assert str(error) == "what (at here). Do this"
    assert str(HoldfastError("what")) == "what"
    assert isinstance(error, ValueError)
