"""Conversion of values between Python and scripts, by way of JSON.

A value is in the form of `Codec.to_json`: what JSON cannot represent is a mark, an object whose only key starts with
`$`, so that every value that a store can hold passes through a script unchanged. Whole numbers beyond 2^53 and floats
without a fraction are marks, too, since JavaScript could not tell them. What is no value has the mark `$script`: an
object of the API, a page, a record that a call returned, a function, an operator.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from types import FunctionType
from typing import Any, Protocol

from holdfast.codec import default_codec
from holdfast.codec.opaque import OpaqueValue
from holdfast.engine.pages import Page
from holdfast.errors import (
    ERRORS_BY_CODE,
    FINER_CODES,
    CircularReferenceError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    TooDeepError,
    UnsupportedError,
)
from holdfast.interfaces.scripting.functions import ABSENT, OPERATORS, RecordId, type_name_of

MARK = "$script"

SAFE = 2**53 - 1
"""Whole numbers up to this are exact in JavaScript."""

_LONG = 1 << 1024
"""Whole numbers from this on are written in base 16: Python refuses to read very long decimals."""

MAX_DEPTH = 100
"""How deeply a result may nest, of records and values together."""

RECORDS = ("Session", "HookContext", "Diff", "ReplayReport", "HookReplay")
"""Types of objects that a script gets with their fields, beside their functions."""

_HIDDEN = {"StoreStatus": ("url",), "Change": ("trees",)}
"""Fields that scripts do not get: the address of the store may have a password in it."""


class References(Protocol):
    """The objects of the API that a script has."""

    def add(self, value: object) -> int:
        """Return the number under which a script refers to an object."""

    def get(self, number: int | str) -> Any:
        """Return an object by its number."""

    def function(self, number: int, name: str) -> Callable[..., Any]:
        """Return a function of the script as a function of Python."""

    def resolve(self, target: Any) -> Any:
        """Return the object that a path names."""


def dump(tree: Any) -> bytes:
    """Return a message as bytes."""
    return _ENCODER.encode(tree).encode()


def load(data: bytes) -> Any:
    """Read a message. Raises `InvalidError` if it is none."""
    try:
        return _DECODER.decode(data.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise TooDeepError("a value of the script is nested too deeply") from None
    except ValueError as error:
        raise InvalidError(f"the script sent something that cannot be read: {str(error)[:100]}") from None


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_refuse)


# To scripts ------------------------------------------------------------------------------------------------------


class Encoder:
    """Converts results to JSON for a script."""

    def __init__(self, references: References) -> None:
        self._references = references
        self._open: set[int] = set()

    def encode(self, value: Any) -> Any:
        """Convert a result."""
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        if kind is int:
            return value if -SAFE <= value <= SAFE else {"$int": str(value) if abs(value) < _LONG else hex(value)}
        if kind is float:
            return value if math.isfinite(value) and not value.is_integer() else {"$float": repr(value)}
        if kind in (dict, tuple, set, frozenset) or isinstance(value, list):
            return self._enter(value, self._container)
        name = type_name_of(kind)
        if name and name not in RECORDS:
            return {MARK: ["handle", name, self._references.add(value)]}
        if kind.__module__.startswith("holdfast.") and not isinstance(value, OpaqueValue | BaseException):
            return self._enter(value, self._of_package)
        if isinstance(value, FunctionType):  # no value that is stored is one
            return {MARK: ["handle", "HookRegistration", self._references.add(value)]}
        if isinstance(value, Mapping):
            return self.encode(dict(value))
        if isinstance(value, BaseException):
            return str(value)
        return default_codec.to_json(value)

    def _enter(self, value: Any, convert: Callable[[Any], Any]) -> Any:
        if id(value) in self._open:
            raise CircularReferenceError("a value contains itself")
        if len(self._open) >= MAX_DEPTH:
            raise TooDeepError(f"a result is nested more than {MAX_DEPTH} deep")
        self._open.add(id(value))
        try:
            return convert(value)
        finally:
            self._open.discard(id(value))

    def _container(self, value: Any) -> Any:
        encode = self.encode
        if isinstance(value, dict):
            if all(type(key) is str for key in value):
                tree = {key: encode(item) for key, item in value.items()}
                return {"$object": tree} if len(tree) == 1 and next(iter(tree)).startswith("$") else tree
            return {"$dict": [[encode(key), encode(item)] for key, item in value.items()]}
        if type(value) is tuple:
            return {"$tuple": [encode(item) for item in value]}
        if type(value) is set or type(value) is frozenset:
            marked: Any = default_codec.to_json(value)
            return marked
        items = [encode(item) for item in value]
        if not isinstance(value, Page):
            return items
        more = {name: encode(each) for name, each in vars(value).items() if not name.startswith("_") and name != "next"}
        return {MARK: ["page", items, value.next, more]}

    def _of_package(self, value: Any) -> Any:
        if not value and type(value).__name__ == "MissingType":
            return {MARK: ["absent"]}
        if isinstance(value, Enum):
            return self.encode(value.value)
        if type(value).__name__ in ("Scope", "Identity"):
            return str(value)
        kind = type(value)
        fields = {name: getattr(value, name) for name in field_names(kind)}
        tree = {name: self.encode(field) for name, field in fields.items()}
        name = type_name_of(kind)
        if not name:
            tree = {name: each for name, each in tree.items() if each != {MARK: ["absent"]}}
            return {MARK: ["record", kind.__name__, tree]}
        return {MARK: ["record", name, tree, self._references.add(value)]}


_FIELDS: dict[type, tuple[str, ...]] = {}


def field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields and properties of a record that scripts get."""
    if kind not in _FIELDS:
        _FIELDS[kind] = _find_fields(kind)
    return _FIELDS[kind]


def _find_fields(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        names = [each.name for each in dataclasses.fields(kind)]
    else:
        names = list(getattr(kind, "_fields", ()) or getattr(kind, "__struct_fields__", ()))
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("holdfast."):
            names += [
                name
                for name, attribute in vars(each).items()
                if isinstance(attribute, property | cached_property) and name != "state"
            ]
    if kind.__name__ == "Session":
        names += ["id", "status"]
    if kind.__name__ == "Diff":
        names += ["old", "new"]
    hidden = _HIDDEN.get(kind.__name__, ())
    return tuple(dict.fromkeys(name for name in names if not name.startswith("_") and name not in hidden))


def error_form(error: BaseException) -> dict[str, Any]:
    """Return an error as a script sees it. Of what is no error of Holdfast, only the class and the text."""
    if isinstance(error, HoldfastError):
        known = error
    elif isinstance(error, KeyError):
        known = NotFoundError("there is no such key", where=f"key {error.args[0]!r}"[:200] if error.args else "")
    elif isinstance(error, LookupError):
        known = NotFoundError(str(error))
    elif isinstance(error, TypeError | AttributeError):
        known = InvalidError(f"this cannot be called with these arguments: {error}")
    else:
        known = HoldfastError(f"{type(error).__name__}: {error}")
    return {
        "name": type(known).__name__,
        "code": known.code,
        "what": known.what,
        "where": known.where,
        "hint": known.hint,
        "message": str(known),
    }


def error_of(form: Mapping[str, Any]) -> HoldfastError | None:
    """Return the error that a script raised by its code; None for an error that is none of Holdfast's."""
    code = str(form.get("code", ""))
    kind = FINER_CODES.get(code) or ERRORS_BY_CODE.get(code)
    if kind is None:
        return None
    what, where, hint = (str(form.get(name) or "") for name in ("what", "where", "hint"))
    return kind(what or str(form.get("message") or "the script raised an error"), where=where, hint=hint, code=code)


def error_classes() -> list[list[str]]:
    """Return the classes of errors, each with its base class and its code, bases first."""
    classes: dict[str, list[str]] = {}
    for kind in ERRORS_BY_CODE.values():
        for each in reversed(kind.__mro__):
            if issubclass(each, HoldfastError):
                base = next((other.__name__ for other in each.__mro__[1:] if issubclass(other, HoldfastError)), "")
                classes.setdefault(each.__name__, [each.__name__, base, each.code])
    return list(classes.values())


# From scripts ----------------------------------------------------------------------------------------------------


class Decoder:
    """Converts arguments and results of a script to values of Python."""

    def __init__(self, references: References) -> None:
        self._references = references

    def decode(self, tree: Any) -> Any:
        """Convert a value. Functions, objects of the API and operators may be the value itself, or entries of it."""
        kind = type(tree)
        if kind is str or kind is int or kind is bool or kind is float or tree is None:
            return tree
        if _is_special(tree):
            return self._special(tree[MARK])
        if type(tree) is dict and any(map(_is_special, tree.values())):
            return {key: self.decode(each) for key, each in tree.items()}
        if type(tree) is list and any(map(_is_special, tree)):
            return [self.decode(each) for each in tree]
        return tree if _is_plain(tree) else default_codec.from_json(tree)

    def _special(self, parts: Any) -> Any:
        try:
            kind, *rest = parts
            if kind == "absent":
                return ABSENT
            if kind == "function":
                return self._references.function(int(rest[0]), str(rest[1]))
            if kind == "handle":
                return self._references.resolve(rest[0])
            if kind == "id":
                return RecordId(rest[0])
            if kind == "operator" and rest[0] in (*OPERATORS, "ReplaceValue"):
                return _operator(rest[0])(*map(self.decode, rest[1]))
            if kind == "constant":
                return _constant(rest[0])
        except (TypeError, IndexError, KeyError, ValueError) as error:
            if isinstance(error, HoldfastError):
                raise
            raise InvalidError("the script sent something that cannot be read", where=repr(parts)[:80]) from None
        raise UnsupportedError(f"a script cannot send {str(kind)[:40]!r}")


def _is_special(tree: Any) -> bool:
    return type(tree) is dict and len(tree) == 1 and MARK in tree


def _is_plain(tree: Any) -> bool:
    """Return whether a value has no marks, and needs no conversion: most have none, and large ones would take long."""
    left = [tree]
    while left:
        tree = left.pop()
        if type(tree) is dict:
            if len(tree) == 1 and next(iter(tree)).startswith("$"):
                return False
            tree = tree.values()
        left += [each for each in tree if type(each) is dict or type(each) is list]
    return True


def _operator(name: str) -> Any:
    from holdfast import hooks, state

    return hooks.ReplaceValue if name == "ReplaceValue" else getattr(state, name)


def _constant(name: str) -> Any:
    from holdfast.engine.model.missing import MISSING
    from holdfast.history.merge import UNRESOLVED

    return {"MISSING": MISSING, "UNRESOLVED": UNRESOLVED}[name]
