"""Definitions: types as trees of plain JSON, their canonical form, and its hash.

A node is a dict with a `type`::

    any null bool int float str bytes datetime date time timedelta decimal uuid path complex message
    {"type": "literal", "values": […]}                      {"type": "enum", "values": […]}
    {"type": "list" | "set" | "frozenset", "items": T}      {"type": "tuple", "items": [T, …]}, or one T for any length
    {"type": "map", "keys": T, "values": T}                 {"type": "union", "of": [T, …]}
    {"type": "record", "open": bool, "fields": {name: {"type": T, "required": bool}}}
    {"type": "instance", "class": "module:qualname"}        {"type": "schema", "ref": "plan@1.0.0"}
    {"type": "recursive", "of": T}                          {"type": "self", "levels": 0}: the recursive node so far out

Constraints are keys of JSON Schema (`minimum`, `maxLength`, `pattern` …). `title`, `description` and `default` are
notes for people: the canonical form is without them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

from holdfast.errors import HoldfastError, InvalidError, UnsupportedError
from holdfast.schemas.version import parse_reference

Node: TypeAlias = dict[str, Any]

SCALARS = (
    *("any", "null", "bool", "int", "float", "str", "bytes", "complex", "decimal", "uuid", "path"),
    *("datetime", "date", "time", "timedelta", "message"),
)
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
LIMITED: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[type, ...]], ...] = (
    (_NUMBERS, ("int", "float", "decimal"), (int, float)),
    (("minLength", "maxLength"), ("str", "bytes"), (int, float)),
    (("pattern",), ("str",), (str,)),
    (("minItems", "maxItems"), ("list", "set", "frozenset", "tuple"), (int, float)),
    (("uniqueItems",), ("list", "tuple"), (bool,)),
    (("minProperties", "maxProperties"), ("map", "record"), (int, float)),
)
"""Constraints, the types that they mean something for, and the classes of their values."""

CONSTRAINTS = tuple(key for keys, _, _ in LIMITED for key in keys)
NOTES = frozenset({"title", "description", "default"})

ANY: Node = {"type": "any"}
NULL: Node = {"type": "null"}

MAX_NODES = 10_000
MAX_DEPTH = 64


def encode(value: Any) -> str:
    """Return JSON in one form: keys in order, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(node: Node) -> Node:
    """Return the canonical form: without notes and defaults, with unions flat and in order."""
    return _Canonical().node(node, 0)


def structural_hash(form: Node) -> str:
    """Return the hash of a canonical form: SHA-256 of its JSON, in hexadecimal."""
    return hashlib.sha256(b"holdfast schema 1\n" + encode(form).encode("utf-8", "surrogatepass")).hexdigest()


class _Canonical:
    """Walks a definition, and checks it on the way: it may come from a file."""

    def __init__(self) -> None:
        self._nodes = 0

    def node(self, node: Any, binders: int, depth: int = 0) -> Node:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise UnsupportedError(
                f"a schema has more than {MAX_NODES:,} parts, or is nested more than {MAX_DEPTH} deep",
                hint="Split it into schemas that refer to each other, or use a type that refers to itself",
                code="schema-unsupported",
            )
        kind = node.get("type") if isinstance(node, dict) else None
        if not isinstance(kind, str):
            raise self._invalid(node)
        result: Node = {"type": kind}
        result |= self._limits(kind, node)
        if kind in SCALARS:
            return result

        def inner(each: Any, more: int = 0) -> Node:
            return self.node(each, binders + more, depth + 1)

        try:
            match kind:
                case "literal" | "enum":
                    result["values"] = sorted(map(_plain, node["values"]), key=_value_order)
                    if not result["values"]:
                        raise self._invalid(node)
                case "list" | "set" | "frozenset":
                    result["items"] = inner(node["items"])
                case "tuple":
                    items = node["items"]
                    result["items"] = [inner(each) for each in items] if isinstance(items, list) else inner(items)
                case "map":
                    result |= {"keys": inner(node["keys"]), "values": inner(node["values"])}
                case "union":
                    return self._union([inner(each) for each in node["of"]])
                case "record":
                    result["open"] = bool(node.get("open", True))
                    result["fields"] = {
                        name: {"type": inner(field["type"]), "required": bool(field["required"])}
                        for name, field in sorted(node["fields"].items())
                    }
                case "instance":
                    result["class"] = str(node["class"])
                case "schema":
                    name, version = parse_reference(node["ref"])
                    if version is None:
                        raise self._invalid(node)
                    result["ref"] = f"{name}@{version}"
                case "recursive":
                    result["of"] = inner(node["of"], 1)
                case "self":
                    result["levels"] = levels = node["levels"]
                    if type(levels) is not int or not 0 <= levels < binders:
                        raise self._invalid(node)
                case _:
                    raise self._invalid(node)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, HoldfastError):
                raise
            raise self._invalid(node) from error
        return result

    def _union(self, members: list[Node]) -> Node:
        flat: dict[str, Node] = {}
        for member in members:
            for each in member["of"] if member["type"] == "union" else [member]:
                flat[encode(each)] = each
        if encode(ANY) in flat:
            return dict(ANY)
        literals = [each for each in flat.values() if each["type"] == "literal"]
        if len(literals) > 1:
            for each in literals:
                del flat[encode(each)]
            joined = {_value_order(value): value for each in literals for value in each["values"]}
            one: Node = {"type": "literal", "values": [joined[key] for key in sorted(joined)]}
            flat[encode(one)] = one
        if len(flat) == 1:
            return next(iter(flat.values()))
        return {"type": "union", "of": [flat[key] for key in sorted(flat)]}

    def _limits(self, kind: str, node: Node) -> Node:
        """Return the constraints that mean something for this type."""
        found: Node = {}
        for keys, kinds, classes in LIMITED:
            for key in keys if kind in kinds else ():
                value = node.get(key)
                if value is None or (key == "uniqueItems" and not value):
                    continue
                if type(value) not in classes or (keys is not _NUMBERS and type(value) is int and value < 0):
                    raise self._invalid({"type": kind, key: value})
                if value != value or value in (float("inf"), float("-inf")) or (key == "multipleOf" and value <= 0):
                    raise self._invalid({"type": kind, key: value})
                found[key] = int(value) if type(value) is float and value.is_integer() else value
        return found

    @staticmethod
    def _invalid(node: object) -> InvalidError:
        return InvalidError("this is not the definition of a schema", where=repr(node)[:120])


def _value_order(value: Any) -> tuple[str, str]:
    return type(value).__name__, encode(value)


def _plain(value: Any) -> Any:
    """Require a value of a literal: text, a number, bool or None."""
    if value is not None and type(value) not in (str, int, float, bool):
        raise TypeError(type(value).__name__)
    return value


def bind(node: Node) -> Node:
    """Replace the targets of recursive references by how many recursive nodes out they are."""
    bound: Node = _bind(node, ())
    return bound


def _bind(node: Any, targets: tuple[int, ...]) -> Any:
    if isinstance(node, list):
        return [_bind(each, targets) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "self" and "target" in node:
        return {"type": "self", "levels": targets[::-1].index(node["target"])}
    if node.get("type") == "recursive" and "target" in node:
        return {"type": "recursive", "of": _bind(node["of"], (*targets, node["target"]))}
    return {key: value if key in NOTES else _bind(value, targets) for key, value in node.items()}


def unfold(node: Node) -> Node:
    """Return the content of a recursive node, with the node in place of references to it. Other nodes as they are."""
    while node["type"] == "recursive":
        node = _substitute(node["of"], node, 0)
    return node


def _substitute(node: Any, target: Node, level: int) -> Any:
    if node["type"] == "self":
        return target if node["levels"] == level else node
    return map_children(node, lambda child: _substitute(child, target, level + (node["type"] == "recursive")))


def map_children(node: Node, function: Callable[[Node], Node]) -> Node:
    """Return a node with a function applied to the nodes directly in it."""
    match node["type"]:
        case "list" | "set" | "frozenset":
            return {**node, "items": function(node["items"])}
        case "tuple":
            items = node["items"]
            return {**node, "items": [function(each) for each in items] if isinstance(items, list) else function(items)}
        case "map":
            return {**node, "keys": function(node["keys"]), "values": function(node["values"])}
        case "union":
            return {**node, "of": [function(each) for each in node["of"]]}
        case "record":
            fields = {name: {**field, "type": function(field["type"])} for name, field in node["fields"].items()}
            return {**node, "fields": fields}
        case "recursive":
            return {**node, "of": function(node["of"])}
        case _:
            return node


def children(node: Node) -> Iterator[tuple[str, Node]]:
    """Iterate over the nodes directly in a node, each with its part of a path."""
    match node["type"]:
        case "list" | "set" | "frozenset":
            yield "[]", node["items"]
        case "tuple":
            items = node["items"]
            yield from (
                ((f"[{place}]", each) for place, each in enumerate(items))
                if isinstance(items, list)
                else [("[]", items)]
            )
        case "map":
            yield from (("{}", node["keys"]), ("[]", node["values"]))
        case "union":
            yield from (("", each) for each in node["of"])
        case "record":
            yield from ((f".{name}", field["type"]) for name, field in node["fields"].items())
        case "recursive":
            yield "", node["of"]


def references(node: Node) -> set[str]:
    """Return the schemas that a definition refers to, as `plan@1.0.0`."""
    if node["type"] == "schema":
        return {node["ref"]}
    return {ref for _, child in children(node) for ref in references(child)}


def require_finite(node: Node, name: str) -> None:
    """Refuse a schema that no finite value fits, because it contains itself everywhere."""
    if not _is_finite(node, ()):
        raise InvalidError(
            f"the schema {name} recurses without end: each value would have to contain another one",
            where=name,
            hint="Make the field that refers back optional, or a list",
            code="schema-recursion",
        )
    _refuse_bare(node, name)


def _is_finite(node: Node, bound: tuple[bool, ...]) -> bool:
    match node["type"]:
        case "self":
            levels: int = node["levels"]
            return bound[-1 - levels]
        case "recursive":
            return _is_finite(node["of"], (*bound, False))
        case "union":
            return any(_is_finite(each, bound) for each in node["of"])
        case "record":
            return all(_is_finite(field["type"], bound) for field in node["fields"].values() if field["required"])
        case "tuple" if isinstance(node["items"], list):
            return all(_is_finite(each, bound) for each in node["items"])
        case "list" | "set" | "frozenset":
            return not node.get("minItems") or _is_finite(node["items"], bound)
        case _:
            return True


def _refuse_bare(node: Node, name: str) -> None:
    """Refuse a recursive node that is a choice of itself: it says nothing."""
    if node["type"] == "recursive":
        inner = node["of"]
        if any(
            each["type"] in ("self", "recursive") for each in (inner["of"] if inner["type"] == "union" else [inner])
        ):
            raise InvalidError(
                f"the schema {name} recurses without anything between",
                where=name,
                hint="Put the reference into a field, a list or a dict",
                code="schema-recursion",
            )
    for _, child in children(node):
        _refuse_bare(child, name)


@lru_cache(256)
def describe_type(text: str) -> str:
    """Return a short text for a node, given as JSON: `list[str] | None`."""
    return _describe(json.loads(text))


def type_text(node: Node) -> str:
    """Return a short text for a node, as Python would write it."""
    return describe_type(encode({key: value for key, value in node.items() if key not in NOTES}))


def _describe(node: Node) -> str:
    kind = node["type"]
    limits = ", ".join(f"{key} {node[key]}" for key in CONSTRAINTS if key in node)
    match kind:
        case "null":
            text = "None"
        case "literal" | "enum":
            text = f"{kind.capitalize()}[{', '.join(map(repr, node['values']))}]"
        case "list" | "set" | "frozenset":
            text = f"{kind}[{_describe(node['items'])}]"
        case "tuple":
            items = node["items"]
            inside = ", ".join(map(_describe, items)) if isinstance(items, list) else f"{_describe(items)}, …"
            text = f"tuple[{inside}]"
        case "map":
            text = f"dict[{_describe(node['keys'])}, {_describe(node['values'])}]"
        case "union":
            members = [each for each in node["of"] if each["type"] != "null"]
            text = " | ".join([*map(_describe, members), *(["None"] if len(members) < len(node["of"]) else [])])
        case "record":
            fields = ", ".join(
                f"{name}{'' if field['required'] else '?'}: {_describe(field['type'])}"
                for name, field in node["fields"].items()
            )
            text = f"{{{fields}}}"
        case "instance":
            text = node["class"].rpartition(":")[2]
        case "schema":
            text = node["ref"]
        case "recursive":
            text = _describe(node["of"])
        case "self":
            text = "…"
        case _:
            text = kind
    return f"{text} ({limits})" if limits else text
