"""Migration of a single value, such as that of a key: its fields, if it has some, or as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.codec import Codec, default_codec
from holdfast.engine.model.packed_state import Packed, PackedMap, pack_name, unpack, unpack_name
from holdfast.errors import InvalidError
from holdfast.schemas.migration import Migration
from holdfast.schemas.migration_path import wrong_shape
from holdfast.schemas.packed_document import read_fields, write_fields
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import Version

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
