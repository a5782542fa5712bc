"""Ancestors of steps, including merged ones: the common ancestor that a merge starts from.

Along first parents, ancestors are computed from positions alone (`BranchGraph`). Merges are searched for only among the
steps that the two sides do not share.
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
"""How many steps are read at a time, without bodies."""

_Reach = dict[int, int]
"""The ancestors of a step: for each branch, the last position. All before it are ancestors, too."""


class CommonAncestors(NamedTuple):
    """The best common ancestors of two steps: the latest, and after criss-cross merges, others.

    `best` is None if the histories have nothing in common.
    """

    best: StepRef | None
    others: tuple[StepRef, ...] = ()
    is_merged: bool = False
    """Whether the second step is the first, or an ancestor of it."""


class Ancestry:
    """Finds the ancestors of a line's steps."""

    def __init__(self, engine: Engine, line: Line, graph: BranchGraph) -> None:
        self._engine = engine
        self._backend = engine.context.backend
        self._line = line
        self._graph = graph

    async def common(self, ours: StepRef, theirs: StepRef) -> CommonAncestors:
        """Find the best common ancestors of two steps, of which one may be an ancestor of the other."""
        our, their = Position(*ours[:2]), Position(*theirs[:2])
        first_parent = self._graph.common(our, their)
        floor: _Reach = {}
        if first_parent is not None:
            floor = {end.branch: end.seq for end in self._graph.stretches(first_parent)}
        our_reach, their_reach = await self._ancestors(our, floor), await self._ancestors(their, floor)
        if our_reach.get(their.branch, -1) >= their.seq:
            return CommonAncestors(theirs, is_merged=True)
        shared = {branch: min(our_reach[branch], seq) for branch, seq in their_reach.items() if branch in our_reach}
        # If a branch starts at the last shared step of its base, that step is an ancestor of the branch's steps.
        for branch in list(shared):
            base = self._graph.base(branch)
            if base is not None and shared.get(base.branch) == base.seq:
                del shared[base.branch]
        points = await self._points([Position(*end) for end in shared.items()])
        if len(points) > 1:
            reaches = [(point, await self._ancestors(Position(*point[:2]), {})) for point in points]
            points = [
                point
                for point in points
                if not any(other is not point and reach.get(point.branch, -1) >= point.seq for other, reach in reaches)
            ]
        points.sort(key=lambda point: (point.time, point.depth, point.id), reverse=True)
        return CommonAncestors(points[0], tuple(points[1:])) if points else CommonAncestors(None)

    async def _ancestors(self, position: Position, floor: _Reach) -> _Reach:
        """Find a step's ancestors, with itself. Merges up to `floor`, which is part of them, are not read."""
        reach: _Reach = {}
        todo = [position]
        while todo:
            for end in self._graph.stretches(todo.pop()):
                reached = reach.get(end.branch, -1)
                if end.seq <= reached:
                    break  # and so are the branches before it
                reach[end.branch] = end.seq
                todo += await self._merged(end.branch, max(reached, floor.get(end.branch, -1)) + 1, end.seq)
        return reach

    async def _merged(self, branch: int, start: int, last: int) -> list[Position]:
        """Find the second parents of the merges in a range of a branch."""
        merged: list[Position] = []
        while start <= last:
            stop = min(start + _PAGE, last + 1)
            scan = Scan(STEPS, (*self._line, branch), (start,), (stop,), bodies=False, required=stop - start)
            (rows,) = await self._backend.read([scan])
            parents = await merged_parents(self._engine, self._line, map(StepRef.of, rows))
            merged += (Position(parent.branch, parent.seq) for parent in parents)
            start = stop
        return merged

    async def _points(self, positions: list[Position]) -> list[StepRef]:
        scans = [Scan(STEPS, (*self._line, *position), bodies=False, required=1) for position in positions]
        return [StepRef.of(row) for rows in await self._backend.read(scans) for row in rows]


async def merged_parents(engine: Engine, line: Line, points: Iterable[StepRef]) -> list[StepParent]:
    """Return the second parents of the merges among some steps; those of pruned merges are in their stubs."""
    parents: list[StepParent] = []
    merges: list[StepRef] = []
    for point in points:
        if point.pruned:
            parents += point.merged
        elif point.kind == MERGE:
            merges.append(point)
    for head in await engine.step_info.describe(line, merges):
        parents += head.header.parents[1:]
    return parents
