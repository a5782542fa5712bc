"""Which steps come before which, merges counted: the common ancestor that a merge starts from.

Along first parents everything is arithmetic (`BranchGraph`). Of what merges brought in, only their places are looked
for, and only among the steps that the two sides do not share anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.backends.interface import Scan
from holdfast.backends.tables import STEPS
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.engine import Engine
from holdfast.engine.model.steps import StepParent
from holdfast.engine.row_format import MERGE, Line, StepRef

_PAGE = 1000
"""How many steps are read at a time, without their bodies."""

_Reach = dict[int, int]
"""Of some branches, how far they are part of what comes before a step. With a step, all before it are."""


class CommonAncestors(NamedTuple):
    """The common ancestors of two steps that come before no other: the latest, and in a criss-cross, others.

    None are there where two histories have nothing in common.
    """

    best: StepRef | None
    others: tuple[StepRef, ...] = ()
    theirs_is_ours: bool = False
    """Whether the second step comes before the first, or is it."""


class Ancestry:
    """Finds the ancestors of a line's steps."""

    def __init__(self, engine: Engine, line: Line, layout: BranchGraph) -> None:
        self._engine = engine
        self._backend = engine.context.backend
        self._line = line
        self._layout = layout

    async def common(self, ours: StepRef, theirs: StepRef) -> CommonAncestors:
        """The last step that comes before both, or is one of them."""
        one, other = Position(*ours[:2]), Position(*theirs[:2])
        along = self._layout.common(one, other)
        floor = {} if along is None else _reach(self._layout, along)
        mine, yours = await self._before(one, floor), await self._before(other, floor)
        if mine.get(other.branch, -1) >= other.seq:
            return CommonAncestors(theirs, theirs_is_ours=True)
        shared = {branch: min(mine[branch], seq) for branch, seq in yours.items() if branch in mine}
        # Where a branch leaves its base at the last shared step of it, that step comes before the branch's.
        for branch in list(shared):
            base = self._layout.base(branch)
            if base is not None and shared.get(base.branch) == base.seq:
                del shared[base.branch]
        points = await self._points([Position(*each) for each in shared.items()])
        if len(points) > 1:
            reached = [(point, await self._before(Position(*point[:2]), {})) for point in points]
            points = [
                point
                for point in points
                if not any(each is not point and reach.get(point.branch, -1) >= point.seq for each, reach in reached)
            ]
        points.sort(key=lambda point: (point.time, point.depth, point.id), reverse=True)
        return CommonAncestors(points[0], tuple(points[1:])) if points else CommonAncestors(None)

    async def _before(self, place: Position, floor: _Reach) -> _Reach:
        """All that comes before a step, with it. Merges up to `floor`, which is part of it, are not looked at."""
        reach: _Reach = {}
        todo = [place]
        while todo:
            for end in self._layout.stretches(todo.pop()):
                known = reach.get(end.branch, -1)
                if end.seq <= known:
                    break  # so are the branches before it
                reach[end.branch] = end.seq
                todo += await self._merged(end.branch, max(known, floor.get(end.branch, -1)) + 1, end.seq)
        return reach

    async def _merged(self, branch: int, start: int, last: int) -> list[Position]:
        """The further parents of the merges in a stretch of a branch."""
        found: list[Position] = []
        while start <= last:
            stop = min(start + _PAGE, last + 1)
            scan = Scan(STEPS, (*self._line, branch), (start,), (stop,), bodies=False)
            (rows,) = await self._backend.read([scan])
            parents = await further_parents(self._engine, self._line, map(StepRef.of, rows))
            found += (Position(parent.branch, parent.seq) for parent in parents)
            start = stop
        return found

    async def _points(self, places: list[Position]) -> list[StepRef]:
        found = await self._backend.read([Scan(STEPS, (*self._line, *place), bodies=False) for place in places])
        return [StepRef.of(row) for rows in found for row in rows]


async def further_parents(engine: Engine, line: Line, points: Iterable[StepRef]) -> list[StepParent]:
    """What the merges among some steps have merged. Of those that were pruned, their stubs tell."""
    found: list[StepParent] = []
    merges: list[StepRef] = []
    for point in points:
        if point.pruned:
            found += point.merged
        elif point.kind == MERGE:
            merges.append(point)
    for head in await engine.step_info.describe(line, merges):
        found += head.header.parents[1:]
    return found


def _reach(layout: BranchGraph, place: Position) -> _Reach:
    return {end.branch: end.seq for end in layout.stretches(place)}
