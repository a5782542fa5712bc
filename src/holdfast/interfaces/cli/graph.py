"""Lines and bends beside a log, as `git log --graph` draws them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

COLORS = ("red", "green", "yellow", "blue", "magenta", "cyan")

Paint = Callable[[str, str], str]
"""Colours a piece of the drawing: `paint("|", "red")`."""


class GraphDrawing:
    """Draws a history from its last steps to its first. Each line that goes on downwards waits for a step."""

    def __init__(self, paint: Paint, widest: int = 0) -> None:
        self._lanes: list[Hashable] = []
        self._colors: list[str] = []
        self._made = 0
        self._paint = paint
        self._widest = widest

    def step(self, place: Hashable, parents: Sequence[Hashable], mark: str = "*") -> tuple[list[str], str, list[str]]:
        """What to draw for a step: the lines before it, what stands beside it, and the lines after it."""
        before = []
        if place not in self._lanes:
            self._open(len(self._lanes), place)
        waiting = [lane for lane, each in enumerate(self._lanes) if each == place]
        for into, other in reversed(list(pairwise(waiting))):
            before += self._join(other, into)
        lane = waiting[0]
        row = [*(("|", color) for color in self._colors)]
        row[lane] = (mark, "")
        return before, self._drawn([piece for each in row for piece in (each, (" ", ""))]), self._go_on(lane, parents)

    def beside(self) -> str:
        """What stands beside further lines of text."""
        return self._drawn([piece for color in self._colors for piece in (("|", color), (" ", ""))])

    def replace(self, place: Hashable, parents: Sequence[Hashable]) -> None:
        """Pass by a step that is not shown: whatever waits for it waits for what it follows."""
        if parents:
            self._lanes = [parents[0] if each == place else each for each in self._lanes]
            return
        while place in self._lanes:
            self._close(self._lanes.index(place))

    def _go_on(self, lane: int, parents: Sequence[Hashable]) -> list[str]:
        if not parents:
            moved = len(self._lanes) - lane - 1
            colors = list(self._colors)
            self._close(lane)
            if not moved:
                return []
            return [self._drawn(_slanted(colors, lane, lane + 1, "/", -1))]
        self._lanes[lane] = parents[0]
        after = []
        for number, parent in enumerate(parents[1:], 1):
            self._open(lane + number, parent)
            after.append(self._drawn(_slanted(self._colors, lane + number, lane + number, "\\", -1)))
        return after

    def _join(self, lane: int, into: int) -> list[str]:
        """The lines in which one lane goes over into another on its left."""
        colors, color = list(self._colors), self._colors[lane]
        self._close(lane)
        if lane == into + 1:
            return [self._drawn(_slanted(colors, lane, lane, "/", -1))]
        first = _slanted(colors, lane, lane, "/", -1)
        for column in range(2 * into + 3, 2 * lane - 1, 2):
            first[column] = ("_", color)
        second: list[tuple[str, str]] = [piece for each in self._colors for piece in (("|", each), (" ", ""))]
        second[2 * into + 1] = ("/", color)
        return [self._drawn(first), self._drawn(second)]

    def _open(self, lane: int, place: Hashable) -> None:
        self._lanes.insert(lane, place)
        self._colors.insert(lane, COLORS[self._made % len(COLORS)])
        self._made += 1

    def _close(self, lane: int) -> None:
        del self._lanes[lane]
        del self._colors[lane]

    def _drawn(self, pieces: Sequence[tuple[str, str]]) -> str:
        cut = self._widest and len(pieces) > self._widest
        shown = pieces[: self._widest - 2] if cut else pieces
        text = "".join(self._paint(sign, color) if color else sign for sign, color in shown)
        return f"{text}~ " if cut else text


def _slanted(colors: Sequence[str], start: int, moved: int, sign: str, shift: int) -> list[tuple[str, str]]:
    """A row in which the lanes before `start` go straight on, and those from `moved` on one to the side."""
    row = [(" ", "")] * (2 * len(colors) + 1)
    for lane, color in enumerate(colors):
        if lane < start:
            row[2 * lane] = ("|", color)
        elif lane >= moved:
            row[2 * lane + shift] = (sign, color)
    return row
