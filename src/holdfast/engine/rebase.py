"""Saving under an id that is taken.

The same content again is nothing new. Other content is a new revision of the step: it goes onto a branch of its own,
and the steps that followed the old one are set upon it, each with the state it had. What was there before stays where
it is, and is found by its place; by id, the last revision is found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.backends.port import Change, Create, Put, Row, Scan
from holdfast.backends.spaces import BRANCHES, LINES, STEPS
from holdfast.engine.append import Appender, Edit, IdTaken, Prepared, Saving
from holdfast.engine.ground import Ground
from holdfast.engine.lines import Lines, Place, Root
from holdfast.engine.records import Branch, Info, Line, Point, info_row, open_step
from holdfast.engine.states import Held, States
from holdfast.errors import Conflict
from holdfast.model.diff import diff_maps
from holdfast.model.operations import EditMap
from holdfast.model.steps import Step


@dataclass(frozen=True, slots=True)
class _Old:
    point: Point
    step: Step


class Rebaser:
    """Makes new revisions of steps."""

    def __init__(self, ground: Ground, lines: Lines, states: States, appender: Appender) -> None:
        self._ground = ground
        self._lines = lines
        self._states = states
        self._appender = appender

    async def save(self, *savings: Saving) -> list[Point]:
        """Append steps; where the id of a single one is taken, make a new revision unless nothing is new."""
        while True:
            taken = None
            for saving in savings:
                taken = await self._lines.existing(saving.line, saving.id) if saving.id else None
                if taken is not None:
                    break
            if taken is None:
                try:
                    return await self._appender.append(*savings)
                except IdTaken:
                    continue
            if len(savings) > 1:
                raise Conflict(
                    f"step {Point.of(taken).id} is there already, and cannot be saved again together with others",
                    where=f"line {Line(*map(str, taken.key[:2]))}",
                    hint="Save it alone, or under another id",
                )
            again = await self._save_again(savings[0], self._open(savings[0].line, taken))
            if again is not None:
                return [again]

    async def _save_again(self, saving: Saving, old: _Old) -> Point | None:
        """The step that now has the id; None if the line changed meanwhile."""
        line = saving.line
        await self._check_parent(saving, old)
        info = await self._lines.info(line)
        if await self._is_same(saving, old):
            if saving.riders is not None:
                await self._ground.backend.apply([self._lines.unchanged(line, info), *saving.riders(saving.id)])
            return old.point
        parents = old.step.header.parents
        parent = await self._lines.find(line, Place(*parents[0][:2])) if parents else None
        held = None if parent is None else await self._states.hold(line, parent)
        fresh = info._replace(version=info.version + 1)
        moving = _Moving(line, fresh, await self._lines.free_branch(line), await self._lines.branches(line))
        saving = replace(saving, time=saving.time or max(self._ground.clock(), old.point.time))
        revision = old.point.revision + 1
        first = await self._appender.prepare(
            saving, fresh, parent, held, (), Place(moving.new_branch(), 0), new_branch=True, revision=revision
        )
        moving.done.append(first)
        await self._move_children(moving, old, first)
        changes: list[Change] = [self._lines.unchanged(line, info), Put(LINES, info_row(line, fresh))]
        changes += [change for each in moving.done for change in each.changes] + moving.renamed
        if await self._ground.backend.apply(changes) is not None:
            return None
        for each in moving.done:
            self._appender.remember(each)
        return first.point

    async def _check_parent(self, saving: Saving, old: _Old) -> None:
        if saving.parent is None:
            return
        commit = None
        if not isinstance(saving.parent, Root):
            commit = (await self._lines.find(saving.line, saving.parent)).hash
        parents = old.step.header.parents
        if commit != (parents[0].commit if parents else None):
            raise Conflict(
                f"step {saving.id} is there already, and follows another step",
                where=f"line {saving.line}",
                hint="Save under another id, or name the parent that it has",
            )

    async def _is_same(self, saving: Saving, old: _Old) -> bool:
        header = old.step.header
        if (header.metadata, header.kind, header.stamp) != (saving.metadata, saving.kind, saving.stamp):
            return False
        state = saving.state
        if not isinstance(state, dict):
            return False
        return diff_maps(await self._states.packed(saving.line, old.point), state) == EditMap()

    async def _move_children(self, moving: _Moving, old: _Old, new: Prepared) -> None:
        """Set all that followed the old step upon the new one."""
        todo = [(old, new)]
        while todo:
            before, onto = todo.pop()
            changed = before is old  # the others see the same state before them as they did
            point = before.point
            onward = await self._step(moving.line, Place(point.branch, point.seq + 1))
            for fork in moving.forks_at(point):
                row = Branch(moving.new_branch(), onto.point.branch, onto.point.seq + 1, fork.created, fork.name)
                child = await self._step(moving.line, Place(fork.branch, 0))
                moving.rename(fork)
                if child is None:
                    moving.renamed.append(Create(BRANCHES, row.row(moving.line)))
                    continue
                moved = await self._move(moving, child, onto, row.branch, changed)
                moving.name(moved, row)
                todo.append((child, moved))
            if onward is not None:
                todo.append((onward, await self._move(moving, onward, onto, None, changed)))

    async def _move(
        self, moving: _Moving, old: _Old, onto: Prepared, new_branch: int | None, changed: bool
    ) -> Prepared:
        header = old.step.header
        state = await self._states.packed(moving.line, old.point) if changed else _same(old.step.edit)
        saving = Saving(
            moving.line,
            state,
            id=header.id,
            metadata=header.metadata,
            readable=old.point.metadata,
            kind=header.kind,
            stamp=header.stamp,
            schema=header.schema,
            time=header.time,
        )
        place = None if new_branch is None else Place(new_branch, 0)
        moved = await self._appender.prepare(
            saving,
            moving.info,
            onto.point,
            onto.held,
            (),
            place,
            new_branch=place is not None,
            revision=old.point.revision + 1,
        )
        moving.done.append(moved)
        return moved

    async def _step(self, line: Line, place: Place) -> _Old | None:
        """The step at a place, if it is the last revision of its id."""
        (rows,) = await self._ground.backend.read([Scan(STEPS, (*line, *place))])
        if not rows:
            return None
        latest = await self._lines.find_row(line, Point.of(rows[0]).id)
        return self._open(line, rows[0]) if latest.key == rows[0].key else None

    def _open(self, line: Line, row: Row) -> _Old:
        return _Old(Point.of(row), open_step(line, row, self._ground.max_bytes))


class _Moving:
    """Steps on their way to new branches."""

    def __init__(self, line: Line, info: Info, free: int, branches: list[Branch]) -> None:
        self.line = line
        self.info = info
        self.done: list[Prepared] = []
        self.renamed: list[Change] = []
        self._free = free
        self._branches = branches

    def new_branch(self) -> int:
        self._free += 1
        return self._free - 1

    def forks_at(self, point: Point) -> list[Branch]:
        here = (point.branch, point.seq + 1)
        return [branch for branch in self._branches if (branch.base_branch, branch.base_length) == here]

    def rename(self, fork: Branch) -> None:
        """The new branch takes the name over."""
        if fork.name:
            self.renamed.append(Put(BRANCHES, fork._replace(name="").row(self.line)))

    def name(self, moved: Prepared, branch: Branch) -> None:
        """Give the branch that a moved step begins its name."""
        made = next(place for place, change in enumerate(moved.changes) if change.space is BRANCHES)
        moved.changes[made] = Create(BRANCHES, branch.row(self.line))


def _same(edit: EditMap) -> Edit:
    async def unchanged(parent: Point | None, held: Held | None) -> EditMap:
        del parent, held  # the state before the step is what it was
        return edit

    return unchanged
