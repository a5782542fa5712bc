"""The registry in a copy of states: the other store learns the versions that they have, beside those that it knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import is_thread
from holdfast.engine.patterns import matcher
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, CorruptError, NotFoundError
from holdfast.schemas.registry import LINE, RegisteredSchemas, SchemaRecord, SchemaRegistry
from holdfast.schemas.schema import Schema
from holdfast.schemas.schema_set import schema_changed
from holdfast.schemas.version import parse_reference


async def copy_registries(source: Engine, target: Engine, lines: Sequence[Line], *, some: bool) -> list[Line]:
    """Add the versions that some lines have, or all, to the registries of another store. Returns the registries that
    need not be copied. `ConflictError` if a version has another form there, and then nothing is written."""
    found = []
    for tenant in sorted({line.tenant for line in lines}):
        try:
            here = await SchemaRegistry(source, tenant).load()
        except CorruptError:
            continue  # the copy reports it
        there = SchemaRegistry(target, tenant)
        known = await there.load()
        own = [line for line in lines if line.tenant == tenant]
        if unused := await _unversioned_in_use(source, known, own):
            await there.register([], used=unused)
            known = await there.load()
        if here.tip is None or here.tip.point is None:
            continue
        if not some and (known.tip is None or known.tip.point is None or await _is_copy(source, tenant, known)):
            continue  # it is copied as it is
        names = None if not some else await _names(source, own)
        await _add(there, known, here, names)
        found.append(Line(tenant, LINE))
    return found


async def _unversioned_in_use(source: Engine, known: RegisteredSchemas, lines: Sequence[Line]) -> list[str]:
    """Return the versions, retired in the other store, that threads without one will have there."""
    found = set()
    for name, record in known.records.items():
        reference = f"{name}@{record.unversioned}"
        if reference in known.unused:
            matches = [matcher(each) for each in record.patterns]
            threads = [each for each in lines if is_thread(each.name) and any(match(each.name) for match in matches)]
            if not all(await _references(source, threads)):
                found.add(reference)
    return sorted(found)


async def _is_copy(source: Engine, tenant: str, known: RegisteredSchemas) -> bool:
    """Whether the registry of the other store is an earlier copy."""
    point = None if known.tip is None else known.tip.point
    with suppress(NotFoundError):
        return point is not None and (await source.lines.find(Line(tenant, LINE), point.id)).hash == point.hash
    return False


async def _names(source: Engine, lines: Sequence[Line]) -> set[str]:
    """Return the schemas of the last states of some lines."""
    return {parse_reference(each)[0] for each in await _references(source, lines) if each}


async def _references(source: Engine, lines: Sequence[Line]) -> list[str]:
    """Return the references of the last states of some lines; empty ones of states without a version."""
    found = []
    for line in lines:
        with suppress(NotFoundError, CorruptError):  # the copy reports what is damaged
            latest = await source.lines.latest_step(line)
            if latest is not None:
                found.append((await source.step_info.head(line, latest)).header.schema)
    return found


async def _add(
    registry: SchemaRegistry, known: RegisteredSchemas, more: RegisteredSchemas, names: Collection[str] | None
) -> None:
    used = [
        each
        for each in more.schemas
        if each.schema_reference not in more.retired and (names is None or each.name in names)
    ]
    needed = [more.schemas.get(reference) for each in used for reference in sorted(each.references)]
    schemas = {each.schema_reference: each for each in (*used, *needed)}
    _require_same(known, more, schemas)
    missing = [reference for reference in schemas if not _has(known, reference)]
    if not missing:
        return
    records = {each.name: more.records[each.name] for each in used if each.name in more.records}
    updates = {name: partial(_record, record, all_states=names is None) for name, record in records.items()}
    await registry.register(list(schemas.values()), (), updates, used=[each.schema_reference for each in used])


def _has(known: RegisteredSchemas, reference: str) -> bool:
    return reference not in known.retired and any(each.schema_reference == reference for each in known.schemas)


def _require_same(known: RegisteredSchemas, more: RegisteredSchemas, schemas: dict[str, Schema]) -> None:
    for each in known.schemas:
        other = schemas.get(each.schema_reference)
        if other is not None and other.hash != each.hash:
            raise schema_changed(each, other)
    for name in {each.name for each in schemas.values()} & known.records.keys() & more.records.keys():
        old, new = known.records[name].unversioned, more.records[name].unversioned
        if old != new:
            raise ConflictError(
                f"states of {name} without a version are taken for {old} in the other store, and for {new} in this one",
                where=name,
                hint="Migrate the states of one of the stores first: holdfast migrate up",
                code="schema-changed",
            )


def _record(given: SchemaRecord, stored: SchemaRecord | None, *, all_states: bool) -> SchemaRecord:
    """Return the record in the other store. What has no version there stays without, unless everything is copied."""
    if stored is None:
        return given if all_states else replace(given, patterns=(), places=())
    return stored if stored.is_pinned else replace(stored, current=max(stored.current, given.current))
