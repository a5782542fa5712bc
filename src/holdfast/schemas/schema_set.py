"""The schemas and migrations that a program declares, together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.codec import Codec, default_codec
from holdfast.engine.model.packed_state import Packed, pack_state, unpack, unpack_name, unpack_state
from holdfast.errors import ConflictError, HoldfastError, InvalidError, NotFoundError
from holdfast.schemas.compatibility import Compatibility
from holdfast.schemas.definition import encode
from holdfast.schemas.migration import MigratedState, Migration
from holdfast.schemas.operations import Move
from holdfast.schemas.schema import Schema
from holdfast.schemas.validator import Problem, Validator
from holdfast.schemas.version import Version, parse_reference
from holdfast.schemas.version_graph import MigrationStep, VersionGraph


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
        self._rechecked: dict[tuple[str, str], frozenset[str] | None] = {}
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
        packed = self.migrate_packed(
            name, pack_state(codec, state), pack_state(codec, aside), source, target, codec=codec
        )
        return MigratedValues(unpack_state(codec, packed.state), unpack_state(codec, packed.aside))

    def migrate_packed(
        self,
        name: str,
        state: Mapping[bytes, Packed],
        aside: Mapping[bytes, Packed],
        source: str | Version,
        target: str | Version | None = None,
        *,
        codec: Codec = default_codec,
        validate: bool = True,
    ) -> MigratedState:
        """Migrate a packed state. Channels that no operation touches are neither decoded nor copied.

        The result is checked against the schema of its version, as far as it may have changed.
        """
        steps = self.path(name, source, target)
        result = MigratedState(dict(state), dict(aside))
        for step in steps:
            if step.migration is not None:
                run = step.migration.upgrade if step.up else step.migration.downgrade
                result = run(result.state, result.aside, codec)
        if validate and steps:
            self._check_result(name, steps, state, result, codec)
        return result

    def _check_result(
        self,
        name: str,
        steps: tuple[MigrationStep, ...],
        before: Mapping[bytes, Packed],
        result: MigratedState,
        codec: Codec,
    ) -> None:
        """Refuse a result that does not fit. Channels whose type is the same, and that no step touched, fit still."""
        schemas = self._schemas.get(name, {})
        schema, source = schemas.get(steps[-1].target), schemas.get(steps[0].source)
        if schema is None:
            return
        partial = source is not None and self._validator(source).is_partial(set(map(unpack_name, before)))
        changed = self._channels_to_check(name, steps, schema)
        if changed is None:
            problems = self._validator(schema).check(unpack_state(codec, result.state), partial=partial)
        else:
            names = {unpack_name(packed): packed for packed in result.state}
            values = {each: unpack(codec, result.state[names[each]]) for each in changed if each in names}
            problems = self._validator(schema).check(values, changed, partial=partial)
        if problems:
            raise wrong_shape(schema, steps, problems)

    def _channels_to_check(self, name: str, steps: tuple[MigrationStep, ...], schema: Schema) -> frozenset[str] | None:
        key = f"{name}@{steps[0].source}", schema.schema_reference
        if key not in self._rechecked:
            self._rechecked[key] = self._find_channels(steps, self._schemas[name].get(steps[0].source), schema)
        return self._rechecked[key]

    def _find_channels(
        self, steps: tuple[MigrationStep, ...], source: Schema | None, target: Schema
    ) -> frozenset[str] | None:
        before, after = (None if each is None else each.canonical for each in (source, target))
        if before is None or after is None or before["type"] != "record" or after["type"] != "record":
            return None
        touched: set[str] = set()
        origins = {name: name for name in before["fields"]}
        for step in steps:
            for operation in () if step.migration is None else step.migration.in_direction(up=step.up):
                if isinstance(operation, Move) and all(len(keys) == 1 for keys in operation.paths()):
                    (old,), (new,) = operation.paths() if step.up else operation.paths()[::-1]
                    origins[new] = origins.pop(old, new)  # moved as it is
                    touched = {new if each == old else each for each in touched}
                elif operation.paths():
                    touched |= {keys[0] for keys in operation.paths()}
                else:
                    return None
        differing = {
            name
            for name in {*origins, *after["fields"]}
            if encode(before["fields"].get(origins.get(name))) != encode(after["fields"].get(name))
        }
        return frozenset(touched | differing)


class MigratedValues(NamedTuple):
    """A state, and what was kept aside on the way to it."""

    state: dict[str, Any]
    aside: dict[str, Any]


def wrong_shape(schema: Schema, steps: tuple[MigrationStep, ...], problems: list[Problem]) -> HoldfastError:
    """Return the error for a result of a migration that does not fit."""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return InvalidError(
        f"the migration gives a state that does not fit {schema.schema_reference}: "
        f"{problems[0].path or 'the state'}: {problems[0].reason}{more}",
        where=f"{schema.name} {steps[0].source} -> {steps[-1].target}; {problems[0].path}",
        hint="Correct the migration, or the schema; nothing was written",
        code="migration-shape",
    )


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
