"""Comparison of two states in one version of their schema, whatever versions they were stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.engine.engine import Engine
from holdfast.engine.model.packed_state import PackedMap
from holdfast.engine.row_format import StepRef
from holdfast.errors import InvalidError
from holdfast.history.comparison import ComparedPoint, compare_packed
from holdfast.schemas.attachment import migrate_state, without_aside
from holdfast.schemas.registry import SchemaRegistry
from holdfast.schemas.schema_set import SchemaSet
from holdfast.schemas.version import parse_reference

if TYPE_CHECKING:
    from holdfast.history.diff_result import Diff

_Sides = tuple[ComparedPoint, ComparedPoint]


async def compare_migrated(engine: Engine, sides: _Sides, migrate: SchemaSet | bool) -> Diff:
    """Compare two states in the version of the schema that is attached to their thread; or in the newest one of some
    schemas, which need not be attached."""
    if migrate is not True and not isinstance(migrate, SchemaSet):
        raise InvalidError(f"migrate must be True, False or a SchemaSet, not {type(migrate).__name__}")
    declared = await _declared(engine, sides, migrate) if isinstance(migrate, SchemaSet) else None
    states = [await _read(engine, side, declared) for side in sides]
    return await compare_packed(engine, sides[0], states[0], sides[1], states[1])


async def _declared(engine: Engine, sides: _Sides, schemas: SchemaSet) -> SchemaSet:
    return schemas.extended((await SchemaRegistry(engine, sides[0].line.tenant).load()).schemas)


async def _read(engine: Engine, side: ComparedPoint, declared: SchemaSet | None) -> PackedMap:
    line = side.line
    if side.point is None:
        return {}

    async def read(point: StepRef) -> PackedMap:
        packed = await engine.states.values(line, point)
        reference = (await engine.step_info.head(line, point)).header.schema
        if declared is not None:
            return _upgrade(engine, declared, reference, packed, f"thread {line}, checkpoint {point.id}")
        bound = None if engine.schemas is None else engine.schemas.find(line)
        if bound is None:
            raise InvalidError(
                "no schema is attached to the thread, so there is no version to bring its states to",
                where=f"thread {line}",
                hint="Attach one, store.schemas.attach(…), or pass the schemas: migrate=schemas",
            )
        return await bound.upgrade(line, point, reference, packed)

    return await engine.lines.read_step(line, side.point, read)


def _upgrade(engine: Engine, schemas: SchemaSet, reference: str, packed: PackedMap, where: str) -> PackedMap:
    name, version = parse_reference(reference) if reference else ("", None)
    if version is None or name not in schemas.names():
        return without_aside(packed)  # a state without a schema has one form only
    newest = schemas.get(name).version
    return without_aside(migrate_state(schemas, name, packed, version, newest, where, engine))
