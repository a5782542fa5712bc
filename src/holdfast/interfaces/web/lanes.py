"""The lanes beside a history: a column for each line of steps, as `git log --graph` has them, to be drawn as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

WIDTH, HEIGHT = 14, 44
"""The width of a lane and the height of a row, in pixels."""

COLORS = 6
_MOST = 12
"""More lanes than this are drawn on top of each other, at the right."""


MAX_WIDTH = WIDTH * (_MOST + 1)


class LaneLine(NamedTuple):
    """A line of a row: a path of SVG, and the number of its colour."""

    path: str
    color: int


class LaneRow(NamedTuple):
    """The part of the graph in a row."""

    x: int
    y: int
    color: int
    lines: list[LaneLine]
    lanes: int


class Lanes:
    """Draws a history from its latest step on. Each lane waits for the step that it leads to."""

    def __init__(self, waiting: str = "") -> None:
        """Start, or resume with what `waiting` returned after the page before."""
        self._lanes: list[str] = waiting.split(",") if waiting else []

    @property
    def waiting(self) -> str:
        """The positions that the lanes wait for, to resume with."""
        return ",".join(self._lanes)

    def row(self, position: str, parents: Sequence[str]) -> LaneRow:
        """Draw a step."""
        before = list(self._lanes)
        mine = [number for number, each in enumerate(before) if each == position]
        lane = mine[0] if mine else self._free()
        top, middle, bottom = 0, HEIGHT // 2, HEIGHT
        lines = [
            LaneLine(_path(number, top, number, bottom), number % COLORS)
            for number, each in enumerate(before)
            if each and each != position
        ]
        lines += [LaneLine(_path(number, top, lane, middle), number % COLORS) for number in mine]
        for number in mine:
            self._lanes[number] = ""
        self._lanes[lane] = parents[0] if parents else ""
        if parents:
            lines.append(LaneLine(_path(lane, middle, lane, bottom), lane % COLORS))
        for parent in parents[1:]:
            other = self._lanes.index(parent) if parent in self._lanes else self._free(parent)
            lines.append(LaneLine(_path(lane, middle, other, bottom), other % COLORS))
        while self._lanes and not self._lanes[-1]:
            self._lanes.pop()
        most = min(_MOST, max(len(before), len(self._lanes), lane + 1))
        return LaneRow(_x(lane), middle, lane % COLORS, lines, most)

    def _free(self, position: str = "") -> int:
        """Return a lane that is free, for a step that it waits for."""
        for number, each in enumerate(self._lanes):
            if not each:
                self._lanes[number] = position
                return number
        self._lanes.append(position)
        return len(self._lanes) - 1


def width_of(rows: Iterable[LaneRow]) -> int:
    """Return the width of the lanes of several rows, so that all texts beside them start at one place."""
    return WIDTH * (max((row.lanes for row in rows), default=0) + 1)


def _x(lane: int) -> int:
    return WIDTH * (min(lane, _MOST - 1) + 1)


def _path(lane: int, y: int, other: int, end: int) -> str:
    start, stop = _x(lane), _x(other)
    if start == stop:
        return f"M{start} {y}V{end}"
    half = (y + end) // 2
    return f"M{start} {y}C{start} {half} {stop} {half} {stop} {end}"
