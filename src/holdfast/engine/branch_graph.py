"""How the branches of a line hang together: what comes before what, by counting and without reading steps.

A branch goes on where its base leaves off, and the numbers of its steps are dense. So the step that lies so many before
another is found by arithmetic over the branches on the way, however long they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast.engine.row_format import HINT, Branch
from holdfast.errors import CorruptError


class Position(NamedTuple):
    """Where a step stands in its line."""

    branch: int
    seq: int


class BranchGraph:
    """Where the branches of a line start."""

    def __init__(self, branches: Iterable[Branch]) -> None:
        self._bases = {each.branch: Position(each.base_branch, each.base_length - 1) for each in branches}
        for branch, base in self._bases.items():
            if base.branch >= branch and base.seq >= 0:  # a branch starts from one that was there before it
                raise CorruptError(f"branch {branch} is said to start from branch {base.branch}", hint=HINT)
        self._before: dict[int, int] = {0: 0}

    def base(self, branch: int) -> Position | None:
        """The step that a branch starts from; None where it starts before the line's first."""
        base = self._bases.get(branch)
        return None if base is None or base.seq < 0 else base

    def before(self, branch: int) -> int:
        """How many steps there are along a branch before its own."""
        way = []
        while branch not in self._before:
            way.append(branch)
            base = self.base(branch)
            if base is None:
                self._before[branch] = 0
                break
            branch = base.branch
        for each in reversed(way):
            base = self.base(each)
            self._before[each] = 0 if base is None else self._before[base.branch] + base.seq + 1
        return self._before[way[0] if way else branch]

    def depth(self, place: Position) -> int:
        """How many steps there are before a step."""
        return self.before(place.branch) + place.seq

    def along(self, branch: int, depth: int) -> Position:
        """The step that has so many before it, along a branch: on it, or before its start."""
        while depth < self.before(branch):
            branch = self._bases[branch].branch
        return Position(branch, depth - self.before(branch))

    def stretches(self, place: Position) -> Iterator[Position]:
        """A step, and the last one of each branch on the way from it to the line's start."""
        at: Position | None = place
        while at is not None:
            yield at
            at = self.base(at.branch)

    def common(self, one: Position, other: Position) -> Position | None:
        """The last step that is on the way from both to the line's start; None if there is none."""
        ends = {each.branch: each.seq for each in self.stretches(one)}
        for each in self.stretches(other):
            if each.branch in ends:
                return Position(each.branch, min(each.seq, ends[each.branch]))
        return None
