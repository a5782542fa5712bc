"""Which classes found in data may come back to life.

Stored bytes name a class as `module:qualname`. Naming it must not be enough to run anything. A class is revived
only if that exact class is already loaded, it is plain data (a dataclass, attrs class, pydantic model,
NamedTuple, enum or exception), and it has none of the methods through which merely existing can act. Instances
are made by setting fields: no constructor, validator or factory of the application is called, nothing is imported.

Every look at a class or module goes through the accessors of `type` and of modules themselves, so that a metaclass
or a lazy module with hooks of its own does not get to run either.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from holdfast.errors import ERRORS_BY_CODE, HoldfastError

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

# How ordinary classes are made. Another metaclass could act whenever its classes are looked at.
_METACLASSES = frozenset(
    {
        "builtins:type",
        "abc:ABCMeta",
        "enum:EnumType",
        "typing:_ProtocolMeta",
        "typing_extensions:_ProtocolMeta",
        "pydantic._internal._model_construction:ModelMetaclass",
        "pydantic.v1.main:ModelMetaclass",
        "pydantic.main:ModelMetaclass",
    }
)

# Errors of this library are stored by their code, which stays when a class is renamed: `holdfast:not-found`.
_OWN = "holdfast"

_LAYOUT_BASES = ("builtins", "_collections", "_io", "_thread", "_ctypes")


_class_dict = type.__dict__["__dict__"].__get__
_mro = type.__dict__["__mro__"].__get__
_module = type.__dict__["__module__"].__get__
_qualname = type.__dict__["__qualname__"].__get__
_name = type.__dict__["__name__"].__get__
_module_dict = _class_dict(ModuleType)["__dict__"].__get__


def class_dict(cls: type) -> Mapping[str, Any]:
    """The class's own namespace, without asking its metaclass."""
    namespace: Mapping[str, Any] = _class_dict(cls)
    return namespace


def mro(cls: type) -> tuple[type, ...]:
    """The class's method resolution order, without asking its metaclass."""
    order: tuple[type, ...] = _mro(cls)
    return order


def module_dict(module: ModuleType) -> dict[str, Any]:
    """The module's namespace, without asking the module."""
    namespace: dict[str, Any] = _module_dict(module)
    return namespace


def is_a(value: object, cls: type) -> bool:
    """Whether a value is of a class, by its real type: `isinstance` would ask its `__class__`."""
    return any(base is cls for base in mro(type(value)))


def lookup(cls: type, name: str) -> Any:
    """What the class or its bases define under this name, unbound; None where nothing does."""
    for base in mro(cls):
        namespace = class_dict(base)
        if name in namespace:
            return namespace[name]
    return None


def reference(cls: type) -> str:
    """How a class is named in stored bytes."""
    module, qualname = _module(cls), _qualname(cls)
    if type(module) is not str:  # a class may have anything there
        return f":{qualname}"
    if module == HoldfastError.__module__ and type(code := class_dict(cls).get("code")) is str:
        return f"{_OWN}:{code}"
    return f"{module}:{qualname}"


def find_loaded(name: str) -> type | None:
    """The class of this name if it is loaded already, else None. Imports nothing and runs nothing."""
    module_name, colon, qualname = name.partition(":")
    if module_name == _OWN and qualname in ERRORS_BY_CODE:
        return ERRORS_BY_CODE[qualname]
    module = sys.modules.get(module_name)
    if not colon or not is_a(module, ModuleType):
        return None
    namespace: Mapping[str, Any] = module_dict(module)  # type: ignore[arg-type]
    found = namespace.get(qualname)  # a parametrised generic's name may hold dots: try it whole first
    if found is None:
        for part in qualname.split("."):
            found = namespace.get(part)
            if not is_a(found, type):
                return None
            namespace = class_dict(found)  # type: ignore[arg-type]
    if not is_a(found, type) or reference(found) != name:  # type: ignore[arg-type]
        return None
    return found


def refusal(cls: type) -> str:
    """Why instances of this class can not be revived, or "" when they can.

    The same answer guards both directions: what could not come back is not written.
    """
    if reference(type(cls)) not in _METACLASSES:
        return f"its class is made by {reference(type(cls))}, which may act"
    for base in mro(cls):
        if reference(base) in _ACTORS:
            return f"it is a {_name(base)}, something that acts"
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


def is_plain_object(cls: type) -> bool:
    """Whether instances hold nothing but their fields: not so if the class also is a `dict`, a `date` or the like."""
    if any(reference(base).partition(":")[0] in _LAYOUT_BASES for base in mro(cls) if base is not object):
        return False
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True


def stray_slots(cls: type, known: Collection[str]) -> tuple[str, ...]:
    """Slots of the class that are none of the known fields, and so would be lost if they held something."""
    return tuple(
        name
        for base in mro(cls)
        for name, member in class_dict(base).items()
        if type(member) is MemberDescriptorType and name not in known
    )


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
    if _module(owner) in ("builtins", "enum", "typing"):
        return True
    if type(method) is FunctionType and method.__module__ in _HARMLESS_MODULES:
        return True
    if name in ("__setattr__", "__delattr__"):
        params = class_dict(owner).get("__dataclass_params__")
        return bool(getattr(params, "frozen", False)) or bool(class_dict(owner).get("__attrs_own_setattr__"))
    return False
