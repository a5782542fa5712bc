"""Registered types, and functions and classes that values may contain by name."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

from holdfast._named_tuple import NamedTuple
from holdfast.codec import class_lookup
from holdfast.codec.stdlib_types import STDLIB_TYPES
from holdfast.codec.tags import KNOWN_CLASSES
from holdfast.errors import InvalidError, UnsupportedError

T = TypeVar("T")

_BUILT_IN_TYPES = frozenset(
    {handler.type for handler in STDLIB_TYPES if isinstance(handler.type, type)}
    | {str, int, float, bool, bytes, list, dict, tuple, type(None), type, object}
)
# Types that are values, as in `defaultdict(list)`. Calling them only creates or converts a value.
_NAMEABLE_BUILTINS = (int, str, float, bool, bytes, bytearray, list, dict, set, frozenset, tuple, complex)


_WELL_KNOWN = frozenset(
    {known.ref for known in KNOWN_CLASSES.values()}
    | {handler.type for handler in STDLIB_TYPES if isinstance(handler.type, str)}
)


class Registration(NamedTuple):
    """A registered type, with its name and functions."""

    name: str
    type: type
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


class Registry:
    """Types with functions that dump and load them, and functions and classes that stored data may name.

    A registered `load` is called with whatever the stored bytes contain: check it like any input.
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
        """Store instances of exactly this type as what `dump` returns; `load` rebuilds them from it.

        `dump` may return anything the codec supports. `name` is what the stored bytes call the type (default: module
        and class name): choose one if the class may be moved. Subclasses are registered separately.
        """
        if type in _BUILT_IN_TYPES or class_lookup.reference(type) in _WELL_KNOWN:
            raise InvalidError(f"{type.__name__} is already supported", hint="Register a subclass of it instead")
        name = name or class_lookup.reference(type)
        other = self._by_name.get(name)
        if (
            other is not None
            and other.type is not type
            and class_lookup.reference(other.type) != class_lookup.reference(type)
        ):
            raise InvalidError(
                f"the name {name!r} is in use by {class_lookup.reference(other.type)}", hint="Pass another name="
            )
        self._by_type[type] = self._by_name[name] = Registration(name, type, dump, load)

    def allow(self, target: Any, *, name: str | None = None) -> Any:
        """Let values contain this function or class by its name. Returns it, so that it works as a decorator."""
        if not isinstance(target, type | FunctionType | BuiltinFunctionType):
            raise InvalidError(f"{target!r} is neither a function nor a class")
        if name is None:
            name = f"{target.__module__}:{target.__qualname__}"
            if "<" in name:
                raise InvalidError(
                    f"{name} cannot be found by its name: it is a lambda or defined in a function",
                    hint="Define it at the top of a module, or pass name= and allow it in every process",
                )
        other = self._named.get(name)
        if other is not None and other is not target and other.__qualname__ != target.__qualname__:
            raise InvalidError(f"the name {name!r} is in use by {other!r}", hint="Pass another name=")
        self._named[name] = target
        self._names[target] = name
        return target

    def registration(self, type: type) -> Registration | None:
        """Return the registration of this exact type, if there is one."""
        return self._by_type.get(type)

    def registration_named(self, name: str) -> Registration | None:
        """Return the registration of this stored name, if there is one."""
        return self._by_name.get(name)

    def name_of(self, target: Any) -> str:
        """Return the name of a function or class. Raises `UnsupportedError` if it was not allowed."""
        name = self._names.get(target)
        if name is None:
            what = getattr(target, "__qualname__", repr(target))
            if "<" in what:
                raise UnsupportedError(
                    f"{what} cannot be saved: a lambda or nested function cannot be found by its name",
                    hint="Move it to the top of a module and allow it with holdfast.allow(…)",
                )
            raise UnsupportedError(
                f"{getattr(target, '__module__', '')}:{what} is code, which is saved only by a name that was allowed",
                hint=f"Allow it in every process that reads it: holdfast.allow({what})",
            )
        return name

    def named(self, name: str) -> Any:
        """Return the function or class of this name, or None if it was not allowed."""
        return self._named.get(name)


default_registry: Registry = Registry()
"""The registry behind `holdfast.register` and `holdfast.allow`."""

register, allow = default_registry.register, default_registry.allow


ARRAY_LIBRARIES = ("numpy", "pandas")


def import_array_types(library: str) -> Any:
    """Import the module that handles a library's values, on first use: neither library is a dependency."""
    if library == "pandas":
        from holdfast.codec import pandas_types

        return pandas_types
    from holdfast.codec import numpy_types

    return numpy_types
