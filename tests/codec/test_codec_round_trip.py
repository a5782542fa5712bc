"""Round trips: equal values, of the same types, in the same order."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid
import zoneinfo
from typing import Any

import pytest
from hypothesis import given
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Send

from holdfast.codec import Codec, OpaqueValue
from tests.codec import app
from tests.codec.values import identical, values
from tests.support.cases import case

codec = Codec()


NAN = float("nan")

EXAMPLES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**63,
    -(2**63),
    2**64 - 1,
    2**64,
    -(2**63) - 1,
    10**400,
    1.0,
    -0.0,
    NAN,
    float("inf"),
    "",
    "text",
    "ü\U0001f600\0",
    "\ud800",
    b"",
    b"\0\xff",
    bytearray(b"x"),
    [],
    {},
    (),
    set(),
    frozenset(),
    [1, True, 1.0],
    {"b": 1, "a": 2},
    {"a": 2, "b": 1},
    {1: "int", 1.5: "float", None: "none", b"k": "bytes"},
    {True: 1},
    {(1, 2): "tuple"},
    {app.Word.YES: 1, "yes2": 2},
    {"\ud800": 1},
    {2**70: 1},
    [None, 1, {}],
    [None, 2, {"a": 1}],
    [[None, 1, {}]],
    (1, (2, [3])),
    {1, "a", (2,)},
    frozenset({1, frozenset({2})}),
    1j,
    complex(-0.0, NAN),
    range(5),
    range(1, 1),
    range(9, 0, -2),
    decimal.Decimal("1.00"),
    decimal.Decimal("sNaN"),
    decimal.Decimal("-Infinity"),
    dt.datetime(2026, 11, 15, 1, 2, 3, 4),
    dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.time(1, 2, fold=1),
    dt.time(1, tzinfo=dt.UTC),
    dt.date(1, 1, 1),
    dt.timedelta.max,
    dt.timezone(dt.timedelta(hours=2)),
    dt.timezone(dt.timedelta(0), "Z"),
    dt.UTC,
    pathlib.Path("a/b"),
    pathlib.PureWindowsPath("C:/x"),
    re.compile("(?i)x", re.MULTILINE),
    re.compile(b"y"),
    collections.deque([1, 2], maxlen=2),
    collections.defaultdict(list, {"a": [1]}),
    collections.defaultdict(None, {1: 2}),
    collections.OrderedDict(b=1, a=2),
    collections.Counter("hello"),
    int,
    dict,
    app.Plan("g", [1, (2,)]),
    app.Point(1.0),
    app.Slotted(1, [2]),
    app.FrozenSlots(a={1}),
    app.Child("g", [], {"x": ()}),
    app.SlotsOverDict("g", [], 1),
    app.Counted(3),
    app.Outer.Inner(5),
    app.Defined(1, [2]),
    app.Frozen((1,)),
    app.Checked(1),
    app.Model(name="n", parent=app.Model(name="p")),
    app.Extra.model_validate({"a": 2, "b": [1]}),
    app.FrozenModel(),
    app.Root([1]),
    app.IntBox(value=1),
    app.Pair(1),
    app.Old(1, 2),
    app.Colour.GREEN,
    app.Level.LOW,
    app.Word.YES,
    app.Access.READ | app.Access.RUN,
    app.IntAccess.READ | app.IntAccess.WRITE,
    app.Settings(model="m", retries=2),
    HumanMessage("hi", id="1"),
    AIMessage("a", tool_calls=[{"name": "f", "args": {"x": (1,)}, "id": "c"}]),
    AIMessage([{"type": "text", "text": "t"}]),
    AIMessageChunk(content="c"),
    SystemMessage("s"),
    RemoveMessage(id="1"),
    ToolMessage("t", tool_call_id="c", artifact={"set": {1}}),
    FunctionMessage(content="f", name="n"),
    ChatMessage(content="c", role="r"),
    HumanMessage("extra", surprise=1),
    Document("d", metadata={"page": 1}, id="x"),
    Send("node", {"a": 1}),
    Command(goto=[Send("a", 1)], update={"x": (1,)}),
    Interrupt("why", id="i"),
    _DeltaSnapshot([HumanMessage("x")]),
    [HumanMessage("in a list")],
    {"m": HumanMessage("in a dict")},
    (HumanMessage("in a tuple"),),
]


if app.HAS_V1:
    EXAMPLES += [app.OldModel(a=2), app.OldExtra(x=1)]


def test_example(subtests: pytest.Subtests) -> None:
    for value in EXAMPLES:
        with case(subtests, value):
            packed = codec.pack(value)
            back = codec.unpack(packed)
            assert identical(value, back), back
            assert codec.pack(back) == packed
            assert codec.pack_items([value, value]) == [packed, packed]
            assert identical(codec.unpack_items([packed]), [value])


@given(values)
def test_any_value(value: Any) -> None:
    packed = codec.pack(value)
    back = codec.unpack(packed)
    assert identical(value, back)
    assert codec.pack(back) == packed
    assert codec.pack_items([value, 1, value]) == [packed, b"\x01", packed]
    assert identical(codec.unpack(codec.pack([value])), [value])


def test_private_attributes_and_set_fields_of_models() -> None:
    model = app.Private(a=5)
    model._secret = (1, 2)
    assert model.double == 10  # a cached property is no field and is not kept
    back = codec.unpack(codec.pack(model))
    assert back._secret == (1, 2)
    assert "double" not in back.__dict__
    assert back.model_dump(exclude_unset=True) == {"a": 5}
    constructed = app.Model.model_construct(_fields_set={"name", "unknown"}, name="n", tags=[])
    assert codec.unpack(codec.pack(constructed)).__pydantic_fields_set__ == {"name", "unknown"}


@pytest.mark.skipif(not app.HAS_V1, reason="pydantic.v1 does not work on this Python")
def test_old_models_keep_private_attributes() -> None:
    model = app.OldModel(a=2)
    model._secret = 9
    back = codec.unpack(codec.pack(model))
    assert (back, back._secret, back.__fields_set__) == (model, 9, {"a"})


def test_cached_property_of_a_dataclass_is_left_out() -> None:
    counted = app.Counted(4)
    assert counted.double == 8
    assert "double" not in vars(codec.unpack(codec.pack(counted)))


EXCEPTIONS: list[Any] = [
    ValueError("a", 1),
    KeyError("k"),
    OSError(2, "no such file", "name"),
    OSError("odd"),
    FileNotFoundError(2, "x"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ImportError("no", name="mod", path="p"),
    StopIteration(3),
    ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
    app.AgentError("failed", code=3),
    KeyboardInterrupt(),
]


def test_exceptions(subtests: pytest.Subtests) -> None:
    for error in EXCEPTIONS:
        with case(subtests, error):
            error.add_note("a note")
            back = codec.unpack(codec.pack(error))
            assert type(back) is type(error)
            assert str(back) == str(error)
            assert repr(back.args) == repr(error.args)
            assert vars(back) == vars(error)
            for name in ("errno", "filename", "name", "path", "value", "start", "code"):
                assert getattr(back, name, None) == getattr(error, name, None)


def test_causes_of_exceptions() -> None:
    error = ValueError("outer")
    error.__cause__ = KeyError("cause")
    error.__context__ = TypeError("context")
    back = codec.unpack(codec.pack(error))
    assert repr(back.__cause__) == "KeyError('cause')"
    assert repr(back.__context__) == "TypeError('context')"
    assert back.__suppress_context__


def test_fresh_objects_every_time() -> None:
    packed = codec.pack({"m": [HumanMessage("x", additional_kwargs={"a": [1]})]})
    one, other = codec.unpack(packed), codec.unpack(packed)
    one["m"][0].additional_kwargs["a"].append(2)
    assert other["m"][0].additional_kwargs["a"] == [1]


TEXTS = [f"text {i}" for i in range(50)]
HASHED: list[Any] = [
    *(set(TEXTS), frozenset(TEXTS), {*TEXTS, 1, None, 2.5, b"x"}, {text: {text} for text in TEXTS}),
    *({(text, 1) for text in TEXTS}, AIMessage("x", additional_kwargs={"s": {*TEXTS}}), app.Plan("g", [{*TEXTS}])),
    *(app.Extra.model_validate({"a": 1, "c": 2, "b": 3}), app.Model.model_construct({*TEXTS}, name="n", tags=[])),
    *(app.Access.READ | app.Access.RUN, {frozenset(TEXTS[:i]) for i in range(9)}),
    *({uuid.UUID(int=i) for i in range(20)}, ValueError({*TEXTS})),
]
"""Values whose parts are in another order in every process."""

_PRINT = """
import json
from tests.codec.test_codec_round_trip import EXAMPLES, HASHED, codec
print(json.dumps([data.hex() for data in map(codec.pack, EXAMPLES + HASHED)]))
print(json.dumps([data.hex() for data in codec.pack_items(EXAMPLES + HASHED)]))
"""


@pytest.mark.nightly
def test_the_same_bytes_in_every_process(subtests: pytest.Subtests) -> None:
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", _PRINT], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
    )
    alone, together = map(json.loads, done.stdout.splitlines())
    for value, one, other in zip(EXAMPLES + HASHED, alone, together, strict=True):
        with case(subtests, value):
            assert codec.pack(value).hex() == one == other


_WITHOUT_THE_APPLICATION = """
import sys
from holdfast.codec import Codec, OpaqueValue
codec = Codec()
packed = sys.stdin.buffer.read()
value = codec.unpack(packed)
assert isinstance(value["plan"], OpaqueValue) and value["plan"].type_name == "tests.codec.app:Plan", value
assert value["message"].type_name.endswith(":HumanMessage")
assert not {"tests", "pydantic", "langchain_core", "attr"} & {name.partition(".")[0] for name in sys.modules}
value["more"] = 1
sys.stdout.buffer.write(codec.pack(value))
"""


def test_a_process_without_the_application_loses_nothing() -> None:
    value = {
        "plan": app.Plan("g", [app.Model(name="n")]),
        "message": HumanMessage("m", id="1"),
        "colours": {app.Colour.RED},
        "attrs": app.Defined(1),
        "error": app.AgentError("e", code=2),
        "pair": app.Pair(1, 2),
    }
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_THE_APPLICATION], input=codec.pack(value), check=True, capture_output=True
    )
    back = codec.unpack(done.stdout)
    assert back.pop("more") == 1
    assert identical(back, value)


def test_inert_values_are_values() -> None:
    inert = codec.unpack(b"\xd5\x7fab")
    assert isinstance(inert, OpaqueValue)
    assert repr(inert) == "<OpaqueValue unknown type 127, 2 bytes>"
    assert inert == OpaqueValue(127, b"ab")
    assert inert != OpaqueValue(127, b"ac")
    assert len({inert, OpaqueValue(127, b"ab")}) == 1
    assert codec.pack({inert: [inert]}) == codec.pack(codec.unpack(codec.pack({inert: [inert]})))
    with pytest.raises(AttributeError):
        inert.tag = 1
