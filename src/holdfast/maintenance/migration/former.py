"""States before the last migration: what a migration in the other direction restores instead of computing it."""

from __future__ import annotations

from typing import Final

from holdfast.engine.branch_graph import Position
from holdfast.engine.engine import Engine
from holdfast.engine.line_ends import LineEnd
from holdfast.engine.model.packed_state import PackedMap
from holdfast.engine.row_format import Line, StepRef
from holdfast.errors import NotFoundError
from holdfast.maintenance.migration.documents import SchemaDocuments, read_step
from holdfast.maintenance.migration.heads import Head, HeadSelection, schema_of, state_of
from holdfast.schemas.version import Version

KIND: Final = "migrate"
"""The kind of the steps of migrations."""


def is_restorable(source: Version, target: Version, kind: str) -> bool:
    """Return whether a state before a migration, saved by a step of some kind, is what it is to be again. On the way up
    only if a program saved it: what an upgrade made of a state, one that was corrected since may make anew."""
    return target < source or kind != KIND


def short_former(end: LineEnd, head: Head, selection: HeadSelection, target: Version) -> PackedMap | None:
    """Return the state of a short line before the last migration, if nothing was saved since and it is to be
    restored."""
    if head.point.kind != KIND or end.former_schema is None:
        return None
    if selection.version(end.line, end.former_schema) != target:
        return None
    return end.former if is_restorable(head.version, target, end.former_kind) else None


async def former_state(engine: Engine, head: Head, selection: HeadSelection, target: Version) -> PackedMap | None:
    """Return the state before the last migration, if nothing was saved since and it is to be restored."""
    parent = await parent_of(engine, head.line, head.point)
    if parent is None or not is_restorable(head.version, target, parent.kind):
        return None
    if selection.version(head.line, await schema_of(engine, head.line, parent)) != target:
        return None
    return await state_of(engine, head.line, parent)


async def former_documents(
    engine: Engine, found: SchemaDocuments, selection: HeadSelection, target: Version
) -> PackedMap | None:
    """Return the state of a line before the last migration, if nothing was saved since and it is to be restored: all
    have the target version there."""
    parent = await parent_of(engine, found.line, found.point)
    if parent is None or not all(is_restorable(each, target, parent.kind) for _, each in found.documents):
        return None
    before = await read_step(engine, found.line, parent, selection.name, selection.record)
    if before is None or any(version != target for _, version in before.documents):
        return None
    return before.state


async def parent_of(engine: Engine, line: Line, point: StepRef) -> StepRef | None:
    """Return the step before a migration; None if it is none, or if that was pruned."""
    if point.kind != KIND:
        return None
    info = await engine.step_info.head(line, point)
    if not info.header.parents:
        return None
    try:
        return await engine.lines.find(line, Position(*info.header.parents[0][:2]))
    except NotFoundError:
        return None
