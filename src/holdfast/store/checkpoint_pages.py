"""Lists the checkpoints of several lines in one order, page by page."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.engine.branch_graph import BranchGraph
from holdfast.engine.engine import Engine
from holdfast.engine.line_head import is_in_history
from holdfast.engine.metadata_filter import UNMATCHED, MetadataFilter
from holdfast.engine.row_format import AT_HEAD, Line, StepRef
from holdfast.engine.step_info import StepInfo

_FIRST, _MOST = 4, 32
"""The number of checkpoints read at a time: few at first, for callers that need no more."""

_LINES = 256
"""The number of lines whose latest checkpoints are read at a time."""


class ListedCheckpoint(NamedTuple):
    """The line and the step of a checkpoint."""

    line: Line
    point: StepRef


class _Ahead(NamedTuple):
    """The next checkpoints of a line, ordered by the greatest id first."""

    line: Line
    points: deque[StepRef]

    def __lt__(self, other: _Ahead) -> bool:  # type: ignore[override]
        return self.points[0].id > other.points[0].id


class CheckpointListing:
    """The checkpoints of some lines by id, the greatest first."""

    def __init__(
        self,
        engine: Engine,
        metadata_of: Callable[[StepInfo], Mapping[str, Any]],
        lines: Sequence[Line],
        before: str,
        only: str | None,
        metadata: Mapping[str, Any],
        limit: int | None,
        defaults: Collection[str] = (),
    ) -> None:
        """`defaults` names entries of metadata that checkpoints may have without storing them."""
        self._engine = engine
        self._metadata_of = metadata_of
        self._only = only
        self._metadata = metadata
        filters = [MetadataFilter.of_value(key, value) for key, value in metadata.items() if key not in defaults]
        self._filters = [each for each in filters if each is not None]
        self._left = limit
        self._page = _FIRST if limit is None else min(limit, _MOST)
        if only is not None:
            # The id itself is the last one before the next possible id.
            lines, before = (lines, only + "\0") if not before or only < before else ((), "")
        self._before = dict.fromkeys(lines, before)
        """The id to continue before, for each line that may have more."""
        self._ahead: list[_Ahead] = []
        """A heap of the lines with checkpoints that were read and are not listed yet."""
        self._short: list[Line] = list(lines)
        """Lines whose next checkpoint is not read yet."""
        self._heads: dict[Line, tuple[StepRef, BranchGraph]] = {}
        """HEAD and the branches of lines with forks."""

    async def next(self) -> list[ListedCheckpoint]:
        """Return the next checkpoints; an empty list at the end."""
        page: list[ListedCheckpoint] = []
        count = self._page if self._left is None else min(self._page, self._left)
        while len(page) < count and (found := await self._candidates(count - len(page))):
            page += await self._matching(found)
        if self._left is not None:
            self._left -= len(page)
        self._page = min(2 * self._page, _MOST)
        return page

    async def _candidates(self, count: int) -> list[ListedCheckpoint]:
        found: list[ListedCheckpoint] = []
        while len(found) < count:
            await self._fill(count - len(found))
            if not self._ahead:
                break
            first = self._ahead[0]
            found.append(ListedCheckpoint(first.line, first.points.popleft()))
            if first.points:
                heapq.heapreplace(self._ahead, first)
            else:
                heapq.heappop(self._ahead)
                self._short.append(first.line)
        return found

    async def _fill(self, count: int) -> None:
        """Read the next checkpoint of every line; lines that have no more are dropped."""
        while self._short:
            lines, self._short = self._short[:_LINES], self._short[_LINES:]
            # Of many lines, most will need one checkpoint only.
            page = 1 if self._only is not None or len(lines) > 1 else min(count, _MOST)
            starts = [(line, self._before[line]) for line in lines]
            answers = await self._engine.lines.pages(starts, max(1, page), self._filters)
            for line, points in zip(lines, answers, strict=True):
                if not points or self._only not in (None, points[0].id):
                    continue
                self._before[line] = points[-1].id
                own = points if self._only is not None else await self._own(line, points)
                if own:
                    heapq.heappush(self._ahead, _Ahead(line, deque(own)))
                else:
                    self._short.append(line)

    async def _own(self, line: Line, points: list[StepRef]) -> list[StepRef]:
        """Return those of some checkpoints that are not on a fork: HEAD, what leads to it, and what was HEAD before."""
        if all(point.beside == AT_HEAD for point in points):
            return points
        if line not in self._heads:
            lines = self._engine.lines
            self._heads[line] = await lines.find(line, None), await lines.branch_graph(line)
        head, graph = self._heads[line]
        return [point for point in points if point.beside == AT_HEAD or is_in_history(graph, head, point)]

    async def _matching(self, found: Sequence[ListedCheckpoint]) -> list[ListedCheckpoint]:
        """Return the checkpoints with the metadata of the filter."""
        if not self._metadata:
            return list(found)
        found = [each for each in found if each.point.metadata != UNMATCHED]
        matching = []
        by_line: dict[Line, list[StepRef]] = {}
        for line, point in found:
            by_line.setdefault(line, []).append(point)
        heads = {
            (line, head.point.id): head
            for line, points in by_line.items()
            for head in await self._engine.step_info.describe(line, points)
        }
        for each in found:
            metadata = self._metadata_of(heads[each.line, each.point.id])
            if all(metadata.get(key) == value for key, value in self._metadata.items()):
                matching.append(each)
        return matching
