"""Classes of an application."""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import pydantic


@dataclasses.dataclass
class Plan:
    goal: str
    steps: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0


@dataclasses.dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSlots:
    a: Any


@dataclasses.dataclass
class Child(Plan):
    extra: Any = None


@dataclasses.dataclass(slots=True)
class SlotsOverDict(Plan):
    more: Any = None


@dataclasses.dataclass
class Counted:
    n: int
    seen: int = dataclasses.field(init=False, default=7)

    @cached_property
    def double(self) -> int:
        return 2 * self.n


class Outer:
    @dataclasses.dataclass
    class Inner:
        value: Any


@attrs.define
class Defined:
    a: Any
    b: list[Any] = attrs.Factory(list)


@attrs.frozen
class Frozen:
    a: Any


@attrs.define(slots=False)
class Checked:
    a: int = attrs.field(validator=attrs.validators.instance_of(int))
    b: str = "b"


class Model(pydantic.BaseModel):
    name: str
    tags: list[str] = []
    parent: Model | None = None


class Extra(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = 1


class Private(pydantic.BaseModel):
    a: int = 1
    _secret: Any = pydantic.PrivateAttr(default=None)

    @cached_property
    def double(self) -> int:
        return 2 * self.a


class FrozenModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    a: Any = None


class Root(pydantic.RootModel[list[int]]):
    pass


# Pydantic's first version does not work on newer Pythons.
HAS_V1 = sys.version_info < (3, 14)
if HAS_V1:
    from pydantic import v1

    class OldModel(v1.BaseModel):
        a: int = 1
        b: list[int] = []
        _secret: int = v1.PrivateAttr(default=3)

    class OldExtra(v1.BaseModel):
        class Config:
            extra = "allow"


T = TypeVar("T")


class Box(pydantic.BaseModel, Generic[T]):
    value: T


IntBox = Box[int]


class Pair(NamedTuple):
    left: Any
    right: Any = None


Old = collections.namedtuple("Old", "a b")


class Colour(enum.Enum):
    RED = 1
    GREEN = (1, 2)
    ALSO_RED = 1  # noqa: PIE796 - an alias


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class IntAccess(enum.IntFlag):
    READ = 1
    WRITE = 2


class Settings(TypedDict):
    model: str
    retries: int


class AgentError(Exception):
    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class Client:
    """Something that cannot be saved."""


class Temperature:
    """Saved only because it is registered."""

    def __init__(self, kelvin: float) -> None:
        self.kelvin = kelvin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Temperature) and self.kelvin == other.kelvin

    def __hash__(self) -> int:
        return hash(self.kelvin)


def search(query: str) -> str:
    """A tool."""
    return query
