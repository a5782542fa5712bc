"""The graph of a line's branches: ancestors by arithmetic, without reading steps.

A branch continues where its base ends, and its steps are numbered without gaps. So the ancestor at a given distance is
found by counting along the branches in between, however long they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast._named_tuple import NamedTuple
from holdfast.engine.row_format import HINT, Branch
from holdfast.errors import CorruptError


class Position(NamedTuple):
    """The position of a step in its line."""

    branch: int
    seq: int


class BranchGraph:
    """Knows where the branches of a line start."""

    def __init__(self, branches: Iterable[Branch]) -> None:
        self._bases = {each.branch: Position(each.base_branch, each.base_length - 1) for each in branches}
        for branch, base in self._bases.items():
            if base.branch >= branch and base.seq >= 0:  # a branch starts from an older one
                raise CorruptError(f"branch {branch} is recorded as starting from branch {base.branch}", hint=HINT)
        self._before: dict[int, int] = {0: 0}

    def base(self, branch: int) -> Position | None:
        """Return the step that a branch starts from; None if it starts before the line's first."""
        base = self._bases.get(branch)
        return None if base is None or base.seq < 0 else base

    def before(self, branch: int) -> int:
        """Return how many steps precede a branch's own."""
        path = []
        while branch not in self._before:
            path.append(branch)
            base = self.base(branch)
            if base is None:
                self._before[branch] = 0
                break
            branch = base.branch
        for each in reversed(path):
            base = self.base(each)
            self._before[each] = 0 if base is None else self._before[base.branch] + base.seq + 1
        return self._before[path[0] if path else branch]

    def depth(self, position: Position) -> int:
        """Return how many steps precede a step."""
        return self.before(position.branch) + position.seq

    def along(self, branch: int, depth: int) -> Position:
        """Return the step at a depth along a branch: on it, or before its start."""
        while depth < self.before(branch):
            branch = self._bases[branch].branch
        return Position(branch, depth - self.before(branch))

    def stretches(self, position: Position) -> Iterator[Position]:
        """Yield a step, and the last one of each branch between it and the line's start."""
        at: Position | None = position
        while at is not None:
            yield at
            at = self.base(at.branch)

    def common(self, one: Position, other: Position) -> Position | None:
        """Return the last common ancestor of two steps; None if there is none."""
        ends = {position.branch: position.seq for position in self.stretches(one)}
        for position in self.stretches(other):
            if position.branch in ends:
                return Position(position.branch, min(position.seq, ends[position.branch]))
        return None
