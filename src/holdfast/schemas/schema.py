"""A schema: the form of a state, with a name and a version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from holdfast.engine.schema_bindings import ASIDE
from holdfast.errors import InvalidError
from holdfast.schemas.compatibility import Compatibility, compare
from holdfast.schemas.definition import Node, canonical, children, references, require_finite, structural_hash
from holdfast.schemas.json_schema import from_json_schema
from holdfast.schemas.python_types import from_python, require_source
from holdfast.schemas.validator import Problem, Validator, compile_pattern
from holdfast.schemas.version import Version, parse_reference, require_name

FORMAT: Final = 1


class Schema:
    """The form of a state at a version.

    `source` is a TypedDict (such as the state class of a LangGraph graph), a dataclass, a pydantic model, an attrs
    class, a msgspec struct, another type such as `list[int]`, or a JSON Schema as a dict. The schema of a state is a
    record of its channels; that of a key of a scope can be any type.
    """

    def __init__(self, name: str, version: str | Version, source: Any) -> None:
        self.name: Final = require_name(name)
        self.version: Final = Version.parse(version)
        if isinstance(source, Mapping | bool):
            definition = from_json_schema(source, self.name)
        else:
            require_source(source)
            definition = from_python(source, self.name)
        self.definition: Node = definition
        """The definition, with descriptions and defaults."""
        require_finite(self.canonical, self.name)
        _require_fields(self.canonical, self.name)
        _require_patterns(self.canonical)

    @classmethod
    def from_definition(cls, name: str, version: str | Version, definition: Node) -> Schema:
        """Return a schema from its definition, as a lock file or a store has it."""
        schema = cls.__new__(cls)
        schema.__dict__.update(name=require_name(name), version=Version.parse(version), definition=definition)
        require_finite(schema.canonical, name)
        return schema

    @cached_property
    def canonical(self) -> Node:
        """The canonical form, which the hash covers: without titles, descriptions, defaults and order."""
        return canonical(self.definition)

    @cached_property
    def hash(self) -> str:
        """The structural hash: equal for schemas of the same form, whatever they were declared with."""
        return structural_hash(self.canonical)

    @cached_property
    def schema_reference(self) -> str:
        """The name and the version, as in `chat@1.2.0`. `Annotated[Plan, plan]` makes a field refer to the schema."""
        return f"{self.name}@{self.version}"

    @property
    def references(self) -> set[str]:
        """The schemas that it refers to, as `plan@1.0.0`."""
        return references(self.canonical)

    def compare(self, newer: Schema, lookup: Callable[[str], Schema] | None = None) -> Compatibility:
        """Compare with a newer schema, field by field."""
        return compare(self.canonical, newer.canonical, _nodes(lookup))

    def validator(self, lookup: Callable[[str], Schema] | None = None) -> Validator:
        """Return a compiled validator. `lookup` returns the schemas that this one refers to."""
        return Validator(self.canonical, _nodes(lookup))

    @cached_property
    def _validator(self) -> Validator:
        return self.validator()

    def check(self, value: Any, changed: Iterable[str] | None = None, *, partial: bool = False) -> list[Problem]:
        """Return what does not fit about a value; nothing, if it fits.

        `changed` are the only fields to check. Of a `partial` state, required fields may be missing.
        """
        return self._validator.check(value, changed, partial=partial)

    def require(self, value: Any, changed: Iterable[str] | None = None) -> None:
        """Raise `InvalidError` if a value does not fit."""
        problems = self.check(value, changed)
        if problems:
            raise invalid_value(self.schema_reference, problems)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and (self.name, self.version, self.hash) == (
            other.name,
            other.version,
            other.hash,
        )

    def __hash__(self) -> int:
        return hash((self.name, self.version))

    def __repr__(self) -> str:
        return f"<Schema {self.schema_reference} {self.hash[:12]}>"


class SchemaReference:
    """A reference to a schema by name and version: `Annotated[dict, SchemaReference("plan@1.0.0")]`."""

    def __init__(self, reference: str) -> None:
        name, version = parse_reference(reference)
        if version is None:
            raise InvalidError(f"a reference has a version: {name}@1.0.0", where=reference)
        self.schema_reference: Final = f"{name}@{version}"


def as_schema(source: Any, name: str = "value") -> Schema:
    """Return a schema for values that have no versions: the given one, or that of a class, a type or a JSON Schema."""
    return source if isinstance(source, Schema) else Schema(name, "1.0.0", source)


def invalid_value(reference: str, problems: list[Problem]) -> InvalidError:
    """Return the error for a value that does not fit its schema."""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return InvalidError(
        f"the value does not fit the schema {reference}: {problems[0].reason}{more}",
        where=problems[0].path,
        hint="Correct the value, or declare a new version of the schema with a migration",
        code="schema-mismatch",
    )


def _nodes(lookup: Callable[[str], Schema] | None) -> Callable[[str], Node] | None:
    return None if lookup is None else lambda reference: lookup(reference).canonical


def _require_fields(node: Node, name: str) -> None:
    """Refuse a state with a field of the name that is reserved for what migrations keep aside."""
    while node["type"] == "recursive":
        node = node["of"]
    for each in node["of"] if node["type"] == "union" else [node]:
        if each["type"] == "record" and ASIDE in each["fields"]:
            raise InvalidError(
                f"the name {ASIDE!r} is reserved: it is for the values that migrations keep for a downgrade",
                where=name,
                hint="Give the field another name",
            )


def _require_patterns(node: Node) -> None:
    """Refuse patterns that are no regular expressions."""
    if "pattern" in node:
        compile_pattern(node["pattern"])
    for _, child in children(node):
        _require_patterns(child)
