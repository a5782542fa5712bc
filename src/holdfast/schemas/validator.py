"""Validation of values against a schema, compiled once for each schema."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import re
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from holdfast.codec.opaque import OpaqueValue
from holdfast.errors import InvalidError
from holdfast.schemas.definition import CONSTRAINTS, Node, encode, type_text, unfold

# Text pattern ---------------------------------------------------------------------------------------------------------
#
# The pattern of a text in a schema: a regular expression whose `$` is the end of the text, as in JSON Schema.
#
# Python's also matches before a line break at the end, so that `^a$` would take "a\n".

_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)
"""Matches a `$`, and parts in which it has another meaning: an escape, or a set of characters."""


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern. Raises `InvalidError` if it is no regular expression."""
    try:
        found = re.compile(pattern)
        if found.flags & re.MULTILINE:
            return found
        return re.compile(_PARTS.sub(lambda part: r"\Z" if part[0] == "$" else part[0], pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidError(f"a pattern is not a regular expression: {error}", where=pattern[:80]) from error


MAX_PROBLEMS = 20
"""How many problems of a value are reported."""


class Problem(msgspec.Struct, frozen=True):
    """A reason why a value does not fit. The value itself is not quoted: it may be secret."""

    path: str
    reason: str


Check: TypeAlias = Callable[[Any, str, list[Problem]], None]
"""Adds the problems of a value at a path."""

_CLASSES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bytes": (bytes, bytearray),
    "complex": (complex, float, int),
    "decimal": (decimal.Decimal,),
    "uuid": (uuid.UUID,),
    "path": (pathlib.PurePath,),
    "datetime": (dt.datetime,),
    "date": (dt.date,),
    "time": (dt.time,),
    "timedelta": (dt.timedelta,),
}
_SEQUENCES: dict[str, tuple[type, ...]] = {
    "list": (list, deque),
    "set": (set, frozenset),
    "frozenset": (frozenset, set),
    "tuple": (tuple, list),
}


class Validator:
    """Checks values against a canonical form."""

    def __init__(self, form: Node, lookup: Callable[[str], Node] | None = None) -> None:
        self._compiler = _Compiler(lookup)
        self._check = self._compiler.compile(form, ())
        self._top = unfold(form)
        self._fields: dict[str, tuple[Check, bool]] = {}
        if self._top["type"] == "record":
            self._fields = {
                name: (self._compiler.compile(field["type"], ()), field["required"])
                for name, field in self._top["fields"].items()
            }

    @property
    def required(self) -> list[str]:
        """The fields that a complete state has."""
        return [name for name, (_, required) in self._fields.items() if required]

    def check(self, value: Any, changed: Iterable[str] | None = None, *, partial: bool = False) -> list[Problem]:
        """Return the problems of a value. `changed` are the only fields to check, if the others were checked before.

        Of a `partial` state, required fields may be missing: a graph writes its channels one after the other.
        """
        problems: list[Problem] = []
        try:
            self._collect(value, changed, problems, partial=partial)
        except RecursionError:
            problems.insert(0, Problem("", "it is nested too deep to be checked"))
        return problems[:MAX_PROBLEMS]

    def _collect(self, value: Any, changed: Iterable[str] | None, problems: list[Problem], *, partial: bool) -> None:
        if partial and changed is None and isinstance(value, Mapping):
            changed = value
        if changed is None or not self._fields or not isinstance(value, Mapping):
            self._check(value, "", problems)
            return
        for name in changed:
            field = self._fields.get(name)
            if field is None:
                if not self._top["open"] and name in value:
                    problems.append(Problem(name, "the schema has no such field"))
            elif name in value:
                field[0](value[name], name, problems)
            elif field[1] and not partial:
                problems.append(Problem(name, "it is required, and missing"))


class _Compiler:
    def __init__(self, lookup: Callable[[str], Node] | None) -> None:
        self._lookup = lookup
        self._schemas: dict[str, list[Check]] = {}

    def compile(self, node: Node, around: tuple[list[Check], ...]) -> Check:
        """Return the check of a node. `around` are the recursive nodes outside of it."""
        kind = node["type"]
        check = self._by_kind(kind, node, around)
        limits = {key: node[key] for key in CONSTRAINTS if key in node}
        return _with_limits(check, limits) if limits else check

    def _by_kind(self, kind: str, node: Node, around: tuple[list[Check], ...]) -> Check:
        match kind:
            case "any":
                return _accept
            case "literal" | "enum":
                return _compile_values(node["values"])
            case "list" | "set" | "frozenset":
                return _compile_items(kind, self.compile(node["items"], around))
            case "tuple":
                items = node["items"]
                if isinstance(items, list):
                    return _compile_tuple([self.compile(each, around) for each in items])
                return _compile_items(kind, self.compile(items, around))
            case "map":
                return _compile_map(self.compile(node["keys"], around), self.compile(node["values"], around))
            case "union":
                return _compile_union(node, [self.compile(each, around) for each in node["of"]])
            case "record":
                fields = {
                    name: (self.compile(field["type"], around), field["required"])
                    for name, field in node["fields"].items()
                }
                return _compile_record(fields, is_open=node["open"])
            case "message" | "instance":
                return _compile_instance(node)
            case "recursive":
                cell: list[Check] = []
                cell.append(self.compile(node["of"], (*around, cell)))
                return cell[0]
            case "self":
                outer = around[-1 - node["levels"]]
                return _deferred(outer)
            case "schema":
                return self._reference(node["ref"])
            case _:
                return _compile_scalar(kind)

    def _reference(self, reference: str) -> Check:
        if self._lookup is None:
            return _accept  # checked where its schema is known
        cell = self._schemas.get(reference)
        if cell is None:
            self._schemas[reference] = cell = []
            cell.append(self.compile(self._lookup(reference), ()))
        return _deferred(cell)


def _deferred(cell: list[Check]) -> Check:
    """Return a check that is compiled later: it is part of itself."""

    def check(value: Any, path: str, problems: list[Problem]) -> None:
        cell[0](value, path, problems)

    return check


def _accept(value: Any, path: str, problems: list[Problem]) -> None:
    """Accept any value."""


def _name(value: Any) -> str:
    if isinstance(value, OpaqueValue):
        return f"an instance of {value.type_name}, whose class is not loaded or has changed"
    return "None" if value is None else type(value).__name__


def _compile_scalar(kind: str) -> Check:
    classes = _CLASSES[kind]
    exact = frozenset(classes)
    refused = bool if kind in ("int", "float", "complex") else dt.datetime if kind == "date" else ()

    def check(value: Any, path: str, problems: list[Problem]) -> None:
        if type(value) in exact or (isinstance(value, classes) and not isinstance(value, refused)):
            return
        problems.append(Problem(path, f"it is {_name(value)}, not {'None' if kind == 'null' else kind}"))

    return check


def _compile_values(values: list[Any]) -> Check:
    allowed = {(type(value), value) for value in values}
    text = ", ".join(map(repr, values[:8])) + (", …" if len(values) > 8 else "")

    def check(value: Any, path: str, problems: list[Problem]) -> None:
        plain = value.value if isinstance(value, enum.Enum) else value
        try:
            if (type(plain), plain) in allowed:
                return
        except TypeError:
            pass
        problems.append(Problem(path, f"it is none of {text}"))

    return check


def _compile_items(kind: str, inner: Check) -> Check:
    classes: tuple[type[Any], ...] = _SEQUENCES[kind]

    def check(value: Any, path: str, problems: list[Problem]) -> None:
        if not isinstance(value, classes):
            problems.append(Problem(path, f"it is {_name(value)}, not {kind}"))
        elif inner is not _accept:
            items: Iterable[Any] = value
            for place, item in enumerate(items):
                inner(item, f"{path}[{place}]", problems)
                if len(problems) >= MAX_PROBLEMS:
                    return

    return check


def _compile_tuple(items: list[Check]) -> Check:
    def check(value: Any, path: str, problems: list[Problem]) -> None:
        if not isinstance(value, tuple | list):
            problems.append(Problem(path, f"it is {_name(value)}, not tuple"))
        elif len(value) != len(items):
            problems.append(Problem(path, f"it has {len(value)} items, not {len(items)}"))
        else:
            for place, (inner, item) in enumerate(zip(items, value, strict=True)):
                inner(item, f"{path}[{place}]", problems)

    return check


def _compile_map(keys: Check, values: Check) -> Check:
    def check(value: Any, path: str, problems: list[Problem]) -> None:
        if not isinstance(value, Mapping):
            problems.append(Problem(path, f"it is {_name(value)}, not dict"))
            return
        for key, item in value.items():
            where = f"{path}[{key!r}]"
            if keys is not _accept:
                keys(key, where, problems)
            values(item, where, problems)
            if len(problems) >= MAX_PROBLEMS:
                return

    return check


_WITH_PATHS = ("record", "recursive", "self", "schema", "list", "tuple", "map")


def _compile_union(node: Node, members: list[Check]) -> Check:
    text = type_text(node)
    records = [place for place, each in enumerate(node["of"]) if each["type"] in _WITH_PATHS]

    def check(value: Any, path: str, problems: list[Problem]) -> None:
        tried: list[list[Problem]] = []
        for member in members:
            found: list[Problem] = []
            member(value, path, found)
            if not found:
                return
            tried.append(found)
        inside = [tried[place] for place in records if tried[place][0].path != path]
        if inside and all(each == inside[0] for each in inside):
            problems.extend(inside[0])  # as in `Plan | None`: what is wrong with the plan
        else:
            problems.append(Problem(path, f"it is {_name(value)}, and fits none of {text}"))

    return check


def _compile_record(fields: dict[str, tuple[Check, bool]], *, is_open: bool) -> Check:
    def check(value: Any, path: str, problems: list[Problem]) -> None:
        found = value if isinstance(value, Mapping) else _fields_of(value)
        if found is None:
            problems.append(Problem(path, f"it is {_name(value)}, not an object with fields"))
            return
        prefix = f"{path}." if path else ""
        for name, (inner, required) in fields.items():
            if name in found:
                inner(found[name], prefix + name, problems)
            elif required:
                problems.append(Problem(prefix + name, "it is required, and missing"))
        if not is_open and len(found) and not found.keys() <= fields.keys():
            problems += [
                Problem(f"{prefix}{name}", "the schema has no such field") for name in found if name not in fields
            ]

    return check


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of an instance of a class that has declared ones."""
    kind = type(value)
    if isinstance(value, OpaqueValue):
        return value.fields or None
    names: Iterable[str] | None = getattr(kind, "__pydantic_fields__", None)
    if names is None and dataclasses.is_dataclass(kind):
        names = [each.name for each in dataclasses.fields(kind)]
    if names is None and hasattr(kind, "__attrs_attrs__"):
        names = [each.name for each in kind.__attrs_attrs__]
    if names is None:
        names = getattr(kind, "__struct_fields__", None) or (
            getattr(kind, "_fields", None) if isinstance(value, tuple) else None
        )
    if names is None:
        return None
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _compile_instance(node: Node) -> Check:
    message = node["type"] == "message"
    wanted = "langchain_core.messages.base:BaseMessage" if message else node["class"]
    known: set[type] = set()

    def check(value: Any, path: str, problems: list[Problem]) -> None:
        kind = type(value)
        if kind in known:
            return
        if any(f"{base.__module__}:{base.__qualname__}" == wanted for base in kind.__mro__):
            known.add(kind)
            return
        if message and isinstance(value, tuple | dict | str):
            return  # LangGraph takes these for messages, too
        if isinstance(value, OpaqueValue) and (value.type_name == wanted or message):
            return
        problems.append(Problem(path, f"it is {_name(value)}, not {'a message' if message else wanted}"))

    return check


def _with_limits(check: Check, limits: dict[str, Any]) -> Check:
    tests = [_LIMITS[key](limit) for key, limit in limits.items()]
    text = ", ".join(f"{key} {limit}" for key, limit in limits.items())

    def limited(value: Any, path: str, problems: list[Problem]) -> None:
        before = len(problems)
        check(value, path, problems)
        if len(problems) > before:
            return
        if not all(test(value) for test in tests):
            problems.append(Problem(path, f"it breaks the limit {text}"))

    return limited


def _pattern(limit: str) -> Callable[[Any], bool]:
    found = compile_pattern(limit)
    return lambda value: found.search(value) is not None


_LIMITS: dict[str, Callable[[Any], Callable[[Any], bool]]] = {
    "minimum": lambda limit: lambda value: value >= limit,
    "maximum": lambda limit: lambda value: value <= limit,
    "exclusiveMinimum": lambda limit: lambda value: value > limit,
    "exclusiveMaximum": lambda limit: lambda value: value < limit,
    "multipleOf": lambda limit: lambda value: value % limit == 0,
    "minLength": lambda limit: lambda value: len(value) >= limit,
    "maxLength": lambda limit: lambda value: len(value) <= limit,
    "minItems": lambda limit: lambda value: len(value) >= limit,
    "maxItems": lambda limit: lambda value: len(value) <= limit,
    "minProperties": lambda limit: lambda value: len(value) >= limit,
    "maxProperties": lambda limit: lambda value: len(value) <= limit,
    "uniqueItems": lambda limit: lambda value: not limit or len({encode_any(each) for each in value}) == len(value),
    "pattern": _pattern,
}


def encode_any(value: Any) -> str:
    """Return a text that is equal for equal values, for those that cannot be hashed."""
    try:
        return encode(value)
    except (TypeError, ValueError):
        return repr(value)
