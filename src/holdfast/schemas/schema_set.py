"""The schemas and migrations that a program declares, together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.codec import Codec, default_codec
from holdfast.engine.model.packed_state import pack_state, unpack_state
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.schemas.compatibility import Compatibility
from holdfast.schemas.migration import Migration
from holdfast.schemas.schema import Schema
from holdfast.schemas.validator import Problem, Validator
from holdfast.schemas.version import Version, parse_reference
from holdfast.schemas.version_graph import MigrationPath, MigrationStep, VersionGraph


class SchemaSet:
    """Schemas and migrations: `SchemaSet(Schema("chat", "2.0.0", Chat), Migration("chat", "1.0.0", "2.0.0", …))`.

    Older versions need no class any more: their definitions come from the lock file, or from a store.
    """

    def __init__(self, *parts: Schema | Migration | SchemaSet) -> None:
        self._schemas: dict[str, dict[Version, Schema]] = {}
        self._migrations: list[Migration] = []
        self._graphs: dict[str, VersionGraph] = {}
        self._validators: dict[str, Validator] = {}
        self._comparisons: dict[tuple[str, str], Compatibility] = {}
        self._prepared: dict[tuple[str, Version, Version], MigrationPath] = {}
        for part in parts:
            if isinstance(part, SchemaSet):
                for each in (*part, *part.migrations()):
                    self._add(each)
            else:
                self._add(part)
        for name in self.names():
            self.graph(name)  # refuses cycles and duplicates

    def _add(self, part: object) -> None:
        if isinstance(part, Migration):
            if not any(part is each for each in self._migrations):  # sets of one module have some in common
                self._migrations.append(part)
            return
        if not isinstance(part, Schema):
            raise InvalidError(f"a set consists of schemas and migrations, not of {type(part).__name__}")
        versions = self._schemas.setdefault(part.name, {})
        known = versions.get(part.version)
        if known is not None and known.hash != part.hash:
            raise schema_changed(known, part)
        versions[part.version] = part

    # Schemas

    def __iter__(self) -> Iterator[Schema]:
        for name in sorted(self._schemas):
            yield from (self._schemas[name][version] for version in sorted(self._schemas[name]))

    def names(self) -> list[str]:
        """Return the names of the schemas."""
        return sorted({*self._schemas, *(migration.name for migration in self._migrations)})

    def versions(self, name: str) -> list[Version]:
        """Return the versions of a schema, oldest first."""
        return list(self.graph(name).versions)

    def migrations(self, name: str | None = None) -> list[Migration]:
        """Return the migrations of a schema, or all."""
        return [each for each in self._migrations if name is None or each.name == name]

    def get(self, reference: str) -> Schema:
        """Return a schema by `chat@1.0.0`, or its newest version by `chat`. Raises `NotFoundError`."""
        name, version = parse_reference(reference)
        versions = self._schemas.get(name, {})
        if version is None and versions:
            return versions[max(versions)]
        if version in versions:
            return versions[version]
        if version is not None:
            self.graph(name).require(version)
        raise NotFoundError(
            f"there is no schema {reference}",
            where=reference,
            hint=f"There are: {', '.join(each.schema_reference for each in self) or 'none'}",
            code="schema-version-unknown",
        )

    def graph(self, name: str) -> VersionGraph:
        """Return the graph of the versions of a schema."""
        found = self._graphs.get(name)
        if found is None:
            if name not in self.names():
                raise NotFoundError(
                    f"there is no schema {name}",
                    where=name,
                    hint=f"There are: {', '.join(self.names()) or 'none'}",
                    code="schema-version-unknown",
                )
            schemas = self._schemas.get(name, {})
            found = self._graphs[name] = VersionGraph(name, schemas, self.migrations(name), self.compare)
        return found

    def extended(self, older: SchemaSet) -> SchemaSet:
        """Return a set with the schemas of another one too, such as those of the lock file."""
        known = {each.schema_reference for each in self}
        return SchemaSet(*self, *self._migrations, *(each for each in older if each.schema_reference not in known))

    # Comparing and checking

    def compare(self, older: Schema, newer: Schema) -> Compatibility:
        """Compare two schemas field by field."""
        key = older.schema_reference + older.hash, newer.schema_reference + newer.hash
        found = self._comparisons.get(key)
        if found is None:
            found = self._comparisons[key] = older.compare(newer, self.get)
        return found

    def check(
        self, reference: str, value: Any, changed: Iterable[str] | None = None, *, partial: bool = False
    ) -> list[Problem]:
        """Return what does not fit about a value.

        `changed` are the only fields to check. Of a `partial` state, required fields may be missing.
        """
        return self._validator(self.get(reference)).check(value, changed, partial=partial)

    def _validator(self, schema: Schema) -> Validator:
        found = self._validators.get(schema.schema_reference)
        if found is None:
            found = self._validators[schema.schema_reference] = schema.validator(self.get)
        return found

    # Migrating

    def path(self, name: str, source: str | Version, target: str | Version | None = None) -> tuple[MigrationStep, ...]:
        """Return the steps from a version to another, by default to the newest."""
        graph = self.graph(name)
        newest = graph.versions[-1]
        return graph.path(Version.parse(source), newest if target is None else Version.parse(target))

    def migrate(
        self, name: str, state: Mapping[str, Any], source: str | Version, target: str | Version | None = None
    ) -> dict[str, Any]:
        """Return a state in the form of another version, by default the newest. What was kept aside is dropped."""
        return self.migrate_aside(name, state, {}, source, target).state

    def migrate_aside(
        self,
        name: str,
        state: Mapping[str, Any],
        aside: Mapping[str, Any],
        source: str | Version,
        target: str | Version | None = None,
        *,
        codec: Codec = default_codec,
    ) -> MigratedValues:
        """Return a state in the form of another version, and what was kept aside for the way back."""
        path = self.prepared_path(name, source, target)
        packed = path.migrate(pack_state(codec, state), pack_state(codec, aside), codec)
        return MigratedValues(unpack_state(codec, packed.state), unpack_state(codec, packed.aside))

    def prepared_path(self, name: str, source: str | Version, target: str | Version | None = None) -> MigrationPath:
        """Return the way from a version to another, prepared for many states."""
        newest = self.graph(name).versions[-1] if target is None else Version.parse(target)
        key = name, Version.parse(source), newest
        found = self._prepared.get(key)
        if found is None:
            schemas = self._schemas.get(name, {})
            found = self._prepared[key] = MigrationPath(
                self.path(*key), schemas.get(key[1]), schemas.get(key[2]), self._validator
            )
        return found


class MigratedValues(msgspec.Struct, frozen=True):
    """A state, and what was kept aside on the way to it."""

    state: dict[str, Any]
    aside: dict[str, Any]


def schema_changed(known: Schema, other: Schema) -> ConflictError:
    """Return the error for two schemas of one name and version that differ."""
    changes = known.compare(other).changes
    first = f": {changes[0].path or 'the value'}: {changes[0].reason}" if changes else ""
    return ConflictError(
        f"{known.schema_reference} is declared in two forms, {known.hash[:12]} and {other.hash[:12]}{first}",
        where=known.schema_reference,
        hint="A schema that changes gets a new version",
        code="schema-changed",
    )
