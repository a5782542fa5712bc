"""Subclasses of built-in types that add nothing to them, and are saved as the built-in value."""

from __future__ import annotations

import enum
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from holdfast.codec import class_lookup
from holdfast.codec.registry import ARRAY_LIBRARIES
from holdfast.codec.stdlib_types import STDLIB_TYPES

# They return the built-in value itself, whatever the subclass overrides.
_CONVERSIONS: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes.__bytes__,
    list: list.copy,
    dict: dict.copy,
}
_OTHERS: tuple[object, ...] = (
    enum.Enum,
    *(handler.type for handler in STDLIB_TYPES if handler.type not in _CONVERSIONS),
)
"""Classes whose subclasses are more than a built-in value."""

TEXT_ACCESSOR = "langchain_core.messages.base:TextAccessor"
"""The class of `message.text`: text that may also be called, as in older versions."""

_found: weakref.WeakKeyDictionary[type, Callable[[Any], Any] | None] = weakref.WeakKeyDictionary()
_warned: weakref.WeakSet[type] = weakref.WeakSet()


def conversion(kind: type) -> Callable[[Any], Any] | None:
    """Return the function that converts instances of a subclass to the built-in value; None if it is no such class."""
    try:
        return _found[kind]
    except KeyError:
        _found[kind] = found = _find_conversion(kind)
        return found


def _find_conversion(kind: type) -> Callable[[Any], Any] | None:
    kinds = class_lookup.mro(kind)
    library = class_lookup.reference(kind).partition(":")[0].partition(".")[0]
    if library in ARRAY_LIBRARIES or any(base is other for base in kinds for other in _OTHERS):
        return None
    return next((_CONVERSIONS[base] for base in kinds if base in _CONVERSIONS), None)


def has_attributes(value: object) -> bool:
    """Whether an instance of a subclass has attributes, which the built-in value would not have."""
    kind = type(value)
    if class_lookup.lookup(kind, "__dict__") is not None and object.__getattribute__(value, "__dict__"):
        return True
    for name in class_lookup.extra_slots(kind, ()):
        try:
            object.__getattribute__(value, name)
        except AttributeError:
            continue
        return True
    return False


def warn_once(kind: type, message: str) -> None:
    """Warn about the values of a class, once in a process."""
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(f"{class_lookup.reference(kind)}: {message}", UserWarning, stacklevel=2)
