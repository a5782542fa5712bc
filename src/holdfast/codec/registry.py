"""What a user adds to the codec: types with their own form, and things that may be named."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple, TypeVar

from holdfast.codec import class_lookup
from holdfast.codec.known_classes import KNOWN_CLASSES
from holdfast.codec.stdlib_types import KINDS
from holdfast.errors import InvalidError, UnsupportedError

T = TypeVar("T")

_OWN_TYPES = frozenset(
    {kind.type for kind in KINDS} | {str, int, float, bool, bytes, list, dict, tuple, type(None), type, object}
)
# Types are values too: `defaultdict(list)` holds one. These do nothing but make an empty or converted value.
_NAMEABLE_BUILTINS = (int, str, float, bool, bytes, bytearray, list, dict, set, frozenset, tuple, complex)


_WELL_KNOWN = frozenset(shape.ref for shape in KNOWN_CLASSES.values())


class Registration(NamedTuple):
    """One registered type."""

    name: str
    type: type
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


class Registry:
    """Types with a form of their own, and functions and classes that stored data may name.

    Registering is consent: `load` is called with whatever the stored bytes hold, so it should check it as it
    would check any input.
    """

    def __init__(self) -> None:
        self._by_type: dict[type, Registration] = {}
        self._by_name: dict[str, Registration] = {}
        self._named: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        for builtin in _NAMEABLE_BUILTINS:
            self.allow(builtin)

    def register(
        self, type: type[T], dump: Callable[[T], Any], load: Callable[[Any], T], *, name: str | None = None
    ) -> None:
        """Keep instances of exactly this type as what `dump` returns; `load` makes them again from it.

        `dump` may return anything the codec supports. `name` stands in the stored bytes (default: module and class
        name): choose one yourself if the class may be moved. Subclasses are types of their own.
        """
        if type in _OWN_TYPES or class_lookup.reference(type) in _WELL_KNOWN:
            raise InvalidError(
                f"{type.__name__} already has a form of its own", hint="Register a subclass of it instead"
            )
        name = name or class_lookup.reference(type)
        other = self._by_name.get(name)
        if (
            other is not None
            and other.type is not type
            and class_lookup.reference(other.type) != class_lookup.reference(type)
        ):
            raise InvalidError(
                f"the name {name!r} is taken by {class_lookup.reference(other.type)}", hint="Pass another name="
            )
        self._by_type[type] = self._by_name[name] = Registration(name, type, dump, load)

    def allow(self, thing: Any, *, name: str | None = None) -> Any:
        """Let values hold this function or class by its name. Returns it, so it works as a decorator."""
        if not isinstance(thing, type | FunctionType | BuiltinFunctionType):
            raise InvalidError(f"{thing!r} is neither a function nor a class")
        if name is None:
            name = f"{thing.__module__}:{thing.__qualname__}"
            if "<" in name:
                raise InvalidError(
                    f"{name} can not be found again by its name: it is a lambda or was made inside a function",
                    hint="Define it at the top of a module, or pass a name= that you will register in every process",
                )
        other = self._named.get(name)
        if other is not None and other is not thing and other.__qualname__ != thing.__qualname__:
            raise InvalidError(f"the name {name!r} is taken by {other!r}", hint="Pass another name=")
        self._named[name] = thing
        self._names[thing] = name
        return thing

    def registration(self, type: type) -> Registration | None:
        """How this exact type is kept, if it was registered."""
        return self._by_type.get(type)

    def registration_named(self, name: str) -> Registration | None:
        """The registered type that stored bytes call by this name."""
        return self._by_name.get(name)

    def name_of(self, thing: Any) -> str:
        """The name under which values may hold this function or class."""
        name = self._names.get(thing)
        if name is None:
            what = getattr(thing, "__qualname__", repr(thing))
            if "<" in what:
                raise UnsupportedError(
                    f"{what} can not be saved: a lambda or a function inside a function has no name to find it by",
                    hint="Move it to the top of a module and allow it with holdfast.allow(…)",
                )
            raise UnsupportedError(
                f"{getattr(thing, '__module__', '')}:{what} is code, and code is saved only by a name that was allowed",
                hint=f"Allow it in every process that reads it: holdfast.allow({what})",
            )
        return name

    def named(self, name: str) -> Any:
        """The function or class of this name, or None if it was not allowed here."""
        return self._named.get(name)


default_registry = Registry()
"""The registry behind `holdfast.register` and `holdfast.allow`."""

register, allow = default_registry.register, default_registry.allow
