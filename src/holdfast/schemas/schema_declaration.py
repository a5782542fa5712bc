"""A schema as a program declares it for some states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from holdfast.errors import InvalidError
from holdfast.schemas.migration import Migration
from holdfast.schemas.schema import Schema
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version

ValidationMode: TypeAlias = Literal["refuse", "warn", "off"]
"""The treatment of a value that does not fit its schema."""


@dataclass(frozen=True)
class Declaration:
    """A schema as a program declares it for some states."""

    schemas: SchemaSet
    schema: Schema
    validate: ValidationMode = "refuse"
    unversioned: Version | None = None
    """The version of states that were saved without a reference to a schema; the oldest, if there is none."""

    @classmethod
    def of(
        cls,
        schemas: SchemaSet | Schema,
        reference: str | None = None,
        validate: ValidationMode = "refuse",
        unversioned: str | Version | None = None,
    ) -> Declaration:
        """Check what a caller declares."""
        if validate not in get_args(ValidationMode):
            modes = ", ".join(map(repr, get_args(ValidationMode)))
            raise InvalidError(f"validate must be {modes}, not {validate!r}")
        declared = require_set(schemas)
        oldest = None if unversioned is None else Version.parse(unversioned)
        return cls(declared, choose_schema(declared, reference), validate, oldest)

    def is_like(self, other: Declaration) -> bool:
        """Return whether another declaration says the same; quick, for one that is repeated."""
        return self == other or (
            (self.schema, self.validate, self.unversioned) == (other.schema, other.validate, other.unversioned)
            and [*map(_mark, self.schemas.migrations())] == [*map(_mark, other.schemas.migrations())]
        )


def _mark(migration: Migration) -> tuple[str, str]:
    return str(migration), migration.fingerprint


def choose_schema(declared: SchemaSet, reference: str | None) -> Schema:
    """Return the schema that a caller names; without a name, the newest version of the only one."""
    if reference is not None:
        return _with_references(declared, declared.get(reference))
    names = {each.name for each in declared}
    if len(names) != 1:
        raise InvalidError(
            f"there are {len(names)} schemas, and none is named",
            hint=f"Name one of them: {', '.join(sorted(names))}" if names else "Declare one: Schema(…)",
        )
    return _with_references(declared, declared.get(names.pop()))


def require_set(schemas: SchemaSet | Schema) -> SchemaSet:
    """Require schemas: a set, or a single one."""
    if not isinstance(schemas, SchemaSet | Schema):
        raise InvalidError(
            f"expected a SchemaSet or a Schema, got {type(schemas).__name__}",
            hint='Write Schema("chat", "1.0.0", ChatState)',
        )
    return schemas if isinstance(schemas, SchemaSet) else SchemaSet(schemas)


def _with_references(declared: SchemaSet, schema: Schema) -> Schema:
    """Return a schema, if all that it depends on is declared too. Raises `NotFoundError`."""
    known, todo = {schema.schema_reference}, [schema]
    while todo:
        for reference in sorted(todo.pop().references - known):
            known.add(reference)
            todo.append(declared.get(reference))
    return schema
