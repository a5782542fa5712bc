"""The rules for which classes named in stored bytes may be revived.

Stored bytes name a class as `module:qualname`, which must not be enough to run anything. A class is revived only if
that exact class is already loaded, is plain data (a dataclass, attrs class, pydantic model, NamedTuple, enum or
exception), and has no method that runs implicitly. Instances are built by setting fields: nothing is imported, and no
constructor, validator or factory of the application is called.

Classes and modules are inspected through the accessors of `type` and `ModuleType`, so that no hook of a metaclass or of
a lazy module runs.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from holdfast.errors import ERRORS_BY_CODE, HoldfastError

# Methods that run when an object is read, called, assigned to or deleted.
_IMPLICIT_METHODS = ("__call__", "__del__", "__getattr__", "__getattribute__", "__setattr__", "__delattr__")

# Libraries whose versions of those methods only manage fields.
_HARMLESS_MODULES = frozenset(
    {"pydantic.main", "pydantic.v1.main", "pydantic.dataclasses", "pydantic._internal._dataclasses", "attr._make"}
)

# Classes that do something. They may be pydantic models, but are never plain data.
_ACTIVE_CLASSES = frozenset(
    {
        "langchain_core.runnables.base:Runnable",
        "langchain_core.tools.base:BaseTool",
        "langchain_core.callbacks.base:BaseCallbackHandler",
    }
)

# Another metaclass could run code whenever its classes are inspected.
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

# Errors of this library are stored by their code, as in `holdfast:not-found`, so that their classes may be renamed.
_OWN = "holdfast"

_LAYOUT_BASES = ("builtins", "_collections", "_io", "_thread", "_ctypes")


_class_dict = type.__dict__["__dict__"].__get__
_mro = type.__dict__["__mro__"].__get__
_module = type.__dict__["__module__"].__get__
_qualname = type.__dict__["__qualname__"].__get__
_name = type.__dict__["__name__"].__get__
_weak_offset = type.__dict__["__weakrefoffset__"].__get__
_module_dict = _class_dict(ModuleType)["__dict__"].__get__


def class_dict(cls: type) -> Mapping[str, Any]:
    """Return the class's own namespace, bypassing its metaclass."""
    namespace: Mapping[str, Any] = _class_dict(cls)
    return namespace


def mro(cls: type) -> tuple[type, ...]:
    """Return the class's method resolution order, bypassing its metaclass."""
    order: tuple[type, ...] = _mro(cls)
    return order


def weak_offset(cls: type) -> int:
    """Return where instances have their list of weak references; 0 if they have none."""
    offset: int = _weak_offset(cls)
    return offset


def module_dict(module: ModuleType) -> dict[str, Any]:
    """Return the module's namespace, bypassing the module."""
    namespace: dict[str, Any] = _module_dict(module)
    return namespace


def is_a(value: object, cls: type) -> bool:
    """Whether a value is an instance of a class. Unlike `isinstance`, ignores its `__class__`."""
    return any(base is cls for base in mro(type(value)))


def lookup(cls: type, name: str) -> Any:
    """Return the unbound attribute of the class or its bases, or None."""
    for base in mro(cls):
        namespace = class_dict(base)
        if name in namespace:
            return namespace[name]
    return None


def reference(cls: type) -> str:
    """Return the name of a class in stored bytes."""
    module, qualname = _module(cls), _qualname(cls)
    if type(module) is not str:  # a class may have anything there
        return f":{qualname}"
    if module == HoldfastError.__module__ and type(code := class_dict(cls).get("code")) is str:
        return f"{_OWN}:{code}"
    return f"{module}:{qualname}"


def find_loaded(name: str) -> type | None:
    """Return the class of this name if it is loaded, else None. Imports and runs nothing."""
    module_name, colon, qualname = name.partition(":")
    if module_name == _OWN and qualname in ERRORS_BY_CODE:
        return ERRORS_BY_CODE[qualname]
    module = sys.modules.get(module_name)
    if not colon or not is_a(module, ModuleType):
        return None
    namespace: Mapping[str, Any] = module_dict(module)  # type: ignore[arg-type]
    member = namespace.get(qualname)  # the name of a parametrised generic may contain dots: try it whole first
    if member is None:
        for part in qualname.split("."):
            member = namespace.get(part)
            if not is_a(member, type):
                return None
            namespace = class_dict(member)  # type: ignore[arg-type]
    if not is_a(member, type) or reference(member) != name:  # type: ignore[arg-type]
        return None
    return member


def is_unnamed(cls: type) -> bool:
    """Whether a class cannot be found by its name: it is defined in a function, or was renamed or replaced."""
    return find_loaded(reference(cls)) is not cls


def refusal(cls: type, *, unnamed: bool = False) -> str:
    """Return the reason why instances of this class cannot be revived, or "".

    Also used when packing: a value that could not be read back is not written. With `unnamed`, the class need not be
    found by its name.
    """
    if reference(type(cls)) not in _METACLASSES:
        return f"its metaclass {reference(type(cls))} may run code"
    for base in mro(cls):
        if reference(base) in _ACTIVE_CLASSES:
            return f"it is a {_name(base)}, which is not data"
    for name in _IMPLICIT_METHODS:
        for base in mro(cls):
            method = class_dict(base).get(name)
            if method is not None and base is not object:
                if not _is_harmless(base, name, method):
                    return f"it defines {name}"
                break
    if not unnamed and is_unnamed(cls):
        return "it cannot be found by its name (it is defined in a function, or was renamed)"
    return ""


def is_plain_object(cls: type) -> bool:
    """Whether instances hold only their fields: no subclass of `dict`, `date` or the like does."""
    if any(reference(base).partition(":")[0] in _LAYOUT_BASES for base in mro(cls) if base is not object):
        return False
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True


def extra_slots(cls: type, fields: Collection[str]) -> tuple[str, ...]:
    """Return the slots of the class that are not fields: their values would be lost."""
    return tuple(
        name
        for base in mro(cls)
        for name, member in class_dict(base).items()
        if type(member) is MemberDescriptorType and name not in fields
    )


def find_descriptor(cls: type, names: Iterator[str] | tuple[str, ...]) -> str:
    """Return the first field whose assignment would run a descriptor of the class, or ""."""
    for name in names:
        kind = type(lookup(cls, name))
        if kind in (MemberDescriptorType, GetSetDescriptorType):
            continue
        if any("__set__" in class_dict(base) for base in mro(kind)):
            return name
    return ""


def _is_harmless(owner: type, name: str, method: object) -> bool:
    """Whether an implicit method comes from a library that only manages fields with it."""
    if _module(owner) in ("builtins", "enum", "typing"):
        return True
    if type(method) is FunctionType and method.__module__ in _HARMLESS_MODULES:
        return True
    if name in ("__setattr__", "__delattr__"):
        params = class_dict(owner).get("__dataclass_params__")
        return bool(getattr(params, "frozen", False)) or bool(class_dict(owner).get("__attrs_own_setattr__"))
    return False
