"""Definitions from JSON Schema, and JSON Schema from definitions.

The part of JSON Schema that says what a value looks like is understood: `type`, `properties`, `required`,
`additionalProperties`, `items`, `prefixItems`, `enum`, `const`, `anyOf`, `oneOf`, `$ref` and `$defs`, and bounds. A
keyword beyond that, such as `if` or `not`, is refused, and so is a combination that could not be checked in full, such
as `$ref` beside `properties`: a schema that is checked by half is worse than none. Only annotations are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from holdfast.errors import HoldfastError, InvalidError, UnsupportedError
from holdfast.schemas.definition import ANY, CONSTRAINTS, LIMITED, NULL, Node, bind, canonical
from holdfast.schemas.validator import Validator

_NOTES = ("title", "description", "default")
_IGNORED = frozenset({*_NOTES, "$schema", "$id", "$comment", "examples", "deprecated", "readOnly", "writeOnly"})
_IGNORED |= {"$defs", "definitions", "discriminator", "contentMediaType", "contentEncoding"}
_KNOWN = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "prefixItems", "enum", "const"),
        *("anyOf", "oneOf", "allOf", "$ref", "format", "nullable", "propertyNames"),
        *CONSTRAINTS,
    }
)
_SIMPLE = {"null": "null", "boolean": "bool", "integer": "int", "number": "float", "string": "str"}
_FORMATS = {"date-time": "datetime", "date": "date", "time": "time", "duration": "timedelta", "uuid": "uuid"}
_LIMITS = {
    kind: [key for keys, kinds, _ in LIMITED if kind in kinds for key in keys]
    for kind in ("int", "float", "str", "list", "tuple", "map", "record")
}

_CHOICES = ("$ref", "anyOf", "oneOf", "allOf")
_OBJECT_KEYWORDS = frozenset({"properties", "required", "additionalProperties", "propertyNames"})
_ARRAY_KEYWORDS = frozenset({"items", "prefixItems"})
_KINDS = {"object": ("record", "map"), "array": ("list", "tuple"), "number": ("float", "int"), "string": ("str",)}

REFERENCE = "holdfast:"
"""The start of a `$ref` to another schema: `holdfast:plan@1.0.0`."""


def from_json_schema(document: Mapping[str, Any] | bool, name: str) -> Node:
    """Return the definition of a JSON Schema. Raises `UnsupportedError` for keywords that are not understood."""
    try:
        return bind(_Reader(document, name).read(document, "#"))
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        if isinstance(error, HoldfastError):
            raise
        raise InvalidError("this is not a JSON Schema", where=name) from error


class _Reader:
    def __init__(self, document: Any, name: str) -> None:
        self._document = document
        self._name = name
        self._open: dict[str, list[int]] = {}

    def read(self, schema: Any, at: str) -> Node:
        """Return the node of a schema at a JSON Pointer. One that is referred to from inside becomes recursive."""
        entry = self._open.get(at)
        if entry is not None:
            entry[1] += 1
            return {"type": "self", "target": entry[0]}
        number = len(self._open)
        self._open[at] = entry = [number, 0]
        try:
            node = self._read(schema, at)
        finally:
            del self._open[at]
        return {"type": "recursive", "target": number, "of": node} if entry[1] else node

    def _read(self, schema: Any, at: str) -> Node:
        if schema is True:
            return dict(ANY)
        if not isinstance(schema, Mapping):
            raise InvalidError("this is not a JSON Schema", where=f"{self._name}, {at}")
        unknown = sorted(str(key) for key in schema if key not in _KNOWN | _IGNORED and not str(key).startswith("x-"))
        if unknown:
            raise self._unsupported(f"the keyword {unknown[0]!r}", at)
        node = self._shape(schema, at)
        if schema.get("nullable"):
            node = {"type": "union", "of": [node, dict(NULL)]}
        return node

    def _shape(self, schema: Mapping[str, Any], at: str) -> Node:
        for key in _CHOICES:
            if key in schema:
                return self._chosen(key, schema, at)
        if "const" in schema or "enum" in schema:
            return self._values(schema, at)
        return self._plain_shape(schema, at)

    def _plain_shape(self, schema: Mapping[str, Any], at: str) -> Node:
        """Return the node of a schema that is no choice. Without a type, bounds hold for the values they apply to."""
        kinds = schema.get("type")
        if kinds is None and _OBJECT_KEYWORDS & schema.keys():
            kinds = "object"
        elif kinds is None and _ARRAY_KEYWORDS & schema.keys():
            kinds = "array"
        elif kinds is None and schema.keys() & set(CONSTRAINTS):
            kinds = ["null", "boolean", "number", "string", "array", "object"]
        if isinstance(kinds, list):
            if not kinds:
                raise InvalidError("type must be a name or a list of names", where=f"{self._name}, {at}")
            return {"type": "union", "of": [self._typed(each, schema, at) for each in kinds]}
        return dict(ANY) if kinds is None else self._typed(kinds, schema, at)

    def _chosen(self, key: str, schema: Mapping[str, Any], at: str) -> Node:
        """Return the node of a reference or a choice. Keywords beside it would be conditions on top of it."""
        if key == "$ref":
            node = self._reference(schema[key], at)
        else:
            members = schema[key]
            if not isinstance(members, list) or not members:
                raise InvalidError(f"{key} must be a list of schemas", where=f"{self._name}, {at}")
            if key == "allOf" and len(members) != 1:
                raise self._unsupported("allOf of several schemas", at)
            choices = [self.read(each, f"{at}/{key}/{place}") for place, each in enumerate(members)]
            if key == "oneOf" and not _are_disjoint(choices):
                raise self._unsupported("oneOf of schemas that one value may fit at a time", at, "Use anyOf")
            node = choices[0] if len(choices) == 1 else {"type": "union", "of": choices}
        beside = sorted(schema.keys() & _KNOWN - {key, "nullable", "format"})
        if beside == ["type"] and _has_kind(node, schema["type"]):
            return node
        if beside:
            raise self._unsupported(f"{key} together with {beside[0]}", at)
        return node

    def _values(self, schema: Mapping[str, Any], at: str) -> Node:
        """Return the values of `enum` and `const` that the other keywords accept."""
        listed = schema.get("enum", [schema["const"]] if "const" in schema else [])
        if not isinstance(listed, list):
            raise InvalidError("enum must be a list of values", where=f"{self._name}, {at}")
        values = [self._plain(each, at) for each in listed]
        if "const" in schema:
            only = self._plain(schema["const"], at)
            values = [each for each in values if type(each) is type(only) and each == only]
        # The values are scalars: what is said about items and properties does not concern them.
        about = {key: each for key, each in schema.items() if key == "type" or key in CONSTRAINTS}
        rest = Validator(canonical(self._plain_shape(about, at)))
        fitting = [each for each in values if not rest.check(each)]
        if not fitting:
            raise InvalidError("no value fits this JSON Schema", where=f"{self._name}, {at}")
        return {"type": "literal", "values": fitting}

    def _typed(self, kind: Any, schema: Mapping[str, Any], at: str) -> Node:
        if kind == "object":
            node = self._object(schema, at)
        elif kind == "array":
            node = self._array(schema, at)
        elif kind in _SIMPLE:
            node = {"type": _SIMPLE[kind]}
        else:
            raise InvalidError(f"JSON has no type {kind!r}", where=f"{self._name}, {at}")
        node |= {key: schema[key] for key in _LIMITS.get(node["type"], ()) if key in schema}
        if kind == "string" and schema.get("format") in _FORMATS:
            return {"type": "union", "of": [node, {"type": _FORMATS[schema["format"]]}]}
        return node

    def _object(self, schema: Mapping[str, Any], at: str) -> Node:
        rest = schema.get("additionalProperties", True)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
            raise InvalidError("required must be a list of names", where=f"{self._name}, {at}")
        if "properties" not in schema and not required and rest is not False:
            names = schema.get("propertyNames", {})
            if isinstance(names, Mapping) and not names.keys() & {"type", "enum", "const", *_CHOICES}:
                names = {**names, "type": "string"}
            keys = self.read(names, f"{at}/propertyNames")
            return {"type": "map", "keys": keys, "values": self.read(rest, f"{at}/additionalProperties")}
        for key, plain in (("additionalProperties", isinstance(rest, bool)), ("propertyNames", False)):
            if key in schema and not plain:
                raise self._unsupported(f"a schema for {key} together with properties or required", at)
        fields = {}
        for key, each in properties.items():
            field: Node = {"type": self.read(each, f"{at}/properties/{_escape(key)}"), "required": key in required}
            if isinstance(each, Mapping):
                field |= {note: each[note] for note in ("description", "default") if note in each}
            fields[key] = field
        for key in required:
            fields.setdefault(key, {"type": dict(ANY), "required": True})
        return {"type": "record", "open": rest, "fields": fields}

    def _array(self, schema: Mapping[str, Any], at: str) -> Node:
        if "prefixItems" in schema:
            if schema.get("items", False) is not False:
                raise self._unsupported("prefixItems together with items", at)
            items = [self.read(each, f"{at}/prefixItems/{place}") for place, each in enumerate(schema["prefixItems"])]
            return {"type": "tuple", "items": items}
        return {"type": "list", "items": self.read(schema.get("items", True), f"{at}/items")}

    def _reference(self, reference: Any, at: str) -> Node:
        if not isinstance(reference, str):
            raise InvalidError("$ref must be a string", where=f"{self._name}, {at}")
        if reference.startswith(REFERENCE):
            return {"type": "schema", "ref": reference.removeprefix(REFERENCE)}
        if not reference.startswith("#"):
            raise self._unsupported(f"a $ref to another document, {reference!r}", at)
        target = self._document
        for part in reference.removeprefix("#").split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(key)] if isinstance(target, list) else target[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise InvalidError(f"$ref points to nothing: {reference}", where=f"{self._name}, {at}") from None
        return self.read(target, reference)

    def _plain(self, value: Any, at: str) -> Any:
        if value is not None and type(value) not in (str, int, float, bool):
            raise self._unsupported("a list or an object in enum or const", at)
        return value

    def _unsupported(self, what: str, at: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(
            f"{what} in a JSON Schema is not supported",
            where=f"{self._name}, {at}",
            hint=hint or "Describe the form of the data; check rules beyond that in the application",
            code="schema-unsupported",
        )


def _escape(key: str) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _has_kind(node: Node, kind: object) -> bool:
    """Return whether all values of a node are of a type of JSON Schema."""
    wanted = {each for name in (kind if isinstance(kind, list) else [kind]) for each in _kinds_of(name)}
    return all(each["type"] in wanted for each in _members(node))


def _kinds_of(name: object) -> tuple[str, ...]:
    return _KINDS.get(str(name), (_SIMPLE.get(str(name), ""),))


def _members(node: Node) -> list[Node]:
    if node["type"] == "recursive":
        return _members(node["of"])
    return [each for member in node["of"] for each in _members(member)] if node["type"] == "union" else [node]


_DISJOINT = {"float": "number", "int": "number", "tuple": "list", "map": "record"}
_DISJOINT |= {kind: kind for kind in ("null", "bool", "str", "list", "record", "datetime", "date", "time")}
_DISJOINT |= {"timedelta": "timedelta", "uuid": "uuid"}
_OF_VALUE = {type(None): "null", bool: "bool", int: "number", float: "number", str: "str"}


def _are_disjoint(choices: list[Node]) -> bool:
    """Return whether it is certain that no value fits two of the choices."""
    return all(
        _exclude(one, other)
        for place, choice in enumerate(choices)
        for after in choices[place + 1 :]
        for one in _members(choice)
        for other in _members(after)
    )


def _exclude(one: Node, other: Node) -> bool:
    if one["type"] == other["type"] == "literal":
        return not {(type(each), each) for each in one["values"]} & {(type(each), each) for each in other["values"]}
    kinds, others = _value_kinds(one), _value_kinds(other)
    if kinds and others and not kinds & others:
        return True
    if not one["type"] == other["type"] == "record":
        return False
    fields, rest = one["fields"], other["fields"]
    return any(
        fields[name]["required"]
        and rest[name]["required"]
        and _are_disjoint([fields[name]["type"], rest[name]["type"]])
        for name in fields.keys() & rest.keys()
    )


def _value_kinds(node: Node) -> set[str]:
    """Return the kinds of values of a node; none, if it is not known."""
    if node["type"] == "literal":
        return {_OF_VALUE[type(value)] for value in node["values"]}
    return {_DISJOINT[node["type"]]} if node["type"] in _DISJOINT else set()
