"""Attaching a schema: checking it against what a store has, and registering its version."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from holdfast.engine.engine import Engine
from holdfast.errors import ConflictError
from holdfast.schemas.attached_version import AttachedVersion
from holdfast.schemas.migration import Migration
from holdfast.schemas.registry import RegisteredSchemas, SchemaRecord, SchemaRegistry
from holdfast.schemas.schema_declaration import Declaration
from holdfast.schemas.version import Version

log: Final = logging.getLogger("holdfast.schemas")

A = TypeVar("A", bound=AttachedVersion)


async def attach(
    declaration: Declaration,
    engine: Engine,
    tenant: str,
    actor: str = "",
    patterns: tuple[str, ...] = (),
    places: tuple[str, ...] = (),
    *,
    kind: Callable[[Engine, SchemaRegistry, Declaration, Version | None], A],
    takes_unversioned: bool = True,
) -> A:
    """Check the version against what the store has, and register it. `kind` is the class of what is attached. States
    without a reference to a schema are taken for the oldest version, if `takes_unversioned`, in threads that match the
    patterns."""
    registry = SchemaRegistry(engine, tenant, actor)
    registered = await registry.load()
    name = declaration.schema.name
    record = registered.records.get(name)
    _require_same_unversioned(declaration, record)
    unversioned = declaration.unversioned or (
        min(declaration.schemas.versions(name)) if record is None else record.unversioned
    )
    if declaration.unversioned is not None:
        declaration.schemas.extended(registered.schemas).get(f"{name}@{unversioned}")  # raises if nobody knows it
    attachment = kind(engine, registry, declaration, unversioned if takes_unversioned else None)
    patterns = patterns if takes_unversioned else ()
    attachment.check(registered)
    migrations = _migrations_in_use(declaration, registered)
    for edited in registered.edited(declaration.schemas.migrations(name)):
        log.warning("the migration %s was edited after it was applied to states of this store", edited)
    if _is_new(declaration, registered, record, migrations, patterns, places):

        def update(stored: SchemaRecord | None) -> SchemaRecord:
            if stored is None:
                return SchemaRecord(declaration.schema.version, unversioned, patterns=patterns, places=places)
            _require_same_unversioned(declaration, stored)
            current = stored.current if stored.is_pinned else max(stored.current, declaration.schema.version)
            return replace(
                stored,
                current=current,
                patterns=tuple(dict.fromkeys((*stored.patterns, *patterns))),
                places=tuple(dict.fromkeys((*stored.places, *places))),
            )

        used = [declaration.schema.schema_reference]
        needed = [declaration.schemas.get(reference) for reference in sorted(declaration.schema.references)]
        await registry.register([declaration.schema, *needed], migrations, {name: update}, used=used)
        registered = await registry.load()
        if takes_unversioned and registered.records[name].unversioned != unversioned:  # another program was first
            attachment = kind(engine, registry, declaration, registered.records[name].unversioned)
        attachment.check(registered)
    return attachment


def _require_same_unversioned(declaration: Declaration, record: SchemaRecord | None) -> None:
    """Refuse to take states without a version for another one: every such state, and the past, would be read as
    something else."""
    if record is None or declaration.unversioned in (None, record.unversioned):
        return
    name = declaration.schema.name
    raise ConflictError(
        f"states of {name} without a version are taken for {record.unversioned} in this store, and this program says "
        f"{declaration.unversioned}",
        where=name,
        hint=f"Leave unversioned= out. States that had another form before there was a schema get a schema of another "
        f"name, and {name} is attached to patterns that they do not match",
        code="schema-changed",
    )


def _migrations_in_use(declaration: Declaration, registered: RegisteredSchemas) -> list[Migration]:
    """Return the migrations that states of the store will be upgraded with."""
    name, everything = declaration.schema.name, declaration.schemas.extended(registered.schemas)
    found: dict[str, Migration] = {}
    for stored in registered.stored_versions(name):
        if stored < declaration.schema.version:
            for step in everything.path(name, stored, declaration.schema.version):
                if step.migration is not None:
                    found[str(step.migration)] = step.migration
    return list(found.values())


def _is_new(
    declaration: Declaration,
    registered: RegisteredSchemas,
    record: SchemaRecord | None,
    migrations: list[Migration],
    patterns: tuple[str, ...],
    places: tuple[str, ...],
) -> bool:
    reference = declaration.schema.schema_reference
    known = next((each for each in registered.schemas if each.schema_reference == reference), None)
    return (
        record is None
        or known is None
        or known.hash != declaration.schema.hash
        or reference in registered.unused
        or (record.current < declaration.schema.version and not record.is_pinned)
        or not set(patterns) <= set(record.patterns)
        or not set(places) <= set(record.places)
        or any(str(each) not in registered.fingerprints for each in migrations)
    )
