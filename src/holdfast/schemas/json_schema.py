"""Definitions from JSON Schema, and JSON Schema from definitions.

The part of JSON Schema that says what a value looks like is understood: `type`, `properties`, `required`,
`additionalProperties`, `items`, `prefixItems`, `enum`, `const`, `anyOf`, `oneOf`, `$ref` and `$defs`, and bounds. A
keyword beyond that, such as `if` or `not`, is refused: a schema that is checked by half is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from holdfast.errors import HoldfastError, InvalidError, UnsupportedError
from holdfast.schemas.definition import ANY, CONSTRAINTS, NULL, Node, bind

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
    "int": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "float": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "str": ("minLength", "maxLength", "pattern"),
    "list": ("minItems", "maxItems", "uniqueItems"),
    "tuple": ("minItems", "maxItems", "uniqueItems"),
    "map": ("minProperties", "maxProperties"),
    "record": ("minProperties", "maxProperties"),
}

REFERENCE = "holdfast:"
"""The start of a `$ref` to another schema: `holdfast:plan@1.0.0`."""


def from_json_schema(document: Mapping[str, Any] | bool, name: str) -> Node:
    """Return the definition of a JSON Schema. Raises `UnsupportedError` for keywords that are not understood."""
    try:
        return bind(_Reader(document, name).read(document, "#"))
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        if isinstance(error, HoldfastError):
            raise
        raise InvalidError("this is no JSON Schema", where=name) from error


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
            raise InvalidError("this is no JSON Schema", where=f"{self._name}, {at}")
        unknown = sorted(str(key) for key in schema if key not in _KNOWN | _IGNORED and not str(key).startswith("x-"))
        if unknown:
            raise self._unsupported(f"the keyword {unknown[0]!r}", at)
        node = self._shape(schema, at)
        if schema.get("nullable"):
            node = {"type": "union", "of": [node, dict(NULL)]}
        return node

    def _shape(self, schema: Mapping[str, Any], at: str) -> Node:
        if "$ref" in schema:
            return self._reference(schema["$ref"], at)
        if "const" in schema:
            return {"type": "literal", "values": [self._plain(schema["const"], at)]}
        if "enum" in schema:
            return {"type": "literal", "values": [self._plain(each, at) for each in schema["enum"]]}
        for key in ("anyOf", "oneOf"):
            if key in schema:
                if not isinstance(schema[key], list) or not schema[key]:
                    raise InvalidError(f"{key} is a list of schemas", where=f"{self._name}, {at}")
                choices = [self.read(each, f"{at}/{key}/{place}") for place, each in enumerate(schema[key])]
                return {"type": "union", "of": choices}
        if "allOf" in schema:
            if len(schema["allOf"]) != 1:
                raise self._unsupported("allOf of several schemas", at)
            return self.read(schema["allOf"][0], f"{at}/allOf/0")
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return {"type": "union", "of": [self._typed(each, schema, at) for each in kinds]}
        if kinds is None:
            kinds = (
                "object" if "properties" in schema else "array" if {"items", "prefixItems"} & schema.keys() else None
            )
        return dict(ANY) if kinds is None else self._typed(kinds, schema, at)

    def _typed(self, kind: Any, schema: Mapping[str, Any], at: str) -> Node:
        if kind == "object":
            node = self._object(schema, at)
        elif kind == "array":
            node = self._array(schema, at)
        elif kind in _SIMPLE:
            node = {"type": _SIMPLE[kind]}
            if kind == "string" and schema.get("format") in _FORMATS:
                return {"type": "union", "of": [node, {"type": _FORMATS[schema["format"]]}]}
        else:
            raise InvalidError(f"JSON has no type {kind!r}", where=f"{self._name}, {at}")
        return node | {key: schema[key] for key in _LIMITS.get(node["type"], ()) if key in schema}

    def _object(self, schema: Mapping[str, Any], at: str) -> Node:
        rest = schema.get("additionalProperties", True)
        properties = schema.get("properties")
        if properties is None:
            keys = self.read(schema["propertyNames"], f"{at}/propertyNames") if "propertyNames" in schema else None
            values = self.read(rest, f"{at}/additionalProperties") if rest is not False else dict(NULL)
            if rest is False:
                return {"type": "record", "open": False, "fields": {}}
            return {"type": "map", "keys": keys or {"type": "str"}, "values": values}
        if not isinstance(rest, bool):
            raise self._unsupported("properties together with a schema for additionalProperties", at)
        required = schema.get("required", ())
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
            raise InvalidError("$ref is text", where=f"{self._name}, {at}")
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
                raise InvalidError(f"$ref leads nowhere: {reference}", where=f"{self._name}, {at}") from None
        return self.read(target, reference)

    def _plain(self, value: Any, at: str) -> Any:
        if value is not None and type(value) not in (str, int, float, bool):
            raise self._unsupported("a list or an object in enum or const", at)
        return value

    def _unsupported(self, what: str, at: str) -> UnsupportedError:
        return UnsupportedError(
            f"{what} in a JSON Schema is not supported",
            where=f"{self._name}, {at}",
            hint="Describe the form of the data; check rules beyond that in the application",
            code="schema-unsupported",
        )


def _escape(key: str) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")
