"""Branches: list, rename, delete, switch and fork."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from holdfast.backends.interface import Delete, Expect, Get, Put, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import BRANCHES, REFS, STEPS
from holdfast.engine.append import AppendRequest, Edit
from holdfast.engine.branch_graph import Position
from holdfast.engine.checked_rows import read_despite_damage
from holdfast.engine.context import Apply
from holdfast.engine.engine import Engine
from holdfast.engine.guard import Preconditions
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.ids import is_reserved
from holdfast.engine.line_head import end_query, find_head, newest_query
from holdfast.engine.lines import LABEL, MAIN, TAG, OnBranch
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.operations import EditMap
from holdfast.engine.projection.rows import relabelled
from holdfast.engine.rewrite.rewriter import RewritePlan
from holdfast.engine.row_format import PIN, Branch, Line, StepRef, check_name
from holdfast.engine.schema_bindings import KEPT_SCHEMA
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.step_info import StepInfo
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from holdfast.history.ancestry import merged_parents
from holdfast.history.langgraph_compat import HeadMoved, latest_id, only_after, step_fields, without_follows
from holdfast.history.revisions import MAIN_BRANCH

SWITCH = "switch"
"""The kind of a step that changes nothing, but makes its branch the current one."""

FORK = "fork"
"""The kind of a first step that was saved together with its branch."""


class BranchDescription(NamedTuple):
    """A branch, its last step and its base unless they were pruned, and how many steps of its own it has."""

    branch: Branch
    head: StepRef | None
    base: StepRef | None
    ahead: int
    is_current: bool


async def describe(engine: Engine, line: Line) -> list[BranchDescription]:
    """List the branches of a line, the oldest first, without unnamed ones whose steps were all pruned."""
    info = await engine.lines.info(line)
    others = await engine.lines.branches(line)
    main = "" if any(other.name == MAIN.name for other in others) else MAIN.name
    branches = [MAIN_BRANCH._replace(created=info.created, name=main), *others]
    bases = [Position(branch.base_branch, branch.base_length - 1) for branch in branches]
    starts, newest, *ends = await read_despite_damage(
        engine.context.backend,
        [
            Get(STEPS, [(*line, *base) for base in dict.fromkeys(bases) if base.seq >= 0], required=True),
            newest_query(line),
            *(end_query(line, branch.branch) for branch in branches),
        ],
    )
    latest = StepRef.of(await find_head(engine.context.unchecked, line, newest[0])) if newest else None
    heads = [StepRef.of(rows[0]) if rows else None for rows in ends]
    points = {Position(*point[:2]): point for point in map(StepRef.of, starts)}
    descriptions = []
    for branch, base, own in zip(branches, bases, heads, strict=True):
        start = points.get(base)
        head = own or start
        if head is None or (head.pruned and not branch.name):
            continue
        descriptions.append(
            BranchDescription(
                branch,
                None if head.pruned else head,
                None if start is None or start.pruned else start,
                0 if own is None else own.seq + 1,
                latest is not None and own is not None and own.branch == latest.branch,
            )
        )
    return descriptions


def check_branch_name(name: str, line: Line) -> str:
    """Return the name for a new branch. Raises `InvalidError` if it cannot be one."""
    if not check_name(name, "name of a branch"):
        raise InvalidError("the name of a branch cannot be empty", where=f"thread {line}")
    if name != MAIN.name and is_reserved(name):
        raise InvalidError(
            f"{name!r} is a reserved revision, and cannot be the name of a branch",
            where=f"thread {line}",
            hint="Use another name",
        )
    return name


async def rename(engine: Engine, line: Line, old: str, new: str, apply: Apply | None = None) -> Branch:
    """Rename a branch other than `main`."""
    check_branch_name(new, line)
    while True:
        info = await engine.lines.info(line)
        branch = _find(line, await engine.lines.branches(line), old, "renamed")
        if old == new:
            return branch
        await engine.lines.check_free(line, new)
        renamed = branch._replace(name=new)
        projected = await relabelled(engine.context.backend, line, renamed)
        changes = [
            *engine.lines.new_version(line, info),
            Expect(BRANCHES, (*line, branch.branch), branch[1:]),
            Put(BRANCHES, renamed.row(line)),
            *projected,
        ]
        if await (apply or engine.context.backend.apply)(changes) is None:
            engine.context.cache.drop(("line", line))
            engine.projector.forget(line)
            return renamed


def _find(line: Line, branches: Sequence[Branch], name: str, action: str) -> Branch:
    if check_name(name, "name of a branch") == MAIN.name:
        raise InvalidError(f"main cannot be {action}", where=f"thread {line}", hint="Every thread has this branch")
    for branch in branches:
        if branch.name == name and name:
            return branch
    raise NotFoundError(f"the thread has no branch {name!r}", where=f"thread {line}", hint="See branches()")


# Delete -------------------------------------------------------------------------------------------------------


class DeletedBranch(NamedTuple):
    """A branch that was deleted, or would be: the ids of its own steps, and its last one."""

    branch: Branch
    ids: list[str]
    head: str | None


async def delete(
    engine: Engine,
    line: Line,
    name: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    apply: Apply | None = None,
) -> DeletedBranch:
    """Delete a branch and the steps that only it has.

    If HEAD is on it, it moves to `main`. Without `force`, raises `ConflictError` if other branches start from them, if
    they have tags or labels, or if they are not merged into another branch. Raises `DeniedError` in any case if one is
    pinned or the thread is held.
    """
    await require_no_hold(engine.context.backend, [line])
    while True:
        info = await engine.lines.info(line)
        branches = await engine.lines.branches(line)
        branch = _find(line, branches, name, "deleted")
        points = [StepRef.of(row) async for row in scan_rows(engine.context.backend, STEPS, tuple(line), bodies=False)]
        deleted = await _check_deletion(engine, line, branch, branches, points, force=force)
        if dry_run:
            return deleted
        if any(point.branch == branch.branch for point in points):
            if (await engine.lines.find(line, None)).branch == branch.branch:
                await switch(engine, line, MAIN.name)
            break
        changes = [
            *engine.lines.new_version(line, info),
            Expect(STEPS, (*line, branch.branch, 0), None),
            Delete(BRANCHES, (*line, branch.branch)),
        ]
        if await (apply or engine.context.backend.apply)(changes) is None:
            engine.context.cache.drop(("line", line))
            return deleted

    async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:
        nonlocal deleted
        deleted = await _check_deletion(engine, line, branch, branches, points, force=force)
        # Their earlier revisions on other branches are removed too, or they would become visible again.
        ids = set(deleted.ids)
        removed = frozenset(point[:2] for point in points if point.branch == branch.branch or point.id in ids)
        return RewritePlan(removed, closed=branch.branch)

    await engine.rewriter.rewrite(line, choose, apply)
    await engine.context.backend.tidy()
    return deleted


async def _check_deletion(
    engine: Engine, line: Line, branch: Branch, branches: Sequence[Branch], points: Sequence[StepRef], *, force: bool
) -> DeletedBranch:
    """Return what is deleted with a branch. Raises if it must not be."""
    last = {point.id: point for point in sorted(points, key=lambda point: point.revision) if not point.pruned}
    own = [point for point in points if point.branch == branch.branch and last.get(point.id) == point]
    ids = {point.id for point in own}
    (refs,) = await engine.context.backend.read([Scan(REFS, tuple(line))])
    kinds: dict[str, list[str]] = {}
    for row in refs:
        if row.columns[0] in ids:
            kinds.setdefault(str(row.key[2]), []).append(str(row.key[3]))
    if PIN in kinds:
        raise DeniedError(
            f"a checkpoint of branch {branch.name!r} is pinned", where=f"thread {line}", hint="Unpin it first"
        )
    if not force:
        others = [point for point in points if point.branch != branch.branch]
        reason = _branch_reason(branch, branches) or _ref_reason(branch, kinds)
        end = next((point for point in reversed(own) if point.kind != SWITCH), None)
        if not reason and end is not None and not await _is_merged(engine, line, end, others):
            reason = f"branch {branch.name!r} is not merged into another branch: its changes would be lost"
        if reason:
            raise ConflictError(reason, where=f"thread {line}", hint="Delete it anyway with force=True")
    return DeletedBranch(branch, [point.id for point in own], own[-1].id if own else None)


def _branch_reason(branch: Branch, branches: Sequence[Branch]) -> str:
    children = [child for child in branches if child.base_branch == branch.branch]
    names = ", ".join(repr(child.name) if child.name else f"number {child.branch}" for child in children[:5])
    return f"other branches start from {branch.name!r}: {names}" if children else ""


def _ref_reason(branch: Branch, refs: dict[str, list[str]]) -> str:
    for kind in (TAG, LABEL):
        if kind in refs:
            return f"checkpoints of branch {branch.name!r} have a {kind}: {', '.join(map(repr, refs[kind][:5]))}"
    return ""


async def _is_merged(engine: Engine, line: Line, head: StepRef, others: Sequence[StepRef]) -> bool:
    parents = await merged_parents(engine, line, others)
    return any(parent.branch == head.branch and parent.seq >= head.seq for parent in parents)


# Switch and fork ----------------------------------------------------------------------------------------------


async def switch(engine: Engine, line: Line, name: str) -> StepInfo:
    """Make a branch the current one: unless HEAD is on it, by appending a step without changes, which becomes HEAD."""
    switched = None
    while True:
        newest = await engine.lines.find(line, None)
        number = await engine.lines.branch(line, check_name(name, "name of a branch"))
        # A branch without steps of its own that starts at HEAD is not the current one yet.
        if newest.branch == number:
            return switched or await engine.step_info.head(line, newest)
        head = await engine.lines.find(line, OnBranch(name))
        state = await engine.lines.read_step(line, head, partial(engine.states.packed, line))
        request = AppendRequest(
            line,
            only_after(head, diff_maps(state, without_follows(state))),
            parent=OnBranch(name),
            id=await latest_id(engine, line, head),
            kind=SWITCH,
            time=max(engine.context.clock(), newest.time),
            moves_head=True,
            line_schema=KEPT_SCHEMA,
            **step_fields(engine, line, {"switched": name}, await engine.delta_reader().unread(line, head)),
        )
        # Once more: a step that was saved meanwhile may have a greater id, and HEAD be where that says.
        with suppress(HeadMoved):
            (switched,) = await engine.writer.save(request)


async def return_request(engine: Engine, line: Line, point: StepRef, name: str) -> AppendRequest:
    """Return the step that starts a branch at an earlier step, and makes it the current one."""
    head = await engine.lines.read_step(line, point, partial(engine.states.packed, line))
    return AppendRequest(
        line,
        _unchanged(diff_maps(head, without_follows(head))),
        parent=Position(point.branch, point.seq),
        id=await latest_id(engine, line, point),
        kind=SWITCH,
        new_branch=check_branch_name(name, line),
        moves_head=True,
        line_schema=KEPT_SCHEMA,
        **step_fields(engine, line, {"switched": name}, await engine.delta_reader().unread(line, point)),
    )


def _unchanged(edit: EditMap) -> Edit:
    async def compute(parent: StepRef | None, loaded: LoadedState | None) -> EditMap:  # noqa: ARG001
        return edit

    return compute


async def fork(
    engine: Engine, line: Line, point: StepRef, name: str, edit: Edit, preconditions: Preconditions | None = None
) -> StepInfo:
    """Start a branch at a step together with its own first step, atomically, on some conditions."""
    return (await engine.writer.save(await _fork_request(engine, line, point, name, edit, preconditions)))[0]


async def check_fork(engine: Engine, line: Line, point: StepRef, name: str, edit: Edit) -> None:
    """Raise what `fork` would raise, as far as it depends on the edit. Saves nothing."""
    await engine.writer.preview(await _fork_request(engine, line, point, name, edit, None), point)


async def _fork_request(
    engine: Engine, line: Line, point: StepRef, name: str, edit: Edit, preconditions: Preconditions | None
) -> AppendRequest:
    fields = step_fields(engine, line, {"forked": point.id}, await engine.delta_reader().unread(line, point))
    return AppendRequest(
        line,
        edit,
        parent=Position(point.branch, point.seq),
        id=await latest_id(engine, line, point),
        kind=FORK,
        new_branch=check_branch_name(name, line),
        preconditions=preconditions,
        **fields,
    )
