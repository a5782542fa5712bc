"""Listing checkpoints of several lines in one order, page by page."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from holdfast.codec import Codec
from holdfast.engine.core import Engine
from holdfast.engine.records import Line, Point

_FIRST, _MOST = 4, 32
"""How many checkpoints are read at a time: few at first, for whoever wants no more than those."""

_LINES = 256
"""Of how many lines the latest checkpoints are read at a time."""


class Found(NamedTuple):
    """A checkpoint that was listed."""

    line: Line
    point: Point


class Listing:
    """The checkpoints of some lines by id, the greatest first."""

    def __init__(
        self,
        engine: Engine,
        codec: Codec,
        lines: Sequence[Line],
        before: str,
        only: str | None,
        metadata: Mapping[str, Any],
        limit: int | None,
    ) -> None:
        self._engine = engine
        self._codec = codec
        self._only = only
        self._metadata = metadata
        self._left = limit
        self._page = _FIRST if limit is None else min(limit, _MOST)
        if only is not None:
            # An id is the last one before the next that could be.
            lines, before = (lines, only + "\0") if not before or only < before else ((), "")
        self._before = dict.fromkeys(lines, before)
        """Where to go on in each line that may have more."""
        self._ahead: dict[Line, deque[Point]] = {line: deque() for line in lines}
        """What was read of each line and not yet listed."""

    async def next(self) -> list[Found]:
        """The next of them; none if there are no more."""
        page: list[Found] = []
        count = self._page if self._left is None else min(self._page, self._left)
        while len(page) < count and (found := await self._candidates(count - len(page))):
            page += await self._matching(found)
        if self._left is not None:
            self._left -= len(page)
        self._page = min(2 * self._page, _MOST)
        return page

    async def _candidates(self, count: int) -> list[Found]:
        found: list[Found] = []
        while len(found) < count:
            await self._fill(count)
            if not self._ahead:
                break
            line = max(self._ahead, key=lambda line: self._ahead[line][0].id)
            ahead = self._ahead[line]
            found.append(Found(line, ahead.popleft()))
        return found

    async def _fill(self, count: int) -> None:
        """Have the next checkpoint of every line at hand; lines that have no more are left out."""
        short = iter([line for line, ahead in self._ahead.items() if not ahead])
        # Of many lines, most are asked for one checkpoint only.
        page = count if len(self._ahead) == 1 else max(1, min(count, _MOST // max(1, len(self._ahead))))
        if self._only is not None:
            page = 1
        while lines := list(islice(short, _LINES)):
            answers = await self._engine.lines.pages([(line, self._before[line]) for line in lines], page)
            for line, points in zip(lines, answers, strict=True):
                if points and self._only in (None, points[0].id):
                    self._ahead[line].extend(points)
                    self._before[line] = points[-1].id
                else:
                    del self._ahead[line]

    async def _matching(self, found: Sequence[Found]) -> list[Found]:
        """Those with the wanted metadata."""
        if not self._metadata:
            return list(found)
        matching = []
        by_line: dict[Line, list[Point]] = {}
        for line, point in found:
            by_line.setdefault(line, []).append(point)
        headers = {
            (line, head.point.id): head.header
            for line, points in by_line.items()
            for head in await self._engine.heads.describe(line, points)
        }
        for each in found:
            metadata = self._codec.unpack(headers[each.line, each.point.id].metadata)
            if all(metadata.get(key) == value for key, value in self._metadata.items()):
                matching.append(each)
        return matching
