"""The graph beside a log, as `git log --graph` draws it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

COLORS = ("red", "green", "yellow", "blue", "magenta", "cyan")

Paint = Callable[[str, str], str]
"""Colours a part of the graph: `paint("|", "red")`."""


class GraphDrawing:
    """Draws a history from its last steps to its first. Each column waits for the step that it leads to."""

    def __init__(self, paint: Paint, widest: int = 0) -> None:
        self._columns: list[Hashable] = []
        self._colors: list[str] = []
        self._opened = 0
        self._paint = paint
        self._widest = widest

    def step(
        self, position: Hashable, parents: Sequence[Hashable], mark: str = "*"
    ) -> tuple[list[str], str, list[str]]:
        """Draw a step: the lines before it, the graph beside it, and the lines after it."""
        before = []
        if position not in self._columns:
            self._open(len(self._columns), position)
        waiting = [index for index, each in enumerate(self._columns) if each == position]
        for into, other in reversed(list(pairwise(waiting))):
            before += self._join(other, into)
        index = waiting[0]
        row = [*(("|", color) for color in self._colors)]
        row[index] = (mark, "")
        return (
            before,
            self._draw([piece for each in row for piece in (each, (" ", ""))]),
            self._continue(index, parents),
        )

    def beside(self) -> str:
        """Draw the graph beside further lines of text."""
        return self._draw([piece for color in self._colors for piece in (("|", color), (" ", ""))])

    def replace(self, position: Hashable, parents: Sequence[Hashable]) -> None:
        """Skip a step that is not shown: its columns now wait for its parent."""
        if parents:
            self._columns = [parents[0] if each == position else each for each in self._columns]
            return
        while position in self._columns:
            self._close(self._columns.index(position))

    def _continue(self, index: int, parents: Sequence[Hashable]) -> list[str]:
        if not parents:
            moved = len(self._columns) - index - 1
            colors = list(self._colors)
            self._close(index)
            if not moved:
                return []
            return [self._draw(_slant(colors, index, index + 1, "/", -1))]
        self._columns[index] = parents[0]
        after = []
        for number, parent in enumerate(parents[1:], 1):
            self._open(index + number, parent)
            after.append(self._draw(_slant(self._colors, index + number, index + number, "\\", -1)))
        return after

    def _join(self, index: int, into: int) -> list[str]:
        """Draw a column that joins another on its left."""
        colors, color = list(self._colors), self._colors[index]
        self._close(index)
        if index == into + 1:
            return [self._draw(_slant(colors, index, index, "/", -1))]
        first = _slant(colors, index, index, "/", -1)
        for column in range(2 * into + 3, 2 * index - 1, 2):
            first[column] = ("_", color)
        second: list[tuple[str, str]] = [piece for each in self._colors for piece in (("|", each), (" ", ""))]
        second[2 * into + 1] = ("/", color)
        return [self._draw(first), self._draw(second)]

    def _open(self, index: int, position: Hashable) -> None:
        self._columns.insert(index, position)
        self._colors.insert(index, COLORS[self._opened % len(COLORS)])
        self._opened += 1

    def _close(self, index: int) -> None:
        del self._columns[index]
        del self._colors[index]

    def _draw(self, pieces: Sequence[tuple[str, str]]) -> str:
        cut = self._widest and len(pieces) > self._widest
        shown = pieces[: self._widest - 2] if cut else pieces
        text = "".join(self._paint(sign, color) if color else sign for sign, color in shown)
        return f"{text}~ " if cut else text


def _slant(colors: Sequence[str], start: int, moved: int, sign: str, shift: int) -> list[tuple[str, str]]:
    """Return a row in which the columns before `start` are straight, and those from `moved` on shift to the side."""
    row = [(" ", "")] * (2 * len(colors) + 1)
    for index, color in enumerate(colors):
        if index < start:
            row[2 * index] = ("|", color)
        elif index >= moved:
            row[2 * index + shift] = (sign, color)
    return row
