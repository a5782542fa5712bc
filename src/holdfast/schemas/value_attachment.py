"""A schema that a program attached to single values: keys of scopes, fields of agents, metadata of artifacts.

A value says by a mark which version it has, and what migrations keep aside of it; see `engine/value_schemas.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from holdfast.codec import Codec, default_codec, msgpack
from holdfast.engine.model.packed_state import Packed, PackedMap, as_map, flatten, pack_name, unpack, unpack_name
from holdfast.engine.state_loader import weigh
from holdfast.engine.value_schemas import SchemaMark
from holdfast.errors import HoldfastError, InvalidError, UnsupportedError
from holdfast.schemas.attached_version import AttachedVersion
from holdfast.schemas.migration import Migration
from holdfast.schemas.migration_path import wrong_shape
from holdfast.schemas.packed_document import read_fields, write_fields
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version


class ValueAttachment(AttachedVersion):
    """The schema of some values, as this program has it."""

    async def read(self, value: Packed, mark: SchemaMark, where: str) -> Packed:
        """Return a stored value in this version, or in a newer one that this program gets along with."""
        version = self.version_of(mark.reference) or self.schema.version
        if version > self.schema.version:
            await self.accept(mark.reference, where)
        return self._upgraded(value, mark, version, where)[0] if version < self.schema.version else value

    def write(self, value: Packed, old: Packed | None, mark: SchemaMark, where: str) -> tuple[Packed, SchemaMark]:
        """Return what to store for a value of this version, given what is stored: it is checked, as far as it
        changed, and keeps what this program does not know."""
        if old is None:
            self._check(value, None, where)
            return value, SchemaMark(self.reference)
        version = self.version_of(mark.reference) or self.schema.version
        if version > self.schema.version:
            self.require_accepted(mark.reference, where)
            self._check(value, old, where)
            return self._with_unknown(value, old, mark, where), mark
        if version == self.schema.version:
            self._check(value, old, where)
            return value, mark if mark.reference else SchemaMark(self.reference, mark.aside)
        before, aside = self._upgraded(old, mark, version, where)
        self._check(value, before, where)
        return value, SchemaMark(self.reference, aside)

    def _with_unknown(self, value: Packed, old: Packed, mark: SchemaMark, where: str) -> Packed:
        """Return a value with those fields of the stored one that this version does not know."""
        new, stored = _fields(value), _fields(old)
        if new is None or stored is None:
            raise UnsupportedError(
                f"the value is of {mark.reference}, and this program's {self.schema.version} would drop what it does "
                "not know of it",
                where=where,
                hint=f"Run the release with {mark.reference}, or change parts of the value",
                code="schema-newer",
            )
        known = self.schema.canonical.get("fields", {})
        unknown = {key: each for key, each in stored.items() if key not in new and unpack_name(key) not in known}
        return {**new, **unknown} if unknown else value

    def _check(self, value: Packed, before: Packed | None, where: str) -> None:
        if self._validate == "off" or value == before:
            return
        new, old = _fields(value), None if before is None else _fields(before)
        if new is None or old is None or self.schema.canonical["type"] != "record":
            problems = self.schemas.check(self.reference, unpack(self._engine.context.codec, value))
        else:
            changed = [key for key, each in new.items() if old.get(key) != each]
            problems = self.problems(new, changed + [key for key in old if key not in new], old)
        self.report(problems, where)

    def _upgraded(self, value: Packed, mark: SchemaMark, version: Version, where: str) -> tuple[Packed, PackedMap]:
        """Return a value of an older version in this one, and what was kept aside; cached by its content."""
        content = hashlib.blake2b(flatten(value) + flatten(dict(mark.aside)), digest_size=16).digest()
        cache, key = self._engine.context.cache, ("migrated value", content, str(version), self.reference)
        found: tuple[Packed, PackedMap] | None = cache.get(key)
        if found is None:
            codec = self._engine.context.codec
            try:
                found = migrate_value(
                    self.schemas, self.schema.name, value, mark.aside, version, self.schema.version, codec
                )
            except HoldfastError as error:
                error.where = f"{where}; {error.where}" if error.where else where
                raise
            cache.put(key, found, weigh(found[0]) + weigh(found[1]))
        return found


def _fields(value: Packed) -> PackedMap | None:
    """Return the fields of a dict whose keys are all text; None for other values."""
    fields = as_map(value)
    return None if fields is None or not all(map(msgpack.is_str, fields)) else fields


# Migration --------------------------------------------------------------------------------------------------------

_WHOLE = pack_name("")
"""The name under which a value is a field of a document, for operations on the path `""`."""


def migrate_value(
    schemas: SchemaSet,
    name: str,
    value: Packed,
    aside: Mapping[bytes, Packed],
    source: Version,
    target: Version,
    codec: Codec = default_codec,
) -> tuple[Packed, PackedMap]:
    """Return a value in another version, and what was kept aside. The result is checked against its schema.

    Operations change the fields of the value, whether it is a dict or an instance of a class. Those on the path `""`
    change the value itself, which may then be anything: `convert("", up, down)`, `each("", …)`.
    """
    steps, kept = schemas.path(name, source, target), dict(aside)
    partial = _is_partial(schemas, f"{name}@{source}", value)
    for step in steps:
        if step.migration is None:
            continue
        run = step.migration.upgrade if step.up else step.migration.downgrade
        if _is_whole(step.migration):
            result = run({_WHOLE: value}, kept, codec)
            value = result.state[_WHOLE]
        else:
            fields = read_fields(value)
            if fields is None:
                raise InvalidError(
                    "the value has no fields: it is not a dict, and not an instance of a known kind of class",
                    where=str(step.migration),
                    hint='Convert it as a whole: convert("", up, down)',
                    code="migration-failed",
                )
            result = run(fields, kept, codec, value)
            value = write_fields(value, result.state)
        kept = result.aside
    if steps and any(each.version == target for each in schemas if each.name == name):
        schema = schemas.get(f"{name}@{target}")
        problems = schemas.check(schema.schema_reference, unpack(codec, value), partial=partial)
        if problems:
            raise wrong_shape(schema, steps, problems)
    return value, kept


def _is_whole(migration: Migration) -> bool:
    """Return whether a migration changes a value itself, and not its fields."""
    whole = [keys[0] == "" for operation in migration.operations for keys in operation.paths()]
    if any(whole) and not all(whole):
        raise InvalidError(
            "a migration changes a value as a whole, or fields of it, and not both",
            where=str(migration),
            hint="Make it two migrations, with a version between them",
            code="migration-failed",
        )
    return any(whole)


def _is_partial(schemas: SchemaSet, reference: str, value: Packed) -> bool:
    """Return whether a value lacked required fields before."""
    fields = read_fields(value)
    schema = next((each for each in schemas if each.schema_reference == reference), None)
    if schema is None or fields is None:
        return False
    return not set(map(unpack_name, fields)) >= set(schema.validator(schemas.get).required)
