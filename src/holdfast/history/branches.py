"""Branches: listing, renaming, deleting, and going on with another one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from holdfast.backends.interface import Delete, Expect, Get, Put, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import BRANCHES, REFS, STEPS
from holdfast.engine.append import AppendRequest, Edit
from holdfast.engine.branch_graph import Position
from holdfast.engine.engine import Engine
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.lines import MAIN, NAME, TAG, OnBranch
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.projection.rows import relabelled
from holdfast.engine.rewrite.rewriter import RewritePlan
from holdfast.engine.row_format import PIN, Branch, Line, StepRef, check_name
from holdfast.engine.step_info import StepInfo
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from holdfast.history.ancestry import further_parents
from holdfast.history.langgraph_compat import HeadMoved, about, latest_id, only_after, without_follows
from holdfast.history.revisions import MAIN_BRANCH

SWITCH = "switch"
"""The kind of a step that changes nothing, and makes a branch the one that goes on."""

FORK = "fork"
"""The kind of a branch's first step, where it was made together with the branch."""


class BranchDescription(NamedTuple):
    """A branch, its last step and the one it starts from, if they are there, and how many steps of its own it has."""

    branch: Branch
    head: StepRef | None
    base: StepRef | None
    ahead: int
    is_current: bool


async def describe(engine: Engine, line: Line) -> list[BranchDescription]:
    """The branches of a line, in the order in which they were made. Those of which nothing is left are left out."""
    info = await engine.lines.info(line)
    others = await engine.lines.branches(line)
    main = "" if any(each.name == MAIN.name for each in others) else MAIN.name
    every = [MAIN_BRANCH._replace(created=info.created, name=main), *others]
    bases = [Position(each.base_branch, each.base_length - 1) for each in every]
    starts, latest, *ends = await engine.context.backend.read(
        [
            Get(STEPS, [(*line, *base) for base in dict.fromkeys(bases) if base.seq >= 0]),
            Scan(STEPS, tuple(line), reverse=True, limit=1, by="id", bodies=False),
            *(Scan(STEPS, (*line, each.branch), reverse=True, limit=1, bodies=False) for each in every),
        ]
    )
    newest, *heads = (StepRef.of(rows[0]) if rows else None for rows in (latest, *ends))
    at = {Position(*point[:2]): point for point in map(StepRef.of, starts)}
    described = []
    for branch, base, own in zip(every, bases, heads, strict=True):
        start = at.get(base)
        head = own or start
        if head is None or (head.pruned and not branch.name):
            continue
        described.append(
            BranchDescription(
                branch,
                None if head.pruned else head,
                None if start is None or start.pruned else start,
                0 if own is None else own.seq + 1,
                newest is not None and own is not None and own.branch == newest.branch,
            )
        )
    return described


def checked_name(name: str, line: Line) -> str:
    """The name of a branch that is to be made."""
    if not check_name(name, "name of a branch"):
        raise InvalidError("the name of a branch is not empty", where=f"thread {line}")
    if name in ("HEAD", "@"):
        raise InvalidError(f"{name!r} is the latest checkpoint of a thread, and no branch", where=f"thread {line}")
    return name


async def rename(engine: Engine, line: Line, old: str, new: str) -> Branch:
    """Give a branch another name. `main` keeps its own."""
    checked_name(new, line)
    while True:
        info = await engine.lines.info(line)
        branch = _named(line, await engine.lines.branches(line), old, "renamed")
        if old == new:
            return branch
        await engine.lines.check_free(line, new)
        renamed = branch._replace(name=new)
        shown = await relabelled(engine.context.backend, line, renamed)
        changes = [
            *engine.lines.new_version(line, info),
            Expect(BRANCHES, (*line, branch.branch), branch[1:]),
            Put(BRANCHES, renamed.row(line)),
            *shown,
        ]
        if await engine.context.backend.apply(changes) is None:
            engine.context.cache.drop(("line", line))
            engine.projector.forget(line)
            return renamed


def _named(line: Line, branches: Sequence[Branch], name: str, what: str) -> Branch:
    if check_name(name, "name of a branch") == MAIN.name:
        raise InvalidError(f"main is not {what}", where=f"thread {line}", hint="Every thread has this branch")
    for branch in branches:
        if branch.name == name and name:
            return branch
    raise NotFoundError(f"the thread has no branch {name!r}", where=f"thread {line}", hint="See branches()")


# Deleting -----------------------------------------------------------------------------------------------------


class DeletedBranch(NamedTuple):
    """What went with a branch, or would: the ids of its own steps, and the head that it had."""

    branch: Branch
    ids: list[str]
    head: str | None


async def delete(engine: Engine, line: Line, name: str, *, force: bool = False, dry_run: bool = False) -> DeletedBranch:
    """Delete a branch and the steps that only it has.

    `ConflictError` without `force` if other branches start from them, if they have names or tags, or if they were not
    merged into another branch. `DeniedError`, with it or without, if one is pinned or the thread is held.
    """
    await require_no_hold(engine.context.backend, [line])
    while True:
        info = await engine.lines.info(line)
        branches = await engine.lines.branches(line)
        branch = _named(line, branches, name, "deleted")
        points = [StepRef.of(row) async for row in scan_rows(engine.context.backend, STEPS, tuple(line), bodies=False)]
        deleted = await _judged(engine, line, branch, branches, points, force=force)
        if dry_run:
            return deleted
        if any(point.branch == branch.branch for point in points):
            break
        changes = [
            *engine.lines.new_version(line, info),
            Expect(STEPS, (*line, branch.branch, 0), None),
            Delete(BRANCHES, (*line, branch.branch)),
        ]
        if await engine.context.backend.apply(changes) is None:
            engine.context.cache.drop(("line", line))
            return deleted

    async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:
        nonlocal deleted
        deleted = await _judged(engine, line, branch, branches, points, force=force)
        # With their earlier revisions, wherever these are: nobody sees them, and would again.
        ids = set(deleted.ids)
        gone = frozenset(point[:2] for point in points if point.branch == branch.branch or point.id in ids)
        return RewritePlan(gone, closed=branch.branch)

    await engine.rewriter.rewrite(line, choose)
    await engine.context.backend.tidy()
    return deleted


async def _judged(
    engine: Engine, line: Line, branch: Branch, branches: Sequence[Branch], points: Sequence[StepRef], *, force: bool
) -> DeletedBranch:
    """What would go with a branch; an error if it may not."""
    last = {point.id: point for point in sorted(points, key=lambda point: point.revision) if not point.pruned}
    there = [point for point in points if point.branch == branch.branch and last.get(point.id) == point]
    ids = {point.id for point in there}
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
        why = _started(branch, branches) or _marked(branch, kinds)
        end = next((point for point in reversed(there) if point.kind != SWITCH), None)
        if not why and end is not None and not await _is_merged(engine, line, end, others):
            why = f"branch {branch.name!r} is not merged into another one: what it has would be lost"
        if why:
            raise ConflictError(why, where=f"thread {line}", hint="Delete it all the same with force=True")
    return DeletedBranch(branch, [point.id for point in there], there[-1].id if there else None)


def _started(branch: Branch, branches: Sequence[Branch]) -> str:
    starts = [each for each in branches if each.base_branch == branch.branch]
    called = ", ".join(repr(each.name) if each.name else f"number {each.branch}" for each in starts[:5])
    return f"other branches start from {branch.name!r}: {called}" if starts else ""


def _marked(branch: Branch, refs: dict[str, list[str]]) -> str:
    for kind in (NAME, TAG):
        if kind in refs:
            return f"checkpoints of branch {branch.name!r} have a {kind}: {', '.join(map(repr, refs[kind][:5]))}"
    return ""


async def _is_merged(engine: Engine, line: Line, head: StepRef, others: Sequence[StepRef]) -> bool:
    merged = await further_parents(engine, line, others)
    return any(parent.branch == head.branch and parent.seq >= head.seq for parent in merged)


# Going on -----------------------------------------------------------------------------------------------------


async def switch(engine: Engine, line: Line, name: str) -> StepInfo:
    """Make the last step of a branch the latest of the line: by a step on it that changes nothing, if need be."""
    while True:
        newest = await engine.lines.find(line, None)
        number = await engine.lines.branch(line, check_name(name, "name of a branch"))
        head = await engine.lines.find(line, OnBranch(name))
        # A branch that starts at the latest step, and has none of its own, is not the one that would go on.
        if head.id == newest.id and newest.branch == number:
            return await engine.step_info.head(line, head)
        state = await engine.lines.read_step(line, head, partial(engine.states.packed, line))
        saving = AppendRequest(
            line,
            only_after(head, diff_maps(state, without_follows(state))),
            parent=OnBranch(name),
            id=await latest_id(engine, line, head),
            kind=SWITCH,
            **about(engine, line, {"switched": name}, await engine.delta_reader().unread(line, head)),
        )
        try:
            return (await engine.writer.save(saving))[0]
        except HeadMoved:
            continue


async def fork(engine: Engine, line: Line, point: StepRef, name: str, edit: Edit) -> StepInfo:
    """Start a branch at a step with a first step of its own, both or none."""
    said = about(engine, line, {"forked": point.id}, await engine.delta_reader().unread(line, point))
    saving = AppendRequest(
        line,
        edit,
        parent=Position(point.branch, point.seq),
        id=await latest_id(engine, line, point),
        kind=FORK,
        new_branch=checked_name(name, line),
        **said,
    )
    return (await engine.writer.save(saving))[0]
