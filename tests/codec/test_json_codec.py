"""The JSON form of packed bytes: exact with marks, and plain for people."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import json
import pathlib
import re
import struct
import sys
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs
import msgspec
import numpy as np
import pandas as pd
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Send
from msgspec.msgpack import Ext, encode

from holdfast.codec import Codec, OpaqueValue, msgpack
from holdfast.codec.class_lookup import find_loaded
from holdfast.codec.json_codec import from_json, to_json
from holdfast.codec.plain_json import to_plain
from holdfast.codec.registry import Registry
from holdfast.codec.stdlib_types import STDLIB_TYPES
from holdfast.codec.tags import KNOWN_CLASSES, Tag
from holdfast.errors import CircularReferenceError, CorruptError, HoldfastError, InvalidError, TooDeepError
from tests.support.cases import case

HERE = __name__
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


class Money:
    """A class with a registered form."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return type(other) is Money and other.cents == self.cents

    def __hash__(self) -> int:
        return self.cents


registry = Registry()
registry.register(Money, dump=lambda money: (money.cents,), load=lambda parts: Money(*parts), name="money")
codec = Codec(registry)
pack = codec.pack


@dataclasses.dataclass
class State:
    goal: Any = None
    done: bool = False


@attrs.define
class Note:
    text: Any


class Point(NamedTuple):
    x: Any
    y: Any


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Perm(enum.Flag):
    R = 1
    W = 2
    HUGE = 1 << 70


class Model(pydantic.BaseModel):
    name: Any = None
    size: Any = 0


class Open(pydantic.BaseModel, extra="allow"):
    a: int = 1
    _secret: Any = pydantic.PrivateAttr(default=None)


class Failed(Exception):
    pass


Wide = pydantic.create_model("Wide", __module__=HERE, **{f"f{i}": (int, i) for i in range(70)})  # type: ignore[call-overload]


def to_float(bits: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(bits))[0])


def model_open() -> Open:
    model = Open(b=2)  # type: ignore[call-arg]
    model._secret = (1,)
    return model


def model_stranger() -> Model:
    model = Model(name="n")
    model.__pydantic_fields_set__.add("gone")
    return model


def failed() -> Failed:
    error = Failed("no", 2)
    error.__cause__ = KeyError()
    return error


def raw(tag: int, payload: bytes) -> Ext:
    return Ext(int(tag), payload)


def ext(tag: int, parts: Any) -> bytes:
    """A typed value whose payload is the packed form of `parts`."""
    return encode(raw(tag, encode(parts)))


def check(packed: bytes) -> Any:
    """The laws of the lossless form, and that the plain one is JSON; returns the lossless one."""
    tree = to_json(packed)
    assert from_json(tree) == packed
    assert from_json(json.loads(json.dumps(tree, allow_nan=False))) == packed
    assert from_json(msgspec.json.decode(msgspec.json.encode(tree))) == packed
    msgspec.json.encode(to_plain(packed))
    json.dumps(to_plain(packed), allow_nan=False)
    return tree


# How everything looks -----------------------------------------------------------------------------------------

_HUMAN: dict[str, Any] = {"additional_kwargs": {}, "response_metadata": {}, "type": "human", "name": None, "id": None}

LOOKS: list[tuple[Any, Any, Any]] = [
    # value, lossless, plain
    (None, None, None),
    (True, True, True),
    (-5, -5, -5),
    ((1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 1),
    (1.0, 1.0, 1.0),
    ("ö", "ö", "ö"),
    ([1, [2]], [1, [2]], [1, [2]]),
    ([None, 1, 2], [None, 1, 2], [None, 1, 2]),
    ({"a": {"b": []}}, {"a": {"b": []}}, {"a": {"b": []}}),
    ({"$a": 1, "b": 2}, {"$a": 1, "b": 2}, {"$a": 1, "b": 2}),
    ({"$tuple": [1]}, {"$object": {"$tuple": [1]}}, {"$tuple": [1]}),
    ({"$": 1}, {"$object": {"$": 1}}, {"$": 1}),
    ({"$object": {}}, {"$object": {"$object": {}}}, {"$object": {}}),
    ({1: "a", None: 2.5, b"k": True}, {"$dict": [[1, "a"], [None, 2.5], [{"$bytes": "aw=="}, True]]},
     {"1": "a", "null": 2.5, "aw==": True}),
    ({1: "a", "1": "b"}, {"$dict": [[1, "a"], ["1", "b"]]}, [[1, "a"], ["1", "b"]]),
    ({(1, 2): "a"}, {"$dict": [[{"$tuple": [1, 2]}, "a"]]}, {"[1, 2]": "a"}),
    ({"\ud800": 1}, {"$dict": [[{"$str": "\\ud800"}, 1]]}, {"\\ud800": 1}),
    (float("nan"), {"$float": "nan"}, "NaN"),
    (to_float("fff0000000000001"), {"$float": "fff0000000000001"}, "NaN"),
    (float("inf"), {"$float": "inf"}, "Infinity"),
    (float("-inf"), {"$float": "-inf"}, "-Infinity"),
    (b"\x00\xff", {"$bytes": "AP8="}, "AP8="),
    (bytes(65), {"$bytes": "A" * 87 + "="}, "<65 bytes, sha256 98ce42deef51d402>"),
    (bytearray(b"a"), {"$bytearray": "YQ=="}, "YQ=="),
    (1 << 64, {"$int": "18446744073709551616"}, "18446744073709551616"),
    (-(1 << 2000), {"$int": hex(-(1 << 2000))}, hex(-(1 << 2000))),
    ("\\\ud800\udc00ö", {"$str": "\\\\\\ud800\\udc00ö"}, "\\\\ud800\\udc00ö"),
    ((1, ()), {"$tuple": [1, {"$tuple": []}]}, [1, []]),
    ({2, 1}, {"$set": [1, 2]}, [1, 2]),
    (frozenset({"a"}), {"$frozenset": ["a"]}, ["a"]),
    (complex(1, -0.5), {"$complex": [1.0, -0.5]}, "1.0-0.5j"),
    (complex(0, float("inf")), {"$complex": [0.0, {"$float": "inf"}]}, "0.0+Infinityj"),
    (range(0, 6, 2), {"$range": [0, 6, 2]}, "range(0, 6, 2)"),
    (decimal.Decimal("1.00"), {"$decimal": "1.00"}, "1.00"),
    (fractions.Fraction(2, 6), {"$fraction": [1, 3]}, "1/3"),
    (uuid.UUID(int=5), {"$uuid": "00000000-0000-0000-0000-000000000005"}, "00000000-0000-0000-0000-000000000005"),
    (dt.datetime(2024, 5, 1, 12), {"$datetime": "2024-05-01T12:00:00"}, "2024-05-01T12:00:00"),
    (dt.datetime(2024, 5, 1, tzinfo=dt.UTC), {"$datetime": "2024-05-01T00:00:00+00:00"}, "2024-05-01T00:00:00+00:00"),
    (dt.datetime(2024, 5, 1, tzinfo=BERLIN),
     {"$datetime": ["2024-05-01T00:00:00", {"$zoneinfo": "Europe/Berlin"}, 0]}, "2024-05-01T00:00:00[Europe/Berlin]"),
    (dt.datetime(2024, 5, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "X")),
     {"$datetime": ["2024-05-01T00:00:00", {"$timezone": ["+01:00", "X"]}, 0]}, "2024-05-01T00:00:00[X]"),
    (dt.datetime(2024, 5, 1, fold=1), {"$datetime": ["2024-05-01T00:00:00", None, 1]}, "2024-05-01T00:00:00"),
    (dt.time(1, 2, 3, 4), {"$time": "01:02:03.000004"}, "01:02:03.000004"),
    (dt.date(2024, 2, 29), {"$date": "2024-02-29"}, "2024-02-29"),
    (dt.timedelta(days=1, hours=2), {"$timedelta": [1, 7200, 0]}, "1 day, 2:00:00"),
    (dt.timezone(-dt.timedelta(hours=1)), {"$timezone": "-01:00"}, "-01:00"),
    (BERLIN, {"$zoneinfo": "Europe/Berlin"}, "Europe/Berlin"),
    (pathlib.PurePosixPath("/a/b"), {"$path": ["pure posix", "/a/b"]}, "/a/b"),
    (re.compile("a+", re.I), {"$regex": ["a+", 34]}, "a+"),
    (re.compile(b"a"), {"$regex": [{"$bytes": "YQ=="}, 0]}, "YQ=="),
    (ipaddress.ip_network("10.0.0.0/8"), {"$ipaddress": ["IPv4Network", "10.0.0.0/8"]}, "10.0.0.0/8"),
    (collections.deque([1], 3), {"$deque": [3, [1]]}, [1]),
    (collections.defaultdict(list, a=[1]), {"$defaultdict": [{"$reference": "builtins:list"}, {"a": [1]}]}, {"a": [1]}),
    (collections.OrderedDict({"$b": 1}), {"$ordereddict": {"$b": 1}}, {"$b": 1}),
    (collections.Counter([1, 1]), {"$counter": [[1, 2]]}, {"1": 2}),
    (int, {"$reference": "builtins:int"}, "builtins:int"),
    (Money(5), {"$registered": ["money", {"$tuple": [5]}]}, [5]),
    (State((1,)), {"$dataclass": [f"{HERE}:State", {"goal": {"$tuple": [1]}, "done": False}]},
     {"goal": [1], "done": False}),
    (Note("n"), {"$attrs": [f"{HERE}:Note", {"text": "n"}]}, {"text": "n"}),
    (Point(1, 2), {"$namedtuple": [f"{HERE}:Point", {"x": 1, "y": 2}]}, {"x": 1, "y": 2}),
    (Color.RED, {"$enum": [f"{HERE}:Color", "RED"]}, "Color.RED"),
    (Perm.R | Perm.W, {"$flag": [f"{HERE}:Perm", 3]}, "Perm(3)"),
    (Perm.HUGE, {"$flag": [f"{HERE}:Perm", {"$int": str(1 << 70)}]}, f"Perm({1 << 70})"),
    (failed(), {"$exception": [f"{HERE}:Failed", {"args": ["no", 2], "attributes": {}, "cause": {
        "$exception": ["builtins:KeyError", {"args": [], "attributes": {}}]}, "suppress": True}]}, "Failed: no, 2"),
    (KeyError(), {"$exception": ["builtins:KeyError", {"args": [], "attributes": {}}]}, "KeyError"),
    (Model(name=1, size=2), {"$pydantic": [f"{HERE}:Model", {"name": 1, "size": 2}]}, {"name": 1, "size": 2}),
    (Model(size=2), {"$pydantic": [f"{HERE}:Model", {"name": None, "size": 2}, {"unset": ["name"]}]},
     {"name": None, "size": 2}),
    (model_open(), {"$pydantic": [f"{HERE}:Open", {"a": 1},
                                  {"unset": ["a"], "extra": {"b": 2}, "private": {"_secret": {"$tuple": [1]}}}]},
     {"a": 1, "b": 2}),
    (model_stranger(), {"$pydantic": [f"{HERE}:Model", {"name": "n", "size": 0},
                                      {"unset": ["size"], "strangers": ["gone"]}]}, {"name": "n", "size": 0}),
    (HumanMessage("hi"), {"$HumanMessage": {"content": "hi", **_HUMAN}}, {"type": "human", "content": "hi"}),
    ([HumanMessage("hi")], [{"$HumanMessage": {"content": "hi", **_HUMAN}}], [{"type": "human", "content": "hi"}]),
    (HumanMessage("hi", more=1),
     {"$pydantic": ["langchain_core.messages.human:HumanMessage", {"content": "hi", **_HUMAN},
                    {"unset": ["additional_kwargs", "response_metadata", "type", "name", "id"], "extra": {"more": 1}}]},
     {"type": "human", "content": "hi", "more": 1}),
    (Document("text", metadata={"p": 1}),
     {"$Document": {"id": None, "metadata": {"p": 1}, "page_content": "text", "type": "Document"}},
     {"type": "Document", "metadata": {"p": 1}, "page_content": "text"}),
    (Command(goto="n"), {"$Command": {"graph": None, "update": None, "resume": None, "goto": "n"}},
     {"type": "Command", "goto": "n"}),
    (_DeltaSnapshot([1]), {"$DeltaSnapshot": {"value": [1]}}, {"type": "DeltaSnapshot", "value": [1]}),
    (OpaqueValue(99, b"later"), {"$ext": [99, "bGF0ZXI="]}, "<unknown type 99, 5 bytes, sha256 1d9283d848ea941a>"),
    (OpaqueValue(Tag.SHAPED, encode([None, 999, {"a": (1,)}])), {"$shaped": [999, {"a": [1]}]}, {"a": [1]}),
    (OpaqueValue(Tag.DATACLASS, encode(["gone:Cls", {"a": 1}])), {"$dataclass": ["gone:Cls", {"a": 1}]}, {"a": 1}),
    (
        OpaqueValue(Tag.PYDANTIC_V1, encode(["gone:Cls", {"a": 1}, 1, None, None])),
        {"$pydantic_v1": ["gone:Cls", {"a": 1}]},
        {"a": 1},
    ),
    (OpaqueValue(Tag.PATH, encode(["windows", "C:\\"])), {"$path": ["windows", "C:\\"]}, "C:\\"),
    (OpaqueValue(Tag.ZONEINFO, b"Mars/Base"), {"$zoneinfo": "Mars/Base"}, "Mars/Base"),
    (np.array([[1, 2]], "<i2"), {"$ndarray": ["<i2", [1, 2], "C", {"$bytes": "AQACAA=="}]}, [[1, 2]]),
    (np.asfortranarray(np.arange(6, dtype="|u1").reshape(2, 3)),
     {"$ndarray": ["|u1", [2, 3], "F", {"$bytes": "AAMBBAIF"}]}, [[0, 1, 2], [3, 4, 5]]),
    (np.array(float("nan"), "<f4"), {"$ndarray": ["<f4", [], "C", {"$bytes": "AADAfw=="}]}, "NaN"),
    (np.array([{1}, None]), {"$ndarray": ["|O", [2], "C", [{"$set": [1]}, None]]}, [[1], None]),
    (np.zeros((0, 3), "|b1"), {"$ndarray": ["|b1", [0, 3], "C", {"$bytes": ""}]}, []),
    (np.zeros(101, "|b1"), {"$ndarray": ["|b1", [101], "C", {"$bytes": "A" * 135 + "="}]},
     ["|b1", [101], "C", "<101 bytes, sha256 e08dd9962eedb16e>"]),
    (np.float64(0.5), {"$numpy_scalar": ["<f8", {"$bytes": "AAAAAAAA4D8="}]}, 0.5),
    (np.str_("x"), {"$numpy_scalar": ["U", "x"]}, "x"),
    (np.complex128(1), {"$numpy_scalar": ["<c16", {"$bytes": "AAAAAAAA8D8AAAAAAAAAAA=="}]},
     ["<c16", "AAAAAAAA8D8AAAAAAAAAAA=="]),
    (OpaqueValue(Tag.TIMESTAMP, encode([1, "ns", None, 0])), {"$timestamp": [1, "ns", None, 0]},
     "1970-01-01T00:00:00.000000001"),
    (OpaqueValue(Tag.TIMESTAMP, encode([-1, "s", raw(Tag.ZONEINFO, b"Mars/Base"), 0])),
     {"$timestamp": [-1, "s", {"$zoneinfo": "Mars/Base"}, 0]}, "1969-12-31T23:59:59Z[Mars/Base]"),
    (OpaqueValue(Tag.NAT, b""), {"$nat": None}, "NaT"),
    (pd.NA, {"$pandas_na": None}, "NA"),
]  # fmt: skip


def test_each_type_has_its_readable_form(subtests: pytest.Subtests) -> None:
    for value, lossless, plain in LOOKS:
        with case(subtests, value, lossless):
            packed = pack(value)
            tree = check(packed)
            assert json.dumps(tree) == json.dumps(lossless)  # the order too
            assert json.dumps(to_plain(packed)) == json.dumps(plain)


def test_every_tag_and_every_well_known_class_has_a_mark() -> None:
    from holdfast.codec.json_types import MARKS

    assert {tag for tag, _ in MARKS.values()} == set(Tag)
    assert {mark for mark in MARKS if mark[1].isupper()} >= {"$AIMessage", "$Send", "$Interrupt", "$DeltaSnapshot"}
    assert len(MARKS) == len(Tag) + len({shape.ref for shape in KNOWN_CLASSES.values()})


def test_a_model_with_many_fields_keeps_which_were_set() -> None:
    tree = check(pack(Wide(f69=1)))
    assert tree["$pydantic"][2] == {"unset": [f"f{i}" for i in range(69)]}


def test_releases_of_a_known_class_are_distinguished_by_their_fields(subtests: pytest.Subtests) -> None:
    for value, number in [(Send("n", 1), (15, 16)), (Interrupt("v", id="i"), (18, 19))]:
        with case(subtests, value):
            check(pack(value))
            for each in number:
                check(encode((None, each, dict.fromkeys(KNOWN_CLASSES[each].names))))


# The law ------------------------------------------------------------------------------------------------------

_floats = st.floats() | st.integers(0, (1 << 64) - 1).map(lambda bits: to_float(f"{bits:016x}"))
_strings = st.text(st.characters(codec=None), max_size=8) | st.text(max_size=8)
_ints = st.integers() | st.sampled_from([1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1, 1 << 9000])
_zones = st.none() | st.builds(
    dt.timezone, st.timedeltas(min_value=-dt.timedelta(hours=23), max_value=dt.timedelta(hours=23))
) | st.sampled_from([BERLIN, zoneinfo.ZoneInfo("UTC"), dt.timezone(dt.timedelta(0), "\ud800")])  # fmt: skip

_leaves: dict[type, st.SearchStrategy[Any]] = {
    int: _ints,
    str: _strings,
    bytearray: st.binary(max_size=9).map(bytearray),
    complex: st.builds(complex, _floats, _floats),
    range: st.builds(range, _ints, _ints, _ints.filter(bool)),
    decimal.Decimal: st.decimals() | st.sampled_from([decimal.Decimal("sNaN12"), decimal.Decimal("-0E-7")]),
    fractions.Fraction: st.builds(fractions.Fraction, _ints, _ints.filter(bool)),
    uuid.UUID: st.uuids(),
    dt.datetime: st.datetimes(timezones=_zones, allow_imaginary=True).flatmap(
        lambda moment: st.sampled_from([moment.replace(fold=0), moment.replace(fold=1)])
    ),
    dt.date: st.dates(),
    dt.time: st.times(timezones=_zones),
    dt.timedelta: st.timedeltas(),
    dt.timezone: _zones.filter(lambda zone: type(zone) is dt.timezone),
    zoneinfo.ZoneInfo: st.just(BERLIN),
    pathlib.PurePosixPath: st.builds(pathlib.PurePosixPath, _strings),
    pathlib.PureWindowsPath: st.builds(pathlib.PureWindowsPath, _strings),
    pathlib.PosixPath: st.builds(pathlib.Path, _strings),
    pathlib.WindowsPath: st.builds(lambda text: OpaqueValue(Tag.PATH, encode(["windows", text])), st.text(max_size=8)),
    re.Pattern: st.builds(re.compile, _strings.map(re.escape) | st.binary(max_size=5).map(re.escape)),
    **{
        kind: st.ip_addresses(v=int(kind.__name__[3])).map(kind)  # type: ignore[arg-type]
        for kind in (
            ipaddress.IPv4Address,
            ipaddress.IPv4Interface,
            ipaddress.IPv4Network,
            ipaddress.IPv6Address,
            ipaddress.IPv6Interface,
            ipaddress.IPv6Network,
        )
    },
}
_others = (
    st.none()
    | st.booleans()
    | _floats
    | st.binary(max_size=80)
    | st.sampled_from([Color.BLUE, Perm.HUGE, Perm.R | Perm.W, int, dict, Money(3)])
    | st.builds(OpaqueValue, st.sampled_from([0, 26, 47, 99, 127]), st.binary(max_size=9))
)
_scalars = _others | st.one_of(*_leaves.values())
_hashable = st.recursive(
    st.none() | st.booleans() | _ints | _strings | _floats | st.dates() | st.just(Color.RED),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
_keys = st.sampled_from(["$tuple", "$object", "$x", "$", "a", "content"]) | _strings


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    objects = st.dictionaries(_keys, inner, max_size=3)
    dicts = st.dictionaries(_hashable, inner, max_size=3)
    return st.one_of(
        lists,
        objects,
        dicts,
        lists.map(tuple),
        st.sets(_hashable, max_size=4),
        st.frozensets(_hashable, max_size=4),
        st.builds(collections.deque, lists, st.none() | st.integers(0, 9)),
        st.builds(collections.defaultdict, st.sampled_from([None, list, int]), dicts),
        dicts.map(collections.OrderedDict),
        st.builds(collections.Counter, st.dictionaries(_hashable, st.integers(-9, 9), max_size=3)),
        st.builds(State, inner),
        st.builds(Note, inner),
        st.builds(Point, inner, inner),
        st.builds(Model, name=inner) | st.builds(Model, size=inner) | st.builds(lambda: model_open()),
        st.builds(lambda extra: Open(**extra), st.dictionaries(st.sampled_from(["b", "$c"]), inner, max_size=2)),
        st.builds(Failed, inner) | st.builds(lambda args: OSError(*args), st.lists(_strings, max_size=3)),
        _messages(inner),
        st.builds(Send, st.text(max_size=4), inner),
        st.builds(Command, update=inner, resume=inner),
        st.builds(Interrupt, inner, id=st.text(max_size=4)),
        st.builds(_DeltaSnapshot, inner),
    )


def _messages(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[BaseMessage]:
    text = st.text(max_size=8)
    extra = st.dictionaries(st.text(max_size=4), inner, max_size=2)
    call = st.builds(lambda args: {"name": "t", "args": args, "id": "1", "type": "tool_call"}, extra)
    return st.one_of(
        st.builds(HumanMessage, text, additional_kwargs=extra),
        st.builds(SystemMessage, text, more=st.integers()),
        st.builds(AIMessage, text, tool_calls=st.lists(call, max_size=2)),
        st.builds(ToolMessage, text, tool_call_id=text, artifact=inner),
    )


values = st.recursive(_scalars, _containers, max_leaves=12)


def test_the_strategies_cover_every_type() -> None:
    assert set(_leaves) | {tuple, set, frozenset, dict, collections.deque, collections.defaultdict} | {
        collections.OrderedDict,
        collections.Counter,
    } == {find_loaded(kind.type) if isinstance(kind.type, str) else kind.type for kind in STDLIB_TYPES}


@given(values)
def test_packed_bytes_round_trip_exactly(value: Any) -> None:
    check(pack(value))


@given(st.lists(values, max_size=3))
def test_items_packed_on_their_own_come_back_exactly(items: list[Any]) -> None:
    for packed in codec.pack_items(items):
        check(packed)


def test_a_time_zone_off_by_less_than_a_second_comes_back() -> None:
    zone = dt.timezone(dt.timedelta(microseconds=1))
    check(pack([zone, dt.datetime(2024, 5, 1, tzinfo=zone)]))


def _nested(value: Any, layers: int, *wraps: Callable[[Any], Any]) -> Any:
    for _ in range(layers):
        for wrap in wraps:
            value = wrap(value)
    return value


DEEPEST: dict[str, Any] = {
    "lists": _nested(1, msgpack.MAX_DEPTH, lambda inner: [inner]),
    "dicts": _nested(1, msgpack.MAX_DEPTH, lambda inner: {1: inner}),
    "tuples": _nested(1, msgpack.MAX_NESTING, lambda inner: (inner,)),
    "dataclasses": _nested(1, msgpack.MAX_NESTING, State),
    "both": _nested(1, 12, *[lambda inner: {None: inner}] * 12, lambda inner: (inner,)),
    "typed dicts": _nested(1, msgpack.MAX_NESTING - 1, lambda inner: {(1,): inner}),
}


def test_the_deepest_values_round_trip(subtests: pytest.Subtests) -> None:
    for name, value in DEEPEST.items():
        with case(subtests, name):
            check(pack(value))


def test_deep_typed_values_are_left_packed() -> None:
    tree = check(pack(_nested("end", 24, lambda inner: [[[inner]]], lambda inner: (inner,))))
    assert "$ext" in json.dumps(tree)


# Reading what a person wrote ----------------------------------------------------------------------------------


SPELLINGS: list[tuple[Any, ...]] = [
    (1 << 70, 1 << 70),
    ("\ud800", "\ud800"),
    ({"\ud800": 1}, {"\ud800": 1}),
    (float("inf"), float("inf")),
    ({"$int": "5"}, 5),
    ({"$int": "0x10000000000000000"}, 1 << 64),
    ({"$str": "plain"}, "plain"),
    ({"$float": "3ff8000000000000"}, 1.5),
    ({"$dict": [["a", 1]]}, {"a": 1}),
    ({"$dict": {"a": 1}}, {"a": 1}),
    ({"$object": {"a": 1, "b": 2}}, {"a": 1, "b": 2}),
    ({"$set": [3, 1, 2]}, {1, 2, 3}),
    ({"$counter": [["a", 1]]}, collections.Counter("a")),
    ({"$decimal": "1e3"}, decimal.Decimal("1E+3")),
    ({"$uuid": "{00000000000000000000000000000005}"}, uuid.UUID(int=5)),
    ({"$datetime": "2024-05-01T12:00Z"}, dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)),
    ({"$timedelta": [0, 90000, 0]}, dt.timedelta(hours=25)),
    ({"$fraction": [2, 4]}, fractions.Fraction(1, 2)),
    ({"$complex": [1, 2]}, 1 + 2j),
    ({"$regex": ["a", 0]}, re.compile("a")),
    ({"$path": ["pure posix", "a//b/"]}, pathlib.PurePosixPath("a/b")),
    ({"$pydantic": [f"{HERE}:Model", {"name": 1, "size": 2}, {}]}, Model(name=1, size=2)),
]


def test_other_spellings_are_read_canonically(subtests: pytest.Subtests) -> None:
    for tree, value in SPELLINGS:
        with case(subtests, tree):
            assert from_json(tree) == pack(value)


_CLASS = "[class name, fields]"
_PAIRS = "an object, or a list of pairs [key, value] with different keys"
_MODEL = '[class name, fields] or [class name, fields, {"unset": names, "extra": …, "private": …, "strangers": names}]'


WRONG: list[tuple[Any, ...]] = [
    ({"messages": [1, 2, 3, {"$datetime": "x"}]}, "messages[3].$datetime", "$datetime takes ISO text, or"),
    ({"a b": {"$uuid": 5}}, "['a b'].$uuid", "$uuid takes a UUID as text"),
    ((1,), "the value itself", "tuple is not a JSON type"),
    ([1, b""], "[1]", "bytes is not a JSON type"),
    ({"a": {1: 2}}, "a", "the key 1 of an object is not a string"),
    ({"a": {"$nope": 1}}, "a", "$nope is not a marker that this release knows"),
    ({"$object": []}, "$object", "$object takes an object"),
    ({"$float": "1.5"}, "$float", "$float takes"),
    ({"$float": "00"}, "$float", "$float takes"),
    ({"$float": 1.5}, "$float", '$float takes "nan", "inf", "-inf" or 16 hexadecimal digits'),
    ({"$bytes": "?"}, "$bytes", "$bytes takes base64 text"),
    ({"$bytes": None}, "$bytes", "$bytes takes base64 text"),
    ({"$ext": [128, ""]}, "$ext", "$ext takes [a tag from 0 to 127, base64 text]"),
    ({"$ext": [True, ""]}, "$ext", "$ext takes"),
    ({"$ext": 5}, "$ext", "$ext takes"),
    ({"$dict": 5}, "$dict", f"$dict takes {_PAIRS}"),
    ({"$dict": [[1]]}, "$dict", f"$dict takes {_PAIRS}"),
    ({"$dict": [5]}, "$dict", f"$dict takes {_PAIRS}"),
    ({"$dict": [[1, 2], [True, 3]]}, "$dict", f"$dict takes {_PAIRS}"),
    ({"$dict": [[[], 2]]}, "$dict", f"$dict takes {_PAIRS}"),
    ({"$dict": [[{"$dict": [[{"$tuple": []}, 1]]}, 2]]}, "$dict", f"$dict takes {_PAIRS}"),
    ({"$dict": [[{"$tuple": []}, 1], [{"$tuple": []}, 2]]}, "$dict", f"$dict takes {_PAIRS}"),
    ({"$dict": [[{"$date": "x"}, 1]]}, "$dict[0][0].$date", "$date takes ISO text, as 2024-12-31"),
    ({"$dict": [[1, {"$date": 5}]]}, "$dict[0][1].$date", "$date takes ISO text, as 2024-12-31"),
    ({"$counter": 5}, "$counter", f"$counter takes {_PAIRS}"),
    ({"$tuple": {"a": 1}}, "$tuple", "$tuple takes a list"),
    ({"$set": 1}, "$set", "$set takes a list of different values, none of them a list, dict or set"),
    ({"$set": [1, 1]}, "$set", "$set takes"),
    ({"$set": [{"$set": []}]}, "$set", "$set takes"),
    ({"$int": "ten"}, "$int", "$int takes a whole number as text, decimal or 0x…"),
    ({"$int": "1" * 5000}, "$int", "$int takes"),
    ({"$str": "a\\b"}, "$str", r"$str takes text with \\ for a backslash and \ud800 for a lone surrogate"),
    ({"$complex": [1, "2"]}, "$complex", "$complex takes [real, imaginary]"),
    ({"$complex": [1]}, "$complex", "$complex takes [real, imaginary]"),
    ({"$range": [1, 2, 0]}, "$range", "$range takes [start, stop, step]"),
    ({"$decimal": "1,0"}, "$decimal", "$decimal takes a decimal number as text"),
    ({"$fraction": [1, 0]}, "$fraction", "$fraction takes [numerator, denominator]"),
    ({"$datetime": [1]}, "$datetime", "$datetime takes ISO text, or [ISO text without zone, zone, fold]"),
    ({"$time": {}}, "$time", "$time takes ISO text, or [ISO text without zone, zone, fold]"),
    ({"$timezone": "Berlin"}, "$timezone", '$timezone takes an offset as "+01:00", or [offset, name]'),
    ({"$timezone": ""}, "$timezone", "$timezone takes"),
    ({"$timezone": ["+01:00", 5]}, "$timezone", "$timezone takes"),
    ({"$zoneinfo": "../x"}, "$zoneinfo", "$zoneinfo takes the name of a time zone, as Europe/Berlin"),
    ({"$path": ["mac", "x"]}, "$path", "$path takes"),
    ({"$regex": ["(", 0]}, "$regex", "$regex takes [pattern, flags]"),
    ({"$ipaddress": ["IPv5Address", "1"]}, "$ipaddress", "$ipaddress takes [class name, as IPv4Address, and"),
    ({"$ipaddress": ["IPv4Address", 5]}, "$ipaddress", "$ipaddress takes"),
    ({"$deque": [1.5, []]}, "$deque", "$deque takes [length limit or null, items]"),
    ({"$defaultdict": [None, 1]}, "$defaultdict", "$defaultdict takes [factory or null, dict]"),
    ({"$dataclass": ["a:B"]}, "$dataclass", f"$dataclass takes {_CLASS}"),
    ({"$dataclass": ["a:B", {"f": {"$uuid": ""}}]}, "$dataclass[1].f.$uuid", "$uuid takes a UUID as text"),
    ({"$enum": ["a:B", 1]}, "$enum", "$enum takes [class name, member's name]"),
    ({"$reference": 1}, "$reference", "$reference takes the name of a function or class"),
    ({"$nat": 1}, "$nat", "$nat takes null"),
    ({"$pydantic": [1, {}]}, "$pydantic", f"$pydantic takes {_MODEL}"),
    ({"$pydantic": ["a:B", 5]}, "$pydantic", f"$pydantic takes {_MODEL}"),
    ({"$pydantic": ["a:B", {}, []]}, "$pydantic", f"$pydantic takes {_MODEL}"),
    ({"$pydantic": ["a:B", {}, {"more": 1}]}, "$pydantic", f"$pydantic takes {_MODEL}"),
    ({"$pydantic": ["a:B", {}, {"unset": ["c"]}]}, "$pydantic", f"$pydantic takes {_MODEL}"),
    ({"$pydantic": ["a:B", {"c": 1}, {"unset": "c"}]}, "$pydantic", f"$pydantic takes {_MODEL}"),
    ({"$pydantic": ["a:B", {}, {"strangers": 1}]}, "$pydantic", f"$pydantic takes {_MODEL}"),
    (
        {"$HumanMessage": {"content": "hi"}},
        "$HumanMessage",
        "$HumanMessage takes an object with the fields content",
    ),
    ({"$Send": 5}, "$Send", "$Send takes an object with the fields node, arg or node, arg, timeout"),
    ({"$shaped": [1]}, "$shaped", "$shaped takes [number, fields]"),
]


def test_wrong_json_is_refused_with_its_path(subtests: pytest.Subtests) -> None:
    for tree, where, what in WRONG:
        with case(subtests, tree):
            with pytest.raises(InvalidError) as caught:
                from_json(tree)
            assert caught.value.where == where
            assert caught.value.what.startswith(what)


def test_a_long_path_is_cut() -> None:
    with pytest.raises(InvalidError) as caught:
        from_json({"k" * 400: {"$uuid": ""}})
    assert len(caught.value.where) < 300
    assert caught.value.where.endswith(".$uuid")


TOO_DEEP: list[tuple[Any, ...]] = [
    (_nested(1, 49, lambda inner: [inner]), "lists and dicts are nested more than 48 deep"),
    (_nested(1, 49, lambda inner: {"a": inner}), "lists and dicts are nested more than 48 deep"),
    ({"$frozenset": [{"$tuple": [_nested(1, 48, lambda inner: [inner])]}]}, "lists and dicts are nested"),
    (_nested(1, 400, lambda inner: [inner]), "the JSON is nested more than 320 deep"),
    (_nested(1, 25, lambda inner: {"$tuple": [inner]}), "typed values are nested more than 24 deep"),
    (_nested(1 << 70, 24, lambda inner: {"$tuple": [inner]}), "typed values are nested more than 24 deep"),
    (_nested(1, 25, lambda inner: {"$dict": [[{"$tuple": []}, inner]]}), "typed values are nested more than 24"),
    (
        _nested({"$datetime": "2024-05-01T12:00Z"}, 22, lambda inner: {"$tuple": [inner]}),
        "typed values are nested more than 24 deep",
    ),
]


def test_too_deep_json_is_refused(subtests: pytest.Subtests) -> None:
    for tree, what in TOO_DEEP:
        with case(subtests, what, tree):
            with pytest.raises(TooDeepError) as caught:
                from_json(tree)
            assert caught.value.what.startswith(what)
            assert caught.value.where


def test_the_limits_of_depth_are_those_of_packing() -> None:
    assert from_json(_nested(1, 48, lambda inner: [inner])) == pack(_nested(1, 48, lambda inner: [inner]))
    aware = _nested(dt.datetime(2024, 5, 1, tzinfo=dt.UTC), 21, lambda inner: (inner,))
    check(pack(aware))
    with pytest.raises(TooDeepError):
        pack((aware,))


def test_json_that_contains_itself_is_refused() -> None:
    items: list[Any] = []
    items.append({"a": items})
    with pytest.raises(CircularReferenceError) as caught:
        from_json(items)
    assert caught.value.where == "[0].a"
    pairs: list[Any] = [[1, 2]]
    pairs[0][1] = {"$dict": pairs}
    with pytest.raises(CircularReferenceError):
        from_json({"$dict": pairs})
    mark: dict[str, Any] = {}
    mark["$registered"] = ["name", mark]
    with pytest.raises(InvalidError):
        from_json(mark)
    key: list[Any] = [[None, 1]]
    key[0][0] = {"$dict": key}
    with pytest.raises(TooDeepError):
        from_json({"$dict": key})


def test_keys_within_keys_are_read_once() -> None:
    tree: Any = {"$tuple": []}
    for _ in range(15):
        tree = {"$dict": [[{"$tuple": [tree]}, 1]]}
    assert check(from_json(tree)) == tree


_DEEP = pack(_nested(1, 45, lambda inner: {"$a": inner}))
_DEEP_TREE = to_json(_DEEP)


CONVERSIONS: dict[str, Callable[[], Any]] = {
    "to_json": lambda: to_json(_DEEP),
    "to_plain": lambda: to_plain(_DEEP),
    "from_json": lambda: from_json(_DEEP_TREE),
}


def test_a_full_stack_is_a_typed_error(subtests: pytest.Subtests) -> None:
    def below(frames: int, convert: Callable[[], Any]) -> Any:
        return below(frames - 1, convert) if frames else convert()

    for name, convert in CONVERSIONS.items():
        with case(subtests, name):
            refused = 0
            for frames in range(sys.getrecursionlimit() // 2, sys.getrecursionlimit()):
                try:
                    below(frames, convert)
                except TooDeepError:
                    refused += 1
                except RecursionError:
                    break
            assert refused


# Forged bytes -------------------------------------------------------------------------------------------------

_STR = encode("ab")

FORGED: dict[str, bytes] = {
    "tuple, not a list": ext(Tag.TUPLE, 5),
    "tuple, longer number": encode(raw(Tag.TUPLE, b"\x91\xcc\x01")),
    "tuple, cut": encode(raw(Tag.TUPLE, b"\x92\x01")),
    "tuple, too deep": encode(raw(Tag.TUPLE, b"\x91" * 100 + b"\x90")),
    "tuple, datetime of msgpack": encode(raw(Tag.TUPLE, b"\x91\xd6\xff\0\0\0\1")),
    "tuple, negative tag": encode(raw(Tag.TUPLE, b"\x91\xd4\xfe\0")),
    "tuple, list as key": encode(raw(Tag.TUPLE, b"\x91\x81\x91\x01\x01")),
    "set, not a list": ext(Tag.SET, {}),
    "set, unsorted": ext(Tag.SET, [2, 1]),
    "set, twice": ext(Tag.SET, [1, 1]),
    "set of lists": ext(Tag.FROZENSET, [[]]),
    "dict, not a list": ext(Tag.DICT, 5),
    "dict, odd": ext(Tag.DICT, [raw(Tag.TUPLE, b"\x90")]),
    "dict that could be plain": ext(Tag.DICT, ["a", 1]),
    "counter, odd": ext(Tag.COUNTER, [1]),
    "counter, twice": ext(Tag.COUNTER, ["a", 1, "a", 2]),
    "int that could be plain": encode(raw(Tag.INT, b"\x05")),
    "int, longer": encode(raw(Tag.INT, bytes(20))),
    "str that could be plain": encode(raw(Tag.STR, b"ab")),
    "str, not text": encode(raw(Tag.STR, b"\xff")),
    "complex, short": encode(raw(Tag.COMPLEX, b"1")),
    "range, step 0": ext(Tag.RANGE, [1, 2, 0]),
    "decimal, not one": encode(raw(Tag.DECIMAL, b"x")),
    "decimal, other spelling": encode(raw(Tag.DECIMAL, b"1e3")),
    "uuid, short": encode(raw(Tag.UUID, b"x")),
    "datetime, not one": ext(Tag.DATETIME, ["x"]),
    "datetime, offset in text": ext(Tag.DATETIME, ["2024-05-01T00:00:00+01:00"]),
    "timezone, not one": ext(Tag.TIMEZONE, [5]),
    "zoneinfo, a path": encode(raw(Tag.ZONEINFO, b"../../etc")),
    "path, other flavour": ext(Tag.PATH, ["mac", "x"]),
    "regex, unknown flags": ext(Tag.REGEX, ["a", 1 << 20]),
    "regex, not one": ext(Tag.REGEX, ["(", 0]),
    "address, not one": ext(Tag.IPADDRESS, [9, "x"]),
    "deque, not one": ext(Tag.DEQUE, [1]),
    "dataclass, no fields": ext(Tag.DATACLASS, ["a:B", 1]),
    "pydantic, not a list": ext(Tag.PYDANTIC, 1),
    "pydantic, short": ext(Tag.PYDANTIC, ["a:B", {}]),
    "pydantic, bits for no field": ext(Tag.PYDANTIC, ["a:B", {}, 1, None, None]),
    "pydantic, negative bits": ext(Tag.PYDANTIC, ["a:B", {"a": 1}, -1, None, None]),
    "pydantic, bool for bits": ext(Tag.PYDANTIC, ["a:B", {"a": 1}, True, None, None]),
    "pydantic, typed bits": ext(Tag.PYDANTIC, ["a:B", {"a": 1}, raw(Tag.INT, b"\x01"), None, None]),
    "pydantic, names": ext(Tag.PYDANTIC, ["a:B", {1: 1}, 1, None, None]),
    "pydantic, extra": ext(Tag.PYDANTIC, ["a:B", {}, 0, 5, None]),
    "pydantic, strangers": ext(Tag.PYDANTIC, ["a:B", {}, 0, None, None, None]),
    "reference, not a name": ext(Tag.REFERENCE, 5),
    "shaped, not a list": encode([raw(Tag.SHAPED, b"\x05")]),
    "shaped, without mark": encode([raw(Tag.SHAPED, encode([1, 1, {}]))]),
    "nat with a payload": encode(raw(Tag.NAT, b"1")),
    "array, raw": encode(raw(Tag.NDARRAY, b"\xc1")),
}


def test_an_invalid_payload_is_written_as_ext(subtests: pytest.Subtests) -> None:
    for name, packed in FORGED.items():
        with case(subtests, name):
            tree = check(packed)
            assert "$ext" in (tree[0] if type(tree) is list else tree)


ODD: dict[str, tuple[bytes, Any]] = {
    "shape, number of none": (encode([None, 21, {"a": 1}]), {"$shaped": [21, {"a": 1}]}),
    "shape, other fields": (encode([None, 1, {"a": 1}]), {"$shaped": [1, {"a": 1}]}),
    "shape, no fields": (encode([None, 1, 5]), {"$shaped": [1, 5]}),
    "shape, number that is none": (encode([None, True, {}]), {"$shaped": [True, {}]}),
    "datetime in an unknown zone": (
        ext(Tag.DATETIME, ["noon", raw(99, b""), 0]),
        {"$datetime": ["noon", {"$ext": [99, ""]}, 0]},
    ),
    "exception without arguments": (ext(Tag.EXCEPTION, ["a:B", {}]), {"$exception": ["a:B", {}]}),
    "array of a strange shape": (
        ext(Tag.NDARRAY, ["|u1", [-1, -1], "C", b"a"]),
        {"$ndarray": ["|u1", [-1, -1], "C", {"$bytes": "YQ=="}]},
    ),
    "array of many axes": (
        ext(Tag.NDARRAY, ["|u1", [1] * 65, "C", b"a"]),
        {"$ndarray": ["|u1", [1] * 65, "C", {"$bytes": "YQ=="}]},
    ),
    "array, nothing of it": (ext(Tag.NDARRAY, 5), {"$ndarray": 5}),
    "timestamp of no year": (ext(Tag.TIMESTAMP, [1 << 62, "s", None, 0]), {"$timestamp": [1 << 62, "s", None, 0]}),
}


def test_odd_but_sound_payloads_keep_their_mark(subtests: pytest.Subtests) -> None:
    for name, (packed, tree) in ODD.items():
        with case(subtests, name):
            assert check(packed) == tree


BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "cut": _STR[:-1],
    "more": _STR + b"\x01",
    "not text": b"\xa1\xff",
    "no value": b"\xc1\xc1",
    "longer number": b"\xcc\x01",
    "float of 32 bits": b"\xca\0\0\0\0",
    "key twice": b"\x82\x01\x01\x01\x02",
    "list as key": b"\x81\x91\x01\x01",
    "typed key": b"\x81\xd4\x63\0\x01",
    "datetime of msgpack": b"\xd6\xff\0\0\0\1",
    "negative tag": b"\xd4\xfe\0",
    "escaped without need": msgpack.ESCAPE + _STR,
    "shaped with its header": ext(Tag.SHAPED, [None, 1, {}]),
    "many in few bytes": b"\xdd\xff\xff\xff\xff",
}


def test_bytes_that_pack_never_writes_are_corrupt(subtests: pytest.Subtests) -> None:
    for name, packed in BROKEN.items():
        with case(subtests, name):
            with pytest.raises(CorruptError):
                to_json(packed)
            with pytest.raises(CorruptError):
                to_plain(packed)


def test_bytes_that_nest_too_deeply_are_refused() -> None:
    with pytest.raises(TooDeepError):
        to_json(b"\x91" * 100_000 + b"\x90")


def _lossless_or_refused(packed: bytes) -> None:
    try:
        to_json(packed)
    except (CorruptError, TooDeepError):
        return
    check(packed)


@given(st.binary(max_size=64))
def test_any_bytes_round_trip_or_are_refused(packed: bytes) -> None:
    _lossless_or_refused(packed)


@given(st.sampled_from([*FORGED.values(), *map(pack, (row[0] for row in LOOKS))]), st.data())
def test_flipped_bytes_round_trip_or_are_refused(packed: bytes, data: st.DataObject) -> None:
    forged = bytearray(packed)
    for _ in range(data.draw(st.integers(1, 3))):
        forged[data.draw(st.integers(0, len(forged) - 1))] = data.draw(st.integers(0, 255))
    _lossless_or_refused(bytes(forged))


@given(st.integers(0, 127), values)
def test_any_value_under_any_tag_round_trips(tag: int, value: Any) -> None:
    check(encode([raw(tag, msgpack.inner(pack(value)))]))


_MARKS = st.sampled_from(["$object", "$dict", "$float", "$bytes", "$ext", "$HumanMessage", "$Send"]) | st.sampled_from(
    [f"${tag.name.lower()}" for tag in Tag]
)
_trees = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 65) | st.text(max_size=4) | st.just("a:B") | st.just(b""),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(_keys, inner, max_size=3)
        | st.builds(lambda mark, content: {mark: content}, _MARKS, inner)
        | st.builds(lambda mark, *parts: {mark: list(parts)}, _MARKS, inner, inner)
    ),
    max_leaves=10,
)


@given(_trees)
def test_any_tree_is_read_or_refused(tree: Any) -> None:
    try:
        packed = from_json(tree)
    except InvalidError:
        return
    check(packed)
    with contextlib.suppress(HoldfastError):
        codec.unpack(packed)
