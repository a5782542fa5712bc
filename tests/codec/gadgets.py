"""Classes that an attacker would name in forged bytes. Whatever code of theirs runs is recorded in `RAN`."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import attrs
import pydantic
import pydantic.v1
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, StructuredTool

RAN: list[str] = []


def trip(name: str, result: Any = None) -> Callable[..., Any]:
    """A method that records that it ran."""

    def method(*_: Any, **__: Any) -> Any:
        RAN.append(name)
        return result

    return method


class Tripwire:
    """A descriptor that records every access."""

    def __get__(self, obj: object, owner: object = None) -> Any:
        RAN.append("descriptor get")
        return 0

    def __set__(self, obj: object, value: object) -> None:
        RAN.append("descriptor set")


# Classes through which merely existing can act: never revived -------------------------------------------------


@dataclasses.dataclass
class Calls:
    x: int = 0
    __call__ = trip("__call__")


@dataclasses.dataclass
class Deletes:
    x: int = 0
    __del__ = trip("__del__")


@dataclasses.dataclass
class GetsMissing:
    x: int = 0
    __getattr__ = trip("__getattr__")


@dataclasses.dataclass
class GetsAll:
    x: int = 0

    def __getattribute__(self, name: str) -> Any:
        RAN.append("__getattribute__")
        return object.__getattribute__(self, name)


@dataclasses.dataclass
class Sets:
    x: int = 0
    __setattr__ = trip("__setattr__")


@dataclasses.dataclass
class InheritsCall(Calls):
    y: int = 0


@dataclasses.dataclass
class FieldIsDescriptor:
    x: int = Tripwire()  # type: ignore[assignment]


@dataclasses.dataclass
class FieldIsProperty:
    x: int

    @property  # type: ignore[no-redef]
    def x(self) -> int:
        RAN.append("property get")
        return 0

    @x.setter
    def x(self, value: int) -> None:
        RAN.append("property set")


class CallableModel(pydantic.BaseModel):
    x: int = 0

    def __call__(self) -> None:
        RAN.append("__call__")


class CallableTuple(NamedTuple):
    x: int

    def __call__(self) -> None:
        RAN.append("__call__")


class CallableEnum(enum.Enum):
    A = 1

    def __call__(self) -> None:
        RAN.append("__call__")


class DeletedError(Exception):
    def __del__(self) -> None:
        RAN.append("__del__")


@attrs.define
class CallableAttrs:
    x: int = 0

    def __call__(self) -> None:
        RAN.append("__call__")


class Plain:
    x = 0

    def __init__(self) -> None:
        RAN.append("__init__")

    def __new__(cls) -> Plain:
        RAN.append("__new__")
        return object.__new__(cls)

    def __setstate__(self, state: object) -> None:
        RAN.append("__setstate__")

    def __reduce__(self) -> Any:
        RAN.append("__reduce__")
        return (Plain, ())


class AList(list[int]):
    x = 0

    def __init__(self) -> None:
        RAN.append("__init__")
        super().__init__()


class Meta(type):
    """A metaclass that watches everything done to its classes."""

    def __getattribute__(cls, name: str) -> Any:
        RAN.append(f"metaclass __getattribute__ {name}")
        return super().__getattribute__(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        RAN.append("metaclass __call__")
        return super().__call__(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        RAN.append("metaclass __instancecheck__")
        return True

    def __subclasscheck__(cls, other: type) -> bool:
        RAN.append("metaclass __subclasscheck__")
        return True

    def __hash__(cls) -> int:
        RAN.append("metaclass __hash__")
        return 1

    def __eq__(cls, other: object) -> bool:
        RAN.append("metaclass __eq__")
        return cls is other


class Watched(metaclass=Meta):
    x = 0


@dataclasses.dataclass
class WatchedData(metaclass=Meta):
    x: int = 0


class WatchedError(Exception, metaclass=Meta):
    pass


class WatchedCall(metaclass=Meta):
    __dataclass_fields__: ClassVar[dict[str, Any]] = {}
    __call__ = trip("__call__")


class MetaProperties(type):
    """A metaclass whose properties hide what every class has."""

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        RAN.append("metaclass __module__")
        return __name__

    @property
    def __mro__(cls) -> tuple[type, ...]:
        RAN.append("metaclass __mro__")
        return type.__dict__["__mro__"].__get__(cls)  # type: ignore[no-any-return]


class Hidden(metaclass=MetaProperties):
    x = 0


class NameThatActs:
    """Stands where a class keeps its module's name."""

    def __format__(self, spec: str) -> str:
        RAN.append("__format__")
        return __name__

    def __str__(self) -> str:
        RAN.append("__str__")
        return __name__

    def __eq__(self, other: object) -> bool:
        RAN.append("__eq__")
        return True

    def __hash__(self) -> int:
        RAN.append("__hash__")
        return 1


@dataclasses.dataclass
class OddModule:
    x: int = 0


OddModule.__module__ = NameThatActs()  # type: ignore[assignment]


class BuiltinLiar:
    """Claims to be Python's own, so that its methods pass for harmless."""

    __module__ = "builtins"
    __del__ = trip("__del__")
    __call__ = trip("__call__")


@dataclasses.dataclass
class TrustsALiar(BuiltinLiar):
    x: int = 0


class LyingError(Exception):
    def __new__(cls, *args: object) -> LyingError:
        RAN.append("__new__")
        return super().__new__(cls)

    def __init__(self, *args: object) -> None:
        RAN.append("__init__")


LyingError.__module__ = "builtins"


class TrustsALyingError(LyingError):
    pass


@dataclasses.dataclass
class Renamed:
    x: int = 0


Renamed.__qualname__ = "Quiet"
Alias = dataclasses.make_dataclass("Original", [("x", int, 0)])


def make_local() -> type:
    @dataclasses.dataclass
    class Local:
        x: int = 0

    return Local


class Search(BaseTool):
    name: str = "search"
    description: str = "searches"

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        RAN.append("tool")


class Handler(BaseCallbackHandler):
    x = 0


@dataclasses.dataclass
class DataHandler(BaseCallbackHandler):
    x: int = 0


NEVER: tuple[type, ...] = (
    *(Calls, Deletes, GetsMissing, GetsAll, Sets, InheritsCall, FieldIsDescriptor, FieldIsProperty, CallableModel),
    *(CallableTuple, CallableEnum, DeletedError, CallableAttrs, Plain, AList, Search, Handler, DataHandler),
    *(StructuredTool, RunnableLambda, BaseTool, TrustsALiar),
)
# Named as text: asking some of these classes for their names is what must not happen.
NEVER_NAMES: tuple[str, ...] = (
    *(f"{cls.__module__}:{cls.__qualname__}" for cls in NEVER),
    *(f"{__name__}:{name}" for name in ("Watched", "WatchedCall", "Hidden", "OddModule", "Renamed", "Alias", "RAN")),
    *(f"{__name__}:{name}" for name in ("Quiet.Renamed", "Original", "trip", "", ".", ":")),
    f"{__name__}:make_local.<locals>.Local",
    *("builtins:eval", "builtins:object", "builtins:type", "os:system", "os:_wrap_close", "subprocess:Popen"),
    *("builtins:BuiltinLiar", "importlib:import_module", "antigravity:fly", "this:s", "sys:modules"),
    *("no colon", ":", ""),
)


# Data classes whose hooks must stay silent: revived by setting fields, or kept inert --------------------------


@dataclasses.dataclass
class PostInit:
    x: int = 0

    def __new__(cls, *_: Any, **__: Any) -> PostInit:
        RAN.append("__new__")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        RAN.append("__post_init__")

    def __init_subclass__(cls) -> None:
        RAN.append("__init_subclass__")

    def __setstate__(self, state: object) -> None:
        RAN.append("__setstate__")

    def __reduce_ex__(self, protocol: Any) -> Any:
        RAN.append("__reduce_ex__")
        return (PostInit, ())

    def __copy__(self) -> Any:
        RAN.append("__copy__")

    def __deepcopy__(self, memo: object) -> Any:
        RAN.append("__deepcopy__")


@dataclasses.dataclass
class WithInitVar:
    x: int = 0
    given: dataclasses.InitVar[int] = 0

    def __post_init__(self, given: int) -> None:
        RAN.append("__post_init__")


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int = 0

    def __post_init__(self) -> None:
        RAN.append("__post_init__")


@dataclasses.dataclass(slots=True)
class Slotted:
    x: int = 0

    def __post_init__(self) -> None:
        RAN.append("__post_init__")


@dataclasses.dataclass
class MadeByFactory:
    x: int = dataclasses.field(default_factory=trip("default_factory", 0))


class FactoryThatHashes:
    def __call__(self) -> int:
        RAN.append("default_factory")
        return 0

    def __hash__(self) -> int:
        RAN.append("factory's __hash__")
        return 1

    def __eq__(self, other: object) -> bool:
        RAN.append("factory's __eq__")
        return True


@dataclasses.dataclass
class MadeByHashingFactory:
    x: int = dataclasses.field(default_factory=FactoryThatHashes())


class Copied:
    def __deepcopy__(self, memo: object) -> Any:
        RAN.append("__deepcopy__")
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        RAN.append("__reduce_ex__")
        return (Copied, ())

    @property
    def factory(self) -> None:
        RAN.append("default's property")


class Model(pydantic.BaseModel):
    x: int = 0

    @pydantic.field_validator("x")
    @classmethod
    def check_field(cls, value: int) -> int:
        RAN.append("field_validator")
        return value

    @pydantic.model_validator(mode="after")
    def check_model(self) -> Model:
        RAN.append("model_validator")
        return self

    def model_post_init(self, context: Any) -> None:
        RAN.append("model_post_init")

    def __init__(self, **data: Any) -> None:
        RAN.append("__init__")
        super().__init__(**data)


class ModelWithFactory(pydantic.BaseModel):
    x: int = pydantic.Field(default_factory=trip("default_factory", 0))
    _private: int = pydantic.PrivateAttr(default_factory=trip("private default_factory", 0))


class ModelWithDefault(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    y: int = 0
    x: list[Copied] = [Copied()]


class OpenModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    x: int = 0


T = TypeVar("T")


class Box(pydantic.BaseModel, Generic[T]):
    x: T

    @pydantic.field_validator("x")
    @classmethod
    def check_field(cls, value: T) -> T:
        RAN.append("field_validator")
        return value


IntBox = Box[int]


class OldModel(pydantic.v1.BaseModel):
    x: int = 0

    @pydantic.v1.validator("x", allow_reuse=True)
    def check_field(cls, value: int) -> int:
        RAN.append("validator")
        return value


def converter(value: Any) -> Any:
    RAN.append("converter")
    return value


@attrs.define
class Converted:
    x: int = attrs.field(default=0, converter=converter, validator=trip("validator"))

    def __attrs_post_init__(self) -> None:
        RAN.append("__attrs_post_init__")


@attrs.define
class AttrsDefault:
    x: Any = attrs.field(default=Copied())


class Pair(NamedTuple):
    x: int
    y: int = 0


class PairWithNew(Pair):
    __slots__ = ()

    def __new__(cls, *_: Any) -> Any:
        RAN.append("__new__")
        return tuple.__new__(cls, (1, 2))


class Color(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        RAN.append("_missing_")
        return cls.A


class Bits(enum.Flag):
    A = 1
    B = 2

    @classmethod
    def _missing_(cls, value: object) -> Any:
        RAN.append("_missing_")
        return cls.A


class Mixin(int):
    def __new__(cls, *args: Any) -> Any:
        RAN.append("__new__")
        return int.__new__(cls, *args)


class MixedBits(Mixin, enum.Flag):  # type: ignore[misc]
    A = 1
    B = 2


class PlainBits(enum.Flag):
    A = 1
    B = 2


class InitError(Exception):
    def __init__(self, *_: object) -> None:
        RAN.append("__init__")

    def __new__(cls, *_: object) -> InitError:
        RAN.append("__new__")
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        RAN.append("__setstate__")


class NamedImportError(ImportError):
    @property
    def name(self) -> str:
        RAN.append("property get")
        return ""

    @name.setter
    def name(self, value: str) -> None:
        RAN.append("property set")

    @property
    def __cause__(self) -> Any:
        RAN.append("property get")
        return None

    @__cause__.setter
    def __cause__(self, value: Any) -> None:
        RAN.append("property set")


@dataclasses.dataclass
class Quiet:
    x: int = 0

    @dataclasses.dataclass
    class Nested:
        x: int = 0

        def __post_init__(self) -> None:
            RAN.append("__post_init__")


QUIET: tuple[type, ...] = (
    *(PostInit, WithInitVar, Frozen, Slotted, MadeByFactory, MadeByHashingFactory, Model, ModelWithFactory),
    *(ModelWithDefault, OpenModel, Box, IntBox, OldModel, Converted, AttrsDefault, Pair, PairWithNew, Color, Bits),
    *(MixedBits, PlainBits, InitError, NamedImportError, Quiet, Quiet.Nested, TrustsALyingError),
)
QUIET_NAMES: tuple[str, ...] = (
    *(f"{cls.__module__}:{cls.__qualname__}" for cls in QUIET),
    *(f"{__name__}:{name}" for name in ("WatchedData", "WatchedError")),
)


@dataclasses.dataclass
class Operand:
    """Plain data by the rule, with methods that run as soon as somebody takes it for what it is not."""

    x: Any = None

    def __iter__(self) -> Iterator[Any]:
        RAN.append("__iter__")
        return iter(())

    keys = trip("keys", [])
    items = trip("items", [])
    __getitem__ = trip("__getitem__")
    __len__ = trip("__len__", 0)
    __bool__ = trip("__bool__", True)
    __index__ = trip("__index__", 0)
    __int__ = trip("__int__", 0)
    __float__ = trip("__float__", 0.0)
    __add__ = trip("__add__", 0)
    __and__ = trip("__and__", 0)
    __rand__ = trip("__rand__", 0)
    __rshift__ = trip("__rshift__", 0)
    __lt__ = trip("__lt__", False)
    __contains__ = trip("__contains__", False)
    __fspath__ = trip("__fspath__", "")
    __str__ = trip("__str__", "")
    __repr__ = trip("__repr__", "")
    __format__ = trip("__format__", "")
    __enter__ = trip("__enter__")
    __instancecheck__ = trip("__instancecheck__")
    utcoffset = trip("utcoffset")

    def __hash__(self) -> int:
        RAN.append("__hash__")
        return 1

    def __eq__(self, other: object) -> bool:
        RAN.append("__eq__")
        return self is other


@dataclasses.dataclass
class Impostor:
    """Claims another class when asked."""

    x: Any = None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        RAN.append("__class__")
        return int


@dataclasses.dataclass(frozen=True)
class BadKey:
    x: Any = None

    def __hash__(self) -> int:
        raise ZeroDivisionError


# Modules that act ---------------------------------------------------------------------------------------------


class WatchedModule(ModuleType):
    """A module that acts when it is looked into."""

    def __getattribute__(self, name: str) -> Any:
        RAN.append(f"module __getattribute__ {name}")
        return super().__getattribute__(name)


class PropertyModule(ModuleType):
    """A module that acts when asked for its namespace."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        RAN.append("module __dict__")
        return {}


class NotAModule:
    """Stands in `sys.modules`, as some lazy loaders and test doubles do."""

    def __getattr__(self, name: str) -> Any:
        RAN.append("__getattr__")
        return Quiet

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        RAN.append("__dict__")
        return {"Quiet": Quiet}


def pep_562_module(name: str) -> ModuleType:
    """A module with a `__getattr__`, as packages with lazy imports have."""
    module = ModuleType(name)

    def load(attribute: str) -> Any:
        RAN.append("module __getattr__")
        sys.modules.setdefault("a_module_that_was_imported", ModuleType("a_module_that_was_imported"))
        return Quiet

    module.__getattr__ = load  # type: ignore[method-assign]
    return module


RAN.clear()
