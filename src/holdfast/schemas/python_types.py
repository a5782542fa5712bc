"""Definitions from Python's types: TypedDicts, dataclasses, attrs classes, msgspec structs, pydantic models."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import sys
import types
import typing
import uuid
from collections import abc, deque
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from holdfast.engine.model.missing import MISSING
from holdfast.errors import InvalidError, UnsupportedError
from holdfast.schemas.definition import ANY, Node, bind

_SCALARS: dict[Any, str] = {
    Any: "any",
    object: "any",
    None: "null",
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    bytearray: "bytes",
    complex: "complex",
    decimal.Decimal: "decimal",
    uuid.UUID: "uuid",
    dt.datetime: "datetime",
    dt.date: "date",
    dt.time: "time",
    dt.timedelta: "timedelta",
    pathlib.Path: "path",
    pathlib.PurePath: "path",
}
_LISTS = (list, abc.MutableSequence, deque)
_SEQUENCES = (abc.Sequence, abc.Collection, abc.Iterable)
_MAPS = (dict, abc.Mapping, abc.MutableMapping)
_SETS = (set, abc.Set, abc.MutableSet)

_OPAQUE = ("langchain", "langchain_core", "langgraph", "numpy", "pandas")
"""Packages whose classes are not taken apart: their fields belong to a release of the package, not to the schema."""

_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_BOUNDS |= {"multiple_of": "multipleOf", "pattern": "pattern", "regex": "pattern"}


def from_python(source: Any, name: str) -> Node:
    """Return the definition of a Python type. Raises `UnsupportedError` for what a schema cannot describe."""
    node = bind(_Builder(name).node(source, name))
    top = node["of"] if node["type"] == "recursive" else node
    if top["type"] == "record" and not _forbids_extra(source):
        top["open"] = True  # a state is a dict of channels, whatever declares them
    return node


class _Builder:
    def __init__(self, name: str) -> None:
        self._name = name
        self._open: dict[Any, list[int]] = {}
        """The classes whose fields are being read, each with its number and how often it refers to itself."""

    def node(self, kind: Any, where: str) -> Node:
        """Return the node of a type."""
        if isinstance(kind, typing.ForwardRef):
            kind = kind.__forward_arg__
        if isinstance(kind, str):
            raise self._unsupported(kind, where, "Define the classes at the top of a module, so that names are found")
        if isinstance(kind, typing.NewType):
            return self.node(kind.__supertype__, where)
        if isinstance(kind, typing.TypeVar):
            bound = getattr(kind, "__bound__", None)
            return dict(ANY) if bound is None else self.node(bound, where)
        if hasattr(kind, "__value__") and type(kind).__name__ == "TypeAliasType":
            return self._recursive(kind, lambda: self.node(kind.__value__, where))
        origin = get_origin(kind)
        if origin is None:
            return self._plain(kind, where)
        return self._generic(kind, origin, get_args(kind), where)

    def _plain(self, kind: Any, where: str) -> Node:
        try:
            scalar = _SCALARS.get(kind)
        except TypeError:
            scalar = None
        if scalar is not None:
            return {"type": scalar}
        bare: tuple[tuple[tuple[Any, ...], Node], ...] = (
            (_LISTS, {"type": "list", "items": ANY}),
            (_SEQUENCES, _list_or_tuple(ANY)),
            (_MAPS, {"type": "map", "keys": ANY, "values": ANY}),
            (_SETS, {"type": "set", "items": ANY}),
            ((frozenset,), {"type": "frozenset", "items": ANY}),
            ((tuple,), {"type": "tuple", "items": ANY}),
        )
        for classes, node in bare:
            if kind in classes:
                return node
        if not isinstance(kind, type):
            raise self._unsupported(
                kind, where, "Use a type such as str, list[int], a TypedDict, a dataclass or a model"
            )
        if is_message(kind):
            return {"type": "message"}
        if issubclass(kind, enum.Enum):
            return {"type": "enum", "values": [self._literal(each.value, where) for each in kind]}
        opaque = kind.__module__.partition(".")[0] in _OPAQUE and not _is_typed_dict(kind)
        read = None if opaque else self._reader(kind)
        if read is not None:
            return self._recursive(kind, lambda: read(kind, where))
        for base, scalar in ((pathlib.PurePath, "path"), (str, "str"), (int, "int"), (float, "float")):
            if issubclass(kind, base):
                return {"type": scalar}
        return {"type": "instance", "class": f"{kind.__module__}:{kind.__qualname__}"}

    def _generic(self, kind: Any, origin: Any, arguments: tuple[Any, ...], where: str) -> Node:
        if origin is Annotated:
            return self._annotated(arguments[0], arguments[1:], where)
        if origin in (Union, types.UnionType):
            return {"type": "union", "of": [self.node(each, where) for each in arguments]}
        if origin is Literal:
            return {"type": "literal", "values": [self._literal(each, where) for each in arguments]}
        if str(origin).rpartition(".")[2] in ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar"):
            return self.node(arguments[0], where)
        if origin is tuple:
            if len(arguments) == 2 and arguments[1] is Ellipsis:
                return {"type": "tuple", "items": self.node(arguments[0], f"{where}[]")}
            return {"type": "tuple", "items": [self.node(each, f"{where}[{i}]") for i, each in enumerate(arguments)]}
        if origin in _MAPS or (isinstance(origin, type) and issubclass(origin, dict) and len(arguments) == 2):
            keys, values = arguments
            return {"type": "map", "keys": self.node(keys, f"{where}{{}}"), "values": self.node(values, f"{where}[]")}
        for classes, name in ((_LISTS, "list"), (_SETS, "set"), ((frozenset,), "frozenset")):
            if origin in classes:
                return {"type": name, "items": self.node(arguments[0], f"{where}[]")}
        if origin in _SEQUENCES:
            return _list_or_tuple(self.node(arguments[0], f"{where}[]"))
        if hasattr(kind, "__value__"):
            return self.node(kind.__value__, where)
        read = self._reader(origin) if isinstance(origin, type) else None
        if read is not None:
            return self._recursive(kind, lambda: read(kind, where))
        if origin is type or (isinstance(origin, type) and issubclass(origin, abc.Callable)):  # type: ignore[arg-type]
            raise self._unsupported(kind, where, "A state holds data: keep functions and classes out of it")
        return self.node(origin, where)

    def _annotated(self, kind: Any, metadata: tuple[Any, ...], where: str) -> Node:
        for each in metadata:
            reference = getattr(each, "schema_reference", None)
            if isinstance(reference, str):
                return {"type": "schema", "ref": reference}
        node = self.node(kind, where)
        for each in metadata:  # a reducer of LangGraph is a function, and says nothing about the form
            node = _constrain(node, each)
        return node

    def _recursive(self, kind: Any, read: Any) -> Node:
        entry = self._open.get(kind)
        if entry is not None:
            entry[1] += 1
            return {"type": "self", "target": entry[0]}
        number = len(self._open)
        self._open[kind] = entry = [number, 0]
        try:
            node: Node = read()
        finally:
            del self._open[kind]
        return {"type": "recursive", "target": number, "of": node} if entry[1] else node

    # Classes with fields

    def _reader(self, kind: type) -> Any:
        if hasattr(kind, "__pydantic_fields__") or hasattr(kind, "model_fields"):
            return self._pydantic
        if dataclasses.is_dataclass(kind):
            return self._dataclass
        if hasattr(kind, "__attrs_attrs__"):
            return self._attrs
        if hasattr(kind, "__struct_fields__"):
            return self._struct
        if _is_typed_dict(kind):
            return self._typed_dict
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named_tuple
        return None

    def _typed_dict(self, kind: Any, where: str) -> Node:
        cls = get_origin(kind) or kind
        required = cls.__required_keys__
        fields = {}
        for name, hint in self._hints(cls, where).items():
            is_required = name in required
            while str(get_origin(hint)).rpartition(".")[2] in ("Required", "NotRequired", "ReadOnly"):
                qualifier = str(get_origin(hint)).rpartition(".")[2]
                is_required = is_required if qualifier == "ReadOnly" else qualifier == "Required"
                (hint,) = get_args(hint)
            fields[name] = self._field(hint, where, name, required=is_required)
        return {"type": "record", "open": not getattr(cls, "__closed__", None), "fields": fields}

    def _dataclass(self, kind: Any, where: str) -> Node:
        cls = get_origin(kind) or kind
        hints = self._hints(cls, where)
        fields = {}
        for each in dataclasses.fields(cls):
            default = MISSING if each.default is dataclasses.MISSING else each.default
            required = default is MISSING and each.default_factory is dataclasses.MISSING
            fields[each.name] = self._field(hints[each.name], where, each.name, required=required, default=default)
        return {"type": "record", "open": False, "fields": fields}

    def _attrs(self, kind: Any, where: str) -> Node:
        cls = get_origin(kind) or kind
        hints = self._hints(cls, where)
        nothing = sys.modules["attr"].NOTHING
        fields = {}
        for each in cls.__attrs_attrs__:
            default = MISSING if each.default is nothing or hasattr(each.default, "factory") else each.default
            hint = hints.get(each.name, Any)
            fields[each.name] = self._field(hint, where, each.name, required=each.default is nothing, default=default)
        return {"type": "record", "open": False, "fields": fields}

    def _struct(self, kind: Any, where: str) -> Node:
        import msgspec

        cls = get_origin(kind) or kind
        hints = self._hints(cls, where)
        fields = {}
        for each in msgspec.structs.fields(cls):
            default = MISSING if each.default is msgspec.NODEFAULT else each.default
            fields[each.name] = self._field(hints[each.name], where, each.name, required=each.required, default=default)
        return {"type": "record", "open": False, "fields": fields}

    def _named_tuple(self, kind: Any, where: str) -> Node:
        hints = self._hints(kind, where)
        defaults = kind._field_defaults
        fields = {
            name: self._field(
                hints.get(name, Any), where, name, required=name not in defaults, default=defaults.get(name, MISSING)
            )
            for name in kind._fields
        }
        return {"type": "record", "open": False, "fields": fields}

    def _pydantic(self, kind: Any, where: str) -> Node:
        try:
            if not getattr(kind, "__pydantic_complete__", True):
                kind.model_rebuild()
            model_fields = kind.__pydantic_fields__ if hasattr(kind, "__pydantic_fields__") else kind.model_fields
        except Exception as error:  # pydantic raises its own kinds for names that it cannot find
            raise self._unsupported(kind, where, "Define the classes at the top of a module") from error
        extra = getattr(kind, "model_config", {}).get("extra")
        fields = {}
        for name, each in model_fields.items():
            required = each.is_required()
            factory = each.default_factory is not None
            default = MISSING if required or factory else each.default
            hint = Annotated[(each.annotation, *each.metadata)] if each.metadata else each.annotation
            field = self._field(hint, where, name, required=required, default=default)
            if each.description:
                field["description"] = each.description
            fields[name] = field
        if list(fields) == ["root"] and any(base.__name__ == "RootModel" for base in kind.__mro__):
            root: Node = fields["root"]["type"]
            return root
        return {"type": "record", "open": extra == "allow", "fields": fields}

    def _field(self, hint: Any, where: str, name: str, *, required: bool, default: Any = MISSING) -> Node:
        field: Node = {"type": self.node(hint, f"{where}.{name}"), "required": required}
        if _is_plain(default):
            field["default"] = default
        return field

    def _hints(self, cls: Any, where: str) -> dict[str, Any]:
        try:
            return typing.get_type_hints(cls, include_extras=True)
        except (NameError, AttributeError, TypeError) as error:
            raise self._unsupported(
                cls, where, f"Its annotations cannot be evaluated: {error}. Define them at the top of a module"
            ) from error

    def _literal(self, value: Any, where: str) -> Any:
        if isinstance(value, enum.Enum):
            value = value.value
        if not _is_plain(value):
            raise self._unsupported(value, where, "The values of a Literal or an Enum are text, numbers, bool or None")
        return value

    def _unsupported(self, kind: Any, where: str, hint: str) -> UnsupportedError:
        return UnsupportedError(
            f"a schema cannot describe {getattr(kind, '__qualname__', kind)!r}"[:200],
            where=where,
            hint=hint,
            code="schema-unsupported",
        )


def is_message(kind: type) -> bool:
    """Return whether a class is one of LangChain's messages."""
    return any(
        base.__name__ == "BaseMessage" and base.__module__.startswith("langchain_core.") for base in kind.__mro__
    )


def _is_typed_dict(kind: type) -> bool:
    return type(kind).__name__ == "_TypedDictMeta"


def _constrain(node: Node, metadata: Any) -> Node:
    """Return a node with the constraints of a piece of metadata; those of `int | None` are those of the `int`."""
    if node["type"] == "union":
        return {**node, "of": [_constrain(each, metadata) for each in node["of"]]}
    return {**node, **_constraints(metadata, node)}


def _constraints(metadata: Any, node: Node) -> Node:
    """Return the constraints that a piece of metadata sets, as keys of JSON Schema."""
    nested = getattr(metadata, "metadata", None)
    found: Node = {}
    if isinstance(nested, list | tuple) and type(metadata).__name__ == "FieldInfo":
        for each in nested:
            found |= _constraints(each, node)
        return found
    if isinstance(metadata, type) or callable(metadata):
        return found
    for attribute, key in _BOUNDS.items():
        value = getattr(metadata, attribute, None)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            found[key] = value
    sized = node["type"] in ("list", "set", "frozenset", "tuple", "map")
    for attribute, edge in (("min_length", "min"), ("max_length", "max")):
        value = getattr(metadata, attribute, None)
        if isinstance(value, int) and (value or edge == "max"):
            noun = "Properties" if node["type"] == "map" else "Items" if sized else "Length"
            found[edge + noun] = value
    return found


def _list_or_tuple(items: Node) -> Node:
    return {"type": "union", "of": [{"type": "list", "items": items}, {"type": "tuple", "items": items}]}


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (str, int, bool) or (type(value) is float and value == value)


def _forbids_extra(source: Any) -> bool:
    config = getattr(source, "model_config", None)
    return isinstance(config, dict) and config.get("extra") == "forbid"


def require_source(source: Any) -> None:
    """Refuse an instance where a class is needed, which is easily mixed up."""
    if dataclasses.is_dataclass(source) and not isinstance(source, type):
        raise InvalidError(
            f"a schema is taken from a class, not from an instance of {type(source).__qualname__}",
            hint="Give the class itself",
        )
