"""Saving steps, also under an id that exists.

The same content again is nothing new. Other content is a new revision of the step: it goes onto a branch of its own,
and the steps that followed the old one are moved onto it, each with its state. The old steps stay where they are, and
are found by their position; by id, the last revision is found.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from holdfast.backends.interface import Change, Create, Expect, Get, Put, Row, Scan
from holdfast.backends.tables import BRANCHES, LINES, STEPS, WRITES
from holdfast.engine import trace_context
from holdfast.engine.append import MAX_REWRITES, Appender, AppendRequest, Edit
from holdfast.engine.append_batch import IdExists, PreparedStep
from holdfast.engine.append_queue import AppendQueue
from holdfast.engine.append_tip import tip_to_append
from holdfast.engine.branch_graph import Position
from holdfast.engine.context import EngineContext
from holdfast.engine.field_index import FieldIndex
from holdfast.engine.guard import OWNER, Authority, Preconditions, both_preconditions, current_authority
from holdfast.engine.line_head import find_head, newest_query
from holdfast.engine.lines import MAIN, ROOT, LineIndex, OnBranch, Root
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.large_values import set_aside
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.packed_state import PackedMap
from holdfast.engine.model.steps import PendingWriteRow, Step, StepOrigin
from holdfast.engine.model.workspace import MissingNode
from holdfast.engine.namespaces import has_messages, is_thread
from holdfast.engine.projection.projector import Projector
from holdfast.engine.projection.rows import ProjectedStep
from holdfast.engine.row_format import (
    AT_HEAD,
    Branch,
    Line,
    LineInfo,
    StepRef,
    info_row,
    open_step,
    open_writes,
    readable,
    remove_origin,
    write_row,
)
from holdfast.engine.state_loader import LoadedState, StateLoader
from holdfast.engine.step_info import StepInfo, StepInfoReader
from holdfast.engine.text_index.indexer import TextIndexer
from holdfast.engine.trace_context import NO_TRACE, Trace
from holdfast.errors import ConflictError, CorruptError, InvalidError

if TYPE_CHECKING:
    from holdfast.engine.protection import Protection
    from holdfast.engine.schema_bindings import SchemaBindings

Around: TypeAlias = Callable[
    [Callable[..., Awaitable[list[StepInfo]]], Sequence[AppendRequest]], Awaitable[list[StepInfo]]
]
"""Saves requests by calling the function that saves."""


@dataclass(frozen=True, slots=True)
class _OldStep:
    point: StepRef
    step: Step
    writes: Sequence[PendingWriteRow]


class StepWriter:
    """Saves steps, and new revisions of steps."""

    def __init__(
        self,
        context: EngineContext,
        lines: LineIndex,
        states: StateLoader,
        heads: StepInfoReader,
        appender: Appender,
        projector: Projector,
        indexer: TextIndexer,
        fields: FieldIndex,
    ) -> None:
        self._context = context
        self._lines = lines
        self._states = states
        self._heads = heads
        self._appender = appender
        self._projector = projector
        self._indexer = indexer
        self._fields = fields
        self._queue = AppendQueue(context.backend, lines, heads, appender)
        self.around: Around | None = None
        """Wraps all saving, to observe or alter it; set by hooks."""
        self.schemas: SchemaBindings | None = None
        """Applies the schemas of lines, after hooks; set when the first one is attached."""

    async def save(self, *requests: AppendRequest) -> list[StepInfo]:
        """Append steps; if the id of a single one exists, save a new revision unless nothing is new."""
        trace, authority = trace_context.current(), current_authority()
        if trace is not NO_TRACE or authority is not OWNER:
            for request in requests:
                if is_thread(request.line.name):
                    _add_context(request, trace, authority, authority.conditions(self._context, request.line))
                elif authority.claim is not None:
                    run = authority.conditions_of_run(self._context, request.line)
                    request.permit = both_preconditions(request.permit, run)
        heads = await (self._save(*requests) if self.around is None else self.around(self._save, requests))
        for request in requests:
            request.release()
        return heads

    async def preview(self, request: AppendRequest, parent: StepRef) -> None:
        """Raise what the save of a step would raise because of its state. Saves nothing, and calls no hooks."""
        if self.schemas is not None:
            self.schemas.prepare(request)
        await self._appender.edit(request, parent, await self._states.get(request.line, parent))

    async def _save(self, *requests: AppendRequest) -> list[StepInfo]:
        if len(requests) > 1 and _have_same_id(requests):
            raise InvalidError(
                "two checkpoints that are saved together have the same id", hint="Save them one after the other"
            )
        if self.schemas is not None:
            for request in requests:
                self.schemas.prepare(request)
        if self._appender.protection is not None:
            for request in requests:
                if has_messages(request.line.name):
                    await self._protect_metadata(request, self._appender.protection)
        rewrites, again, seen = 0, False, None
        while True:
            try:
                return await self._queue.append(requests)
            except IdExists as exists:
                row, rival = exists.row, exists.rival or (again and exists.row.key != seen)
                seen = row.key
            if len(requests) > 1:
                raise ConflictError(
                    f"checkpoint {StepRef.of(row).id} exists already, and cannot be saved again together with others",
                    where=f"thread {Line(*map(str, row.key[:2]))}",
                    hint="Save it alone, or under another id",
                )
            try:
                old = self._open(requests[0].line, row)
                head = await self._save_again(requests[0], old, again=again, rival=rival)
            except MissingNode:
                # The line was rewritten meanwhile; if not, retrying will not help.
                rewrites += 1
                if rewrites > MAX_REWRITES:
                    raise
                self._context.cache.clear()
                continue
            except CorruptError:
                (rows,) = await self._context.backend.read([Get(STEPS, [row.key])])
                if rows:
                    raise
                continue  # it was deleted meanwhile
            if head is not None:
                return [head]
            again = True

    async def _protect_metadata(self, request: AppendRequest, protection: Protection) -> None:
        metadata = await protection.protect_metadata(request.line, request.metadata)
        if metadata != request.metadata:
            request.metadata = metadata
            request.readable = readable(self._context.codec, self._context.codec.unpack(metadata))

    async def _save_again(self, request: AppendRequest, old: _OldStep, *, again: bool, rival: bool) -> StepInfo | None:
        """Return the step that now has the id; None if the line changed meanwhile, or a condition does not hold.
        `ConflictError` if a rival has saved it with another content."""
        line, header = request.line, old.step.header
        if header.parents[1:]:
            request = replace(request, merged=header.parents[1:], kind=header.kind)  # a merge stays one
        await self._check_parent(request, old)
        await tip_to_append(self._lines, line)
        info = await self._lines.info(line)
        extra = await self._appender.attached_changes(request, request.id)
        if await self._is_same(request, old, info):
            if extra:
                extra = [self._lines.line_unchanged(line, info), *await _permit(request, again), *extra]
                if await self._context.backend.apply(extra) is not None:
                    return None
            (head,) = await self._heads.describe(line, [old.point])
            return head
        if rival or (await self._lines.find(line, request.id)).revision != old.point.revision:
            raise ConflictError(
                f"another writer has saved checkpoint {request.id} at the same time, with another content",
                where=f"thread {line}",
                hint="Read it, and save it again if yours is to replace it, or save yours under another id",
            )
        parent = await self._parent(line, old)
        loaded = None if parent is None else await self._states.get(line, parent)
        if loaded is not None and loaded.form not in (0, info.form):
            raise MissingNode("a line was rewritten")
        new_info = info._replace(version=info.version + 1)
        move = _Move(line, new_info, await self._lines.branches(line))
        request = replace(request, time=request.time or old.point.time, attached_changes=lambda _: extra)
        number = move.new_branch()
        first = await self._appender.prepare(
            request,
            new_info,
            parent,
            loaded,
            (),
            Position(number, 0),
            new_branch=True,
            revision=old.point.revision + 1,
            beside=old.point.beside,
        )
        move.steps.append(first)
        move.take_over_name(old.point.branch, first)
        await self._move_children(move, old, first)
        await self._move_head(move)
        changes: list[Change] = [
            *await _permit(request, again),
            self._lines.line_unchanged(line, info),
            Put(LINES, info_row(line, new_info)),
            *move.ends,
        ]
        changes += [change for each in move.steps for change in each.changes] + move.renamed
        rows = None
        follower = self._projector.follower
        if follower is not None:
            changes += follower.marks(line, move.projected())
        elif self._projector.on:
            rows = await self._projector.rows(line, move.projected())
            changes += rows.changes
        if self._indexer.on:
            changes += await self._indexer.rows(line, move.projected())
        changes += await self._fields.rows(move.steps)
        if await self._context.apply(changes) is not None:
            self._projector.forget(line)
            return None
        for each in move.steps:
            self._appender.remember(each)
        if rows is not None:
            self._projector.remember(rows)
        if follower is not None:
            follower.add(line, move.projected())
        return first.head

    async def _parent(self, line: Line, old: _OldStep) -> StepRef | None:
        """Return the step that another one follows, unless that was pruned."""
        if not old.step.header.parents:
            return None
        parent = (*line, *old.step.header.parents[0][:2])
        (rows,) = await self._context.backend.read([Get(STEPS, [parent], required=True)])
        return None if not rows or StepRef.of(rows[0]).pruned else StepRef.of(rows[0])

    async def _check_parent(self, request: AppendRequest, old: _OldStep) -> None:
        if request.parent is None:
            return
        if isinstance(request.parent, OnBranch):
            # The step itself may be its head by now.
            if await self._lines.branch(request.line, request.parent.name) == old.point.branch:
                return
        commit = None
        if not isinstance(request.parent, Root):
            pruned = bool(old.step.header.parents) and await self._parent(request.line, old) is None
            if pruned and isinstance(request.parent, str):
                if await self._lines.find_id(request.line, request.parent, ROOT) is None:
                    return  # it may be the one that was pruned
            commit = (await self._lines.find(request.line, request.parent)).hash
        parents = old.step.header.parents
        if commit != (parents[0].commit if parents else None):
            raise ConflictError(
                f"checkpoint {request.id} already exists, with a different parent",
                where=f"thread {request.line}",
                hint="Save under another id, or name the parent that it has",
            )

    async def _is_same(self, request: AppendRequest, old: _OldStep, info: LineInfo) -> bool:
        header = old.step.header
        described = (header.metadata, header.kind, header.stamp, header.key_schemas)
        if described != (request.metadata, request.kind, request.stamp, request.key_schemas):
            return False
        state, parent, loaded = request.state, None, None
        if not isinstance(state, dict) or request.convert is not None:
            parent = await self._lines.find(request.line, Position(*header.parents[0][:2])) if header.parents else None
            loaded = None if parent is None else await self._states.get(request.line, parent)
            if request.convert is not None:
                state = await request.convert(state, parent, loaded)
        if request.schema not in ("", header.schema):
            return False
        if not isinstance(state, dict):
            changes = await state(parent, loaded)
            if self._appender.protection is not None:
                changes = await self._appender.protection.protect_edit(request.line, changes, loaded)
            edit, _ = set_aside(changes, info.salt)
            return edit == old.step.edit
        stored = await self._states.packed(request.line, old.point)
        edit = diff_maps(stored, state)
        if edit != EditMap() and self._appender.protection is not None:
            protected = await self._appender.protection.protect_state(request.line, edit, state)
            edit = edit if protected is None else diff_maps(stored, protected)
        return edit == EditMap()

    async def _move_children(self, move: _Move, old: _OldStep, new: PreparedStep) -> None:
        """Move all that followed the old step onto the new one."""
        todo = [(old, new)]
        while todo:
            before, onto = todo.pop()
            changed = before is old  # the state before the others is unchanged
            point = before.point
            for fork in move.forks_at(point):
                child = await self._step(move, Position(fork.branch, 0))
                if child is not None:
                    moved = await self._move_step(move, child, onto, move.new_branch(), changed)
                    move.take_over_name(fork.branch, moved)
                    todo.append((child, moved))
                elif fork.name:
                    position = (move.new_branch(), onto.point.branch, onto.point.seq + 1)
                    move.take_over_name(fork.branch, Branch(*position, fork.created, ""))
            next_step = await self._step(move, Position(point.branch, point.seq + 1), point.id)
            if next_step is not None:
                todo.append((next_step, await self._move_step(move, next_step, onto, None, changed)))

    async def _move_step(
        self, move: _Move, old: _OldStep, onto: PreparedStep, new_branch: int | None, changed: bool
    ) -> PreparedStep:
        header = old.step.header
        state: PackedMap | Edit = _repeat(old.step.edit)
        if changed:
            state = await self._states.values(move.line, old.point)
        request = AppendRequest(
            move.line,
            state,
            id=header.id,
            metadata=header.metadata,
            readable=remove_origin(old.point.metadata, header.origin),
            kind=header.kind,
            origin=header.origin,
            events=header.events,
            stamp=header.stamp,
            schema=header.schema,
            is_unversioned=changed and not header.schema,
            key_schemas=header.key_schemas,
            time=header.time,
            merged=header.parents[1:],
        )
        position = None if new_branch is None else Position(new_branch, 0)
        moved = await self._appender.prepare(
            request,
            move.info,
            onto.point,
            onto.loaded,
            (),
            position,
            new_branch=position is not None,
            revision=old.point.revision + 1,
            beside=old.point.beside,
            writes=old.writes,
        )
        move.steps.append(moved)
        return moved

    async def _move_head(self, move: _Move) -> None:
        """Keep HEAD where it is if it is moved, and a step beside it has the number of its branch."""
        (rows,) = await self._context.backend.read([newest_query(move.line, bodies=True)])
        if not rows:
            return  # deleted meanwhile
        newest = rows[0]
        head = StepRef.of(await find_head(self._context.backend, move.line, newest))
        branch = next((each.point.branch for each in move.steps if each.point.id == head.id), None)
        point = StepRef.of(newest)
        if branch is None or point.beside == AT_HEAD:
            return
        for each in move.steps:
            if each.point.id == point.id:
                each.set_beside(branch)
                return
        move.renamed.append(Put(STEPS, point._replace(beside=branch).row(move.line, newest.body)))

    async def _step(self, move: _Move, position: Position, before: str = "") -> _OldStep | None:
        """Return the step at a position, if it is the last revision of its id. If there is none, expect none.

        An older revision stays where it is. What it took over from the step before it, whose id is given, becomes rows
        again: that one moves away from it."""
        line = move.line
        (rows,) = await self._context.backend.read([Scan(STEPS, (*line, *position))])
        if not rows:
            move.ends.append(Expect(STEPS, (*line, *position), None))
            return None
        if StepRef.of(rows[0]).pruned:
            return None
        found = self._open(line, rows[0])
        latest = await self._lines.find(line, found.point.id)
        if (latest.branch, latest.seq) == position:
            return found
        move.renamed += (Put(WRITES, write_row(line, before, write)) for write in found.writes)
        return None

    def _open(self, line: Line, row: Row) -> _OldStep:
        limit = self._context.max_bytes
        return _OldStep(StepRef.of(row), open_step(line, row, limit), open_writes(row, limit))


async def _permit(request: AppendRequest, again: bool) -> Sequence[Change]:
    """Return the conditions on which a step may be saved again. Its other ones held when it was saved first."""
    return () if request.permit is None else await request.permit(again)


def _have_same_id(requests: Sequence[AppendRequest]) -> bool:
    """Return whether two requests for one line name the same id."""
    named = [(request.line, request.id) for request in requests if request.id]
    return len(set(named)) < len(named)


def _add_context(request: AppendRequest, trace: Trace, authority: Authority, permit: Preconditions | None) -> None:
    """Add to a save of a thread who makes it and why, and the conditions on which it is permitted."""
    request.origin = StepOrigin(authority.actor, trace.correlation, trace.cause)
    request.artifacts = trace.artifacts
    request.permit = permit


class _Move:
    """Steps that are moved to new branches."""

    def __init__(self, line: Line, info: LineInfo, branches: list[Branch]) -> None:
        self.line = line
        self.info = info
        self.steps: list[PreparedStep] = []
        self.ends: list[Change] = []
        """The conditions that nothing was appended to the old branches."""
        self.renamed: list[Change] = []
        self._branches = branches
        self._free = branches[-1].branch + 1 if branches else 1

    def projected(self) -> list[ProjectedStep]:
        """Return the steps for the projector and the indexer; the first has the branches that are renamed."""
        renamed = [
            Branch.of(change.row)
            for change in self.renamed
            if isinstance(change, Put | Create) and change.space is BRANCHES
        ]
        first, *others = (each.projected() for each in self.steps)
        return [first._replace(branches=[*first.branches, *renamed]), *others]

    def new_branch(self) -> int:
        self._free += 1
        return self._free - 1

    def forks_at(self, point: StepRef) -> list[Branch]:
        here = (point.branch, point.seq + 1)
        return [branch for branch in self._branches if (branch.base_branch, branch.base_length) == here]

    def take_over_name(self, number: int, new: PreparedStep | Branch) -> None:
        """Give the name of a branch to the one that replaces it."""
        old = next((branch for branch in self._branches if branch.branch == number), None)
        name = MAIN.name if old is None else old.name
        if old is None and any(branch.name == name for branch in self._branches):
            return  # another branch has the name main already
        if old is not None and name:
            self.renamed.append(Put(BRANCHES, old._replace(name="").row(self.line)))
        if isinstance(new, Branch):
            self.renamed.append(Create(BRANCHES, new._replace(name=name).row(self.line)))
            return
        for position, change in enumerate(new.changes):
            if isinstance(change, Create) and change.space is BRANCHES:
                branch = Branch.of(change.row)
                new.changes[position] = Create(BRANCHES, branch._replace(name=name).row(self.line))


def _repeat(edit: EditMap) -> Edit:
    async def unchanged(parent: StepRef | None, loaded: LoadedState | None) -> EditMap:
        del parent, loaded  # the state before the step is unchanged
        return edit

    return unchanged
