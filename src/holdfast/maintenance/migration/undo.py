"""The steps that migrations append to threads, those that undo them, and the states before a migration: what one in the
other direction restores instead of computing it."""

from __future__ import annotations

from typing import Final

from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.branch_graph import Position
from holdfast.engine.delta_channels import KEPT, UnreadDeltas
from holdfast.engine.engine import Engine
from holdfast.engine.line_ends import LineEnd
from holdfast.engine.lines import At
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.packed_state import PackedMap, pack_name
from holdfast.engine.namespaces import is_thread
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.schema_bindings import MIGRATED_SCHEMA
from holdfast.errors import ConflictError, NotFoundError
from holdfast.history.langgraph_compat import HeadMoved, only_after, step_fields, without_follows
from holdfast.maintenance.migration.heads import (
    Head,
    HeadSelection,
    SchemaDocuments,
    migration_request,
    read_step,
    schema_of,
    state_of,
)
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


_KEPT = pack_name(KEPT)


async def thread_request(
    engine: Engine,
    line: Line,
    point: StepRef,
    before: PackedMap,
    after: PackedMap,
    references: tuple[str, str],
    parent: At,
    on_conflict: OnConflict,
) -> AppendRequest:
    """Return the request for a step that migrates the state of a thread. `references` are those before and after."""
    source, target = references
    unread = UnreadDeltas({}, {})
    if _KEPT in after:
        after = without_follows(after)
        unread = await engine.delta_reader().unread(line, point)
    return AppendRequest(
        line,
        only_after(point, diff_maps(before, after)),
        parent=parent,
        on_conflict=on_conflict,
        stays_beside=True,
        kind=KIND,
        schema=target,
        line_schema=MIGRATED_SCHEMA,
        is_limited=False,
        **step_fields(engine, line, {"migrated": source}, unread),
    )


async def undo_step(engine: Engine, line: Line, id: str, selection: HeadSelection) -> bool:
    """Undo a migration by a step that restores the state before it. False if that was pruned, or somebody continued
    from the migrated state, which is left then."""
    try:
        point = await engine.lines.find(line, id)
    except NotFoundError:
        return False
    parent = await parent_of(engine, line, point)
    if parent is None:
        return False
    restore = _restored_thread if is_thread(line.name) else _restored_documents
    request = await restore(engine, line, point, parent, selection)
    if request is None:
        return False
    try:
        await engine.writer.save(request)
    except (HeadMoved, ConflictError, NotFoundError):
        return False
    return True


async def _restored_thread(
    engine: Engine, line: Line, point: StepRef, parent: StepRef, selection: HeadSelection
) -> AppendRequest | None:
    version = selection.version(line, await schema_of(engine, line, parent))
    if version is None or any(await engine.writes.of_many(line, [point])):
        return None
    before, after = await state_of(engine, line, point), await state_of(engine, line, parent)
    references = await schema_of(engine, line, point), f"{selection.name}@{version}"
    end = Position(point.branch, point.seq)
    return await thread_request(engine, line, point, before, after, references, end, OnConflict.REFUSE)


async def _restored_documents(
    engine: Engine, line: Line, point: StepRef, parent: StepRef, selection: HeadSelection
) -> AppendRequest | None:
    name, record = selection.name, selection.record
    found, former = [await read_step(engine, line, each, name, record) for each in (point, parent)]
    if found is None or former is None:
        return None
    versions = {(document.kind, document.name): version for document, version in former.documents}
    changed = [
        (document, version, versions[key])
        for document, version in found.documents
        if versions.get(key := (document.kind, document.name), version) != version
    ]
    return await migration_request(engine, found, former.state, name, changed, KIND) if changed else None
