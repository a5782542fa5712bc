"""Classes change between releases of an application; stored values do not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from holdfast import errors
from holdfast.codec import Codec, OpaqueValue
from holdfast.errors import UnsupportedError
from tests.codec.app import HAS_V1
from tests.support.cases import case

codec = Codec()

HEAD = """
import dataclasses, enum
from typing import Any, NamedTuple
import attrs
import pydantic
"""

BEFORE = """
@dataclasses.dataclass
class Data:
    a: int

@dataclasses.dataclass
class Shrinking:
    a: int
    b: int = 2

@attrs.define
class Attrs:
    a: int

class Model(pydantic.BaseModel):
    a: int

class Pair(NamedTuple):
    a: int

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

class Flags(enum.Flag, boundary=enum.STRICT):
    A = 1
    B = 2

class Failure(Exception):
    pass

class Becoming(NamedTuple):
    a: int
"""

AFTER = """
calls = []

def factory():
    calls.append("factory")
    return {}

@dataclasses.dataclass
class Data:
    a: int
    b: int = 5
    c: list = dataclasses.field(default_factory=list)

@dataclasses.dataclass
class Shrinking:
    a: int

@attrs.define
class Attrs:
    a: int
    b: list = attrs.Factory(list)
    c: int = 3

class Model(pydantic.BaseModel):
    a: int
    b: dict = pydantic.Field(default_factory=dict)
    c: list[int] = [1]
    d: Any = None

class Pair(NamedTuple):
    a: int
    b: int = 1

class Colour(enum.Enum):
    RED = 1

class Flags(enum.Flag, boundary=enum.STRICT):
    A = 1

class Failure(OSError):
    pass

@dataclasses.dataclass
class Becoming:
    a: int
"""

REQUIRED = """
calls = []

def factory():
    calls.append("factory")
    return {}

@dataclasses.dataclass
class Data:
    a: int
    b: dict = dataclasses.field(default_factory=factory)

class Model(pydantic.BaseModel):
    a: int
    b: int

@attrs.define
class Attrs:
    a: int
    b: Any = attrs.Factory(factory)
"""


def load(source: str) -> ModuleType:
    module = ModuleType("evolving")
    sys.modules["evolving"] = module
    exec(HEAD + source, module.__dict__)
    return module


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    sys.modules.pop("evolving", None)


def stored() -> dict[str, Any]:
    """Values of the classes as they were, packed."""
    old: Any = load(BEFORE)
    values = {
        "data": old.Data(1),
        "shrinking": old.Shrinking(1),
        "attrs": old.Attrs(1),
        "model": old.Model(a=1),
        "pair": old.Pair(1),
        "red": old.Colour.RED,
        "blue": old.Colour.BLUE,
        "flags": old.Flags.A | old.Flags.B,
        "failure": old.Failure("x"),
        "becoming": old.Becoming(1),
    }
    return {name: codec.pack(value) for name, value in values.items()}


def test_new_fields_take_their_defaults() -> None:
    packed = stored()
    new: Any = load(AFTER)
    assert codec.unpack(packed["data"]) == new.Data(1, 5, [])
    assert codec.unpack(packed["attrs"]) == new.Attrs(1, [], 3)
    model = codec.unpack(packed["model"])
    assert model == new.Model(a=1)
    assert model.__pydantic_fields_set__ == {"a"}
    model.c.append(2)
    assert codec.unpack(packed["model"]).c == [1]
    assert codec.unpack(packed["red"]) is new.Colour.RED


def test_values_of_changed_classes_are_opaque(subtests: pytest.Subtests) -> None:
    packed = stored()
    load(AFTER)
    for name in ["shrinking", "pair", "blue", "flags", "becoming"]:
        with case(subtests, name):
            value = codec.unpack(packed[name])
            assert isinstance(value, OpaqueValue)
            assert value.type_name.startswith("evolving:")
            assert codec.pack(value) == packed[name]


def test_new_fields_without_a_plain_default_make_values_opaque(subtests: pytest.Subtests) -> None:
    packed = stored()
    new: Any = load(REQUIRED)
    for name in ["data", "model", "attrs"]:
        with case(subtests, name):
            assert isinstance(codec.unpack(packed[name]), OpaqueValue)
            assert new.calls == []


@pytest.mark.skipif(not HAS_V1, reason="pydantic.v1 does not work on this Python")
def test_models_of_the_first_pydantic() -> None:
    head = "from pydantic import v1\nclass Old(v1.BaseModel):\n    a: int\n"
    old: Any = load(head)
    packed = codec.pack(old.Old(a=1))
    new: Any = load(head + "    b: int = 4\n    c: list = v1.Field(default_factory=list)\n")
    assert codec.unpack(packed) == new.Old(a=1, b=4, c=[])
    load(head + "    b: int\n")
    assert isinstance(codec.unpack(packed), OpaqueValue)
    private: Any = load(head + "    _p: int = v1.PrivateAttr(1)\n")
    packed = codec.pack(private.Old(a=1))
    load(head)
    assert isinstance(codec.unpack(packed), OpaqueValue)


def test_an_exception_of_another_family_comes_back_as_it_can() -> None:
    packed = stored()
    new: Any = load(AFTER)
    back = codec.unpack(packed["failure"])
    assert type(back) is new.Failure
    assert back.args == ("x",)


def test_a_reloaded_module_is_noticed() -> None:
    packed = stored()
    first: Any = load(BEFORE)
    assert type(codec.unpack(packed["data"])) is first.Data
    second: Any = load(BEFORE)
    assert type(codec.unpack(packed["data"])) is second.Data
    del second.Data
    assert isinstance(codec.unpack(packed["data"]), OpaqueValue)
    sys.modules.pop("evolving")
    assert isinstance(codec.unpack(packed["data"]), OpaqueValue)


def test_errors_of_the_library_are_stored_by_their_code(subtests: pytest.Subtests) -> None:
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, errors.HoldfastError):
            with case(subtests, each.__name__):
                packed = codec.pack(each("x", where="here", hint="do"))
                assert f"holdfast:{each.code}".encode() in packed
                assert each.__name__.encode() not in packed
                back = codec.unpack(packed)
                assert type(back) is each
                assert (back.what, back.where, back.hint, back.code) == ("x", "here", "do", each.code)


def test_a_class_that_claims_to_be_an_error_of_the_library_is_refused() -> None:
    fake = type("Fake", (Exception,), {"__module__": "holdfast.errors", "code": "not-found"})
    with pytest.raises(UnsupportedError, match="cannot be found by its name"):
        codec.pack(fake("x"))
