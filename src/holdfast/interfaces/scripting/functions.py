"""The table of functions that scripts have, generated from the classes of the Python API.

Names, parameters, defaults and descriptions are those of the Python methods.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, is_typeddict

from holdfast._lazy import load
from holdfast.backends.runtime.drivers import class_declaration, declaration_of, operations_of, parts_of
from holdfast.errors import InvalidError
from holdfast.interfaces.scripting.object_types import OBJECT_TYPES, Adapter
from holdfast.interfaces.scripting.replay import Replay


@dataclass(frozen=True, slots=True)
class ScriptFunction:
    """A function of scripts: its parameters, and how it is called in Python."""

    name: str
    signature: inspect.Signature
    doc: str
    adapter: Adapter | None
    """Called with the object and the arguments, where there is no method of this name."""
    positions: tuple[str, ...]
    """The names of the parameters that may be given by position."""
    required: int
    """How many of them have no default."""
    open_positions: frozenset[int]
    """Those that may be a dict themselves."""
    options: frozenset[str]
    """The names that options may have."""
    by_position_only: bool
    """Whether the parameters cannot be given by name, or any number of arguments follow them."""
    any_option: bool
    """Whether options may have any other name, too."""

    def bind(self, arguments: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a script as those of Python, by position and by name.

        Options are a dict, as the last argument. It may take the place of optional parameters, unless the first one
        that it would stand for takes a dict itself.
        """
        values, options = [str(each) if type(each) is RecordId else each for each in arguments], {}
        while values and values[-1] is ABSENT:
            values = values[:-1]
        if len(values) > self.required and type(values[-1]) is dict and self._takes_options(len(values) - 1):
            options = {
                name: str(value) if type(value) is RecordId else value
                for name, value in values[-1].items()
                if value is not ABSENT
            }
            values = values[:-1]
            unknown = set() if self.any_option else options.keys() - self.options
            if unknown:
                raise self._error(f"it has no option {min(map(str, unknown))!r}")
        if self.by_position_only:
            if len(values) < self.required:
                raise self._error(f"{self.positions[len(values)]!r} is missing")
            return [None if value is ABSENT else value for value in values], options
        if len(values) > len(self.positions):
            raise self._error(f"it takes {len(self.positions)} arguments")
        named = {name: value for name, value in zip(self.positions, values, strict=False) if value is not ABSENT}
        if options and named.keys() & options.keys():
            raise self._error(f"{min(named.keys() & options.keys())!r} is given twice, by position and as an option")
        named |= options
        for name in self.positions[: self.required]:
            if name not in named:
                raise self._error(f"{name!r} is missing")
        return [], named

    def _takes_options(self, position: int) -> bool:
        return bool(self.options or self.any_option) and position not in self.open_positions

    def _error(self, what: str) -> InvalidError:
        return InvalidError(
            f"{self.name} cannot be called with these arguments: {what}", hint=f"It is {self.name}{self.text}"
        )

    @property
    def text(self) -> str:
        """The signature as a script is to call it, with the types of Python."""
        parts: list[str] = []
        kinds = inspect.Parameter
        for each in self.signature.parameters.values():
            if each.kind is kinds.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
                parts.append("*")
            stars = "*" * ((each.kind is kinds.VAR_POSITIONAL) + 2 * (each.kind is kinds.VAR_KEYWORD))
            annotation = "" if each.annotation is kinds.empty else f": {_ALIASES.get(each.annotation, each.annotation)}"
            default = "" if each.default is kinds.empty else f" = {_default_text(each.default)}"
            parts.append(f"{stars}{each.name}{annotation}{default}")
        result = str(self.signature.return_annotation)
        returned = "" if self.signature.return_annotation is kinds.empty else f" -> {_ALIASES.get(result, result)}"
        return f"({', '.join(parts)}){returned}".replace("[S]", "")


_ALIASES = {"S": "dict"}
"""What variables of types stand for."""


def _default_text(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else repr(default)


class RecordId(str):
    """A record that a script gave as an argument: the id stands for it. No value, so that none is stored by mistake."""

    __slots__ = ()


class _Absent:
    """An argument that a script left out, by nil or undefined."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class ScriptType:
    """A type of objects that scripts have: its functions, properties, and the objects inside it."""

    name: str
    python: type
    doc: str
    functions: Mapping[str, ScriptFunction] = field(default_factory=dict)
    properties: tuple[str, ...] = ()
    """Read by a call each time."""
    live: tuple[str, ...] = ()
    """Those whose entries a script may change."""
    members: Mapping[str, tuple[str, ScriptFunction | None]] = field(default_factory=dict)
    """Objects inside it: the type, and the function that returns it, if it takes arguments."""
    is_callable: bool = False


OPERATORS = ("Increment", "Append", "AddToSet", "Max")
"""What changes a value in `patch`, `update` and `update_field`."""


def type_names(name: str) -> dict[str, Any]:
    """Return the names of everything that objects of a type have, as the preludes of the languages take them."""
    declared = OBJECT_TYPES[name]
    return {
        "functions": sorted(_function_names(name)),
        "properties": declared.properties.split(),
        "live": declared.live.split(),
        "members": {
            member.removesuffix("()"): [kind, member.endswith("()")] for member, kind in _members(name).items()
        },
        "callable": declared.is_callable,
        "module": declared.module,
    }


def first_types(root: str) -> dict[str, Any]:
    """Return the names of the types that a script starts with: the store, and modules. It asks for others when it uses
    them, and only then are their parts of the package loaded."""
    return {name: type_names(name) for name, each in OBJECT_TYPES.items() if name == root or each.module}


def _function_names(name: str) -> set[str]:
    python, declared = python_class(name), OBJECT_TYPES[name]
    operations = {each for each in operations_of(python) if not _reason(python, each)}
    return {*operations, *declared.functions.split(), *declared.adapters}


def _members(name: str) -> dict[str, str]:
    """Return the types of objects inside those of a type, by name; with parentheses, if a function returns it. Does not
    load the classes of parts."""
    parts = {each: _BY_CLASS.get(part.class_name, "") for each, part in parts_of(python_class(name)).items()}
    return {**{each: kind for each, kind in parts.items() if kind}, **OBJECT_TYPES[name].members}


def _reason(python: type, name: str) -> str:
    declared = declaration_of(python, name)
    return "" if declared is None else declared.not_in_scripts


@cache
def script_type(name: str) -> ScriptType:
    """Return a type of objects that scripts have."""
    declared, python = OBJECT_TYPES[name], python_class(name)
    functions: dict[str, ScriptFunction] = {}
    for each in sorted(_function_names(name)):
        described, adapter = declared.adapters.get(each, (None, None))
        attribute = inspect.getattr_static(python, each) if described is None else described()
        functions[each] = _function(each, attribute, declared.omitted.get(each, ""), adapter)
    members: dict[str, tuple[str, ScriptFunction | None]] = {}
    for member, type_name in _members(name).items():
        each = member.removesuffix("()")
        omitted = declared.omitted.get(each, "schema")
        made = _function(each, inspect.getattr_static(python, each), omitted) if each != member else None
        members[each] = (type_name, made)
    return ScriptType(
        name,
        python,
        inspect.getdoc(python) or "",
        functions,
        tuple(declared.properties.split()),
        tuple(declared.live.split()),
        members,
        declared.is_callable,
    )


def type_name_of(kind: type) -> str:
    """Return the name of the type that objects of a class are for scripts; empty for those that are values."""
    name = _TYPE_NAMES.get(kind)
    if name is None:
        known = (_BY_CLASS.get(each.__name__) for each in kind.__mro__ if each.__module__.startswith("holdfast."))
        name = _TYPE_NAMES[kind] = next(filter(None, known), "")
    return name


_TYPE_NAMES: dict[type, str] = {}
_BY_CLASS = {each.python.rpartition(" ")[2]: name for name, each in OBJECT_TYPES.items()}


def excluded_names(name: str) -> Mapping[str, str]:
    """Return what an object of Python has and scripts do not, with the reasons."""
    python = python_class(name)
    operations = {each: reason for each in operations_of(python) if (reason := _reason(python, each))}
    parts = {each: class_declaration(part.load_class()).not_in_scripts for each, part in parts_of(python).items()}
    return {**operations, **{each: reason for each, reason in parts.items() if reason}, **OBJECT_TYPES[name].excluded}


@cache
def python_class(name: str) -> type:
    """Return the class of a type of objects that scripts have."""
    package, _, kind = OBJECT_TYPES[name].python.partition(" ")
    if package == "scripting":
        return Replay
    found: type = load(f"holdfast.{package}", kind) if package else object
    return found


def _function(name: str, attribute: Any, omitted: str, adapter: Adapter | None = None) -> ScriptFunction:
    function = inspect.unwrap(getattr(attribute, "__wrapped__", attribute))
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", *omitted.split())]
    rest, any_option = False, False
    by_position: list[inspect.Parameter] = []
    options: list[inspect.Parameter] = []
    for each in parameters:
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            rest = True
        elif each.kind is inspect.Parameter.VAR_KEYWORD:
            more = _unpacked(function, each)
            any_option = more is None
            options += more or []
        elif each.kind is inspect.Parameter.KEYWORD_ONLY:
            options.append(each)
        else:
            by_position.append(each)
    empty, only = inspect.Parameter.empty, inspect.Parameter.POSITIONAL_ONLY
    by_position_only = rest or any(each.kind is only for each in by_position)
    names = [*options, *(() if by_position_only else by_position)]
    return ScriptFunction(
        name,
        signature.replace(parameters=_shown(parameters, options)),
        inspect.getdoc(function) or "",
        adapter,
        tuple(each.name for each in by_position),
        sum(each.default is empty for each in by_position),
        frozenset(number for number, each in enumerate(by_position) if _may_be_dict(str(each.annotation))),
        frozenset(each.name for each in names),
        by_position_only,
        any_option,
    )


def _may_be_dict(annotation: str) -> bool:
    return "Any" in annotation or "Mapping" in annotation or annotation in ("S", "<class 'inspect._empty'>")


def _shown(parameters: list[inspect.Parameter], options: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters with those of a TypedDict in place of `**fields`."""
    first = [
        each for each in parameters if each.kind not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    ]
    last = [] if any(options) else [each for each in parameters if each.kind is inspect.Parameter.VAR_KEYWORD]
    return [*first, *options, *last]


def _unpacked(function: Any, parameter: inspect.Parameter) -> list[inspect.Parameter] | None:
    """Return the parameters that `**fields: Unpack[Fields]` stands for; None if any are taken."""
    text = str(parameter.annotation)
    if not text.startswith("Unpack["):
        return None
    name = text.removeprefix("Unpack[").removesuffix("]")
    fields = _typed_dict(function, name)
    return [
        inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, annotation=_text(annotation))
        for each, annotation in fields.__annotations__.items()
        if each != "kind" or name != "AttachOptions"
    ]


def _typed_dict(function: Any, name: str) -> type:
    found = function.__globals__.get(name)
    if found is None:  # it is imported for type checkers only
        from holdfast.maintenance.retention import RetentionRules
        from holdfast.store.checkpoint_fields import CheckpointFields

        found = {"CheckpointFields": CheckpointFields, "RetentionRules": RetentionRules}[name]
    if not is_typeddict(found):
        raise TypeError(f"{name} is not a TypedDict")
    kind: type = found
    return kind


def _text(annotation: Any) -> str:
    return annotation.__forward_arg__ if hasattr(annotation, "__forward_arg__") else str(annotation)
