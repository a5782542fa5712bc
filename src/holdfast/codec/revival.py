"""Which classes found in data may come back to life.

Stored bytes name a class as `module:qualname`. Naming it must not be enough to run anything. A class is revived
only if that exact class is already loaded, it is plain data (a dataclass, attrs class, pydantic model,
NamedTuple, enum or exception), and it has none of the methods through which merely existing can act. Instances
are made by setting fields: no constructor, validator or factory of the application is called, nothing is imported.

Every look at a class goes through `type`'s and `object`'s own accessors, so that a metaclass or a lazy module
with a `__getattr__` of its own does not get to run either.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

# Methods that run when an object merely exists, is read, is called or is given its fields.
_ACTING = ("__call__", "__del__", "__getattr__", "__getattribute__", "__setattr__", "__delattr__")

# Libraries whose own versions of those methods only keep their fields in order.
_HARMLESS_MODULES = frozenset(
    {"pydantic.main", "pydantic.v1.main", "pydantic.dataclasses", "pydantic._internal._dataclasses", "attr._make"}
)

# Things an agent *does* something with. They may be pydantic models, and they are never mere data.
_ACTORS = frozenset(
    {
        "langchain_core.runnables.base:Runnable",
        "langchain_core.tools.base:BaseTool",
        "langchain_core.callbacks.base:BaseCallbackHandler",
    }
)

_LAYOUT_BASES = ("builtins", "_collections", "_io", "_thread", "_ctypes")


def class_dict(cls: type) -> dict[str, Any]:
    """The class's own namespace, without asking its metaclass."""
    namespace: dict[str, Any] = type.__getattribute__(cls, "__dict__")
    return namespace


def mro(cls: type) -> tuple[type, ...]:
    """The class's method resolution order, without asking its metaclass."""
    order: tuple[type, ...] = type.__getattribute__(cls, "__mro__")
    return order


def lookup(cls: type, name: str) -> Any:
    """What the class or its bases define under this name, unbound; None where nothing does."""
    for base in mro(cls):
        namespace = class_dict(base)
        if name in namespace:
            return namespace[name]
    return None


def reference(cls: type) -> str:
    """How a class is named in stored bytes."""
    module = type.__getattribute__(cls, "__module__")
    return f"{module}:{type.__getattribute__(cls, '__qualname__')}"


def find_loaded(name: str) -> type | None:
    """The class of this name if it is loaded already, else None. Imports nothing and runs nothing."""
    module_name, colon, qualname = name.partition(":")
    module = sys.modules.get(module_name)
    if not colon or not issubclass(type(module), ModuleType):
        return None
    namespace = object.__getattribute__(module, "__dict__")
    found = namespace.get(qualname)  # a parametrised generic's name may hold dots: try it whole first
    if found is None:
        for part in qualname.split("."):
            found = namespace.get(part)
            if not issubclass(type(found), type):
                return None
            namespace = class_dict(found)
    if not issubclass(type(found), type) or reference(found) != name:
        return None
    return found  # type: ignore[no-any-return]


def refusal(cls: type) -> str:
    """Why instances of this class can not be revived, or "" when they can.

    The same answer guards both directions: what could not come back is not written.
    """
    for base in mro(cls):
        if reference(base) in _ACTORS:
            return f"it is a {base.__name__}, something that acts"
    for name in _ACTING:
        for base in mro(cls):
            method = class_dict(base).get(name)
            if method is not None and base is not object:
                if not _harmless(base, name, method):
                    return f"it defines {name}"
                break
    if find_loaded(reference(cls)) is not cls:
        return "it can not be found again by its name (a class made inside a function, or renamed)"
    return ""


def foreign_base(cls: type, *allowed: type) -> str:
    """The built-in type this class also is (`dict`, `str` …), whose content its fields would not hold."""
    for base in mro(cls):
        if base is not object and base not in allowed and reference(base).split(":")[0] in _LAYOUT_BASES:
            return base.__name__
    return ""


def intercepted(cls: type, names: Iterator[str] | tuple[str, ...]) -> str:
    """A field whose assignment would run a descriptor of the class, or ""."""
    for name in names:
        found = lookup(cls, name)
        kind = type(found)
        if kind in (MemberDescriptorType, GetSetDescriptorType):
            continue
        if any("__set__" in class_dict(base) for base in mro(kind)):
            return name
    return ""


def _harmless(owner: type, name: str, method: object) -> bool:
    """Whether an acting method was written by a library that only guards fields with it."""
    if owner.__module__ in ("builtins", "enum", "typing"):
        return True
    if type(method) is FunctionType and method.__module__ in _HARMLESS_MODULES:
        return True
    if name in ("__setattr__", "__delattr__"):
        params = class_dict(owner).get("__dataclass_params__")
        return bool(getattr(params, "frozen", False)) or bool(class_dict(owner).get("__attrs_own_setattr__"))
    return False
