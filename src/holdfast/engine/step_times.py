"""The steps of a line as of a time, found by bisection: times do not decrease along a branch."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.interface import Scan
from holdfast.backends.tables import STEPS
from holdfast.engine.branch_graph import Position
from holdfast.engine.context import EngineContext
from holdfast.engine.line_errors import missing_line_error, pruned_error
from holdfast.engine.line_head import end_query
from holdfast.engine.lines import LineIndex
from holdfast.engine.row_format import AT_HEAD, Line, StepRef
from holdfast.errors import NotFoundError


class StepTimes:
    """Finds steps by time."""

    def __init__(self, context: EngineContext, lines: LineIndex) -> None:
        self._backend = context.backend
        self._lines = lines

    async def ends(self, line: Line) -> list[StepRef]:
        """Return the last step of each branch that has steps of its own."""
        numbers = [0, *(branch.branch for branch in await self._lines.branches(line))]
        heads = await self._backend.read([end_query(line, number) for number in numbers])
        return [StepRef.of(row) for rows in heads for row in rows]

    async def last_of_line(self, line: Line, time: int, ends: Sequence[StepRef] | None = None) -> StepRef:
        """Return what was HEAD at a time (nanoseconds since 1970), given the ends of all branches.

        That is the step that was saved last by then, or the last one of the branch that it was saved beside of.
        """
        ends = await self.ends(line) if ends is None else ends
        candidates = await self.last_of_branches(line, [Position(*end[:2]) for end in ends], time)
        if not candidates:
            raise NotFoundError("the thread has no checkpoint at or before that time", where=f"thread {line}")
        last = max(candidates, key=_order)
        if last.beside != AT_HEAD:
            heads = [point for point in candidates if point.branch == last.beside]
            heads = heads or [point for point in candidates if point.beside == AT_HEAD] or [last]
            id = max(heads, key=_order).id
            last = max((point for point in candidates if point.id == id), key=_order)  # in its last revision
        if last.pruned:
            raise pruned_error(line)
        return last

    async def last_of_branches(self, line: Line, ends: Sequence[Position], time: int) -> list[StepRef]:
        """Return the last step that is not after a time, of each of some branches up to a position, where there is one.

        All branches are searched together, in as many reads as one.
        """
        best: dict[int, StepRef] = {}
        todo = {end.branch: (0, end.seq, end.seq) for end in ends}  # first, last, and the one to read next
        while todo:
            rows = await self._backend.read(
                [Scan(STEPS, (*line, branch, at), bodies=False, required=1) for branch, (_, _, at) in todo.items()]
            )
            for branch, step in zip(list(todo), rows, strict=True):
                low, high, at = todo.pop(branch)
                if not step:
                    raise missing_line_error(line)  # deleted meanwhile
                point = StepRef.of(step[0])
                if point.time <= time:
                    low, best[branch] = at + 1, point
                else:
                    high = at - 1
                if low <= high:
                    todo[branch] = (low, high, (low + high) // 2)
        return [best[end.branch] for end in ends if end.branch in best]


def _order(point: StepRef) -> tuple[int, str, int]:
    return point.time, point.id, point.revision
