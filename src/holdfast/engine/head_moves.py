"""Whether a step becomes HEAD of its line, or is saved beside it.

Without a parent a step follows HEAD, and becomes HEAD. So does one that follows HEAD or a step before it by id, as in a
graph that is run again from an older checkpoint. What is saved to another branch, by its name or by the id of a step on
it, is beside HEAD. Only a switch moves HEAD to another branch that exists.

In a line in which nothing was ever saved to another branch by its name, every step becomes HEAD if its id is the
greatest. Graphs that know nothing of branches, and return to any of their checkpoints, rely on that.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.engine.line_head import is_in_history
from holdfast.engine.lines import At, LineIndex, LineTip, OnBranch
from holdfast.engine.row_format import AT_HEAD, Line, StepRef


class MovesHead(Protocol):
    """What an `AppendRequest` says of HEAD."""

    line: Line
    parent: At
    new_branch: str
    moves_head: bool
    keeps_head: bool


class HeadMoves:
    """Decides whether steps that are appended become HEAD."""

    def __init__(self, lines: LineIndex) -> None:
        self._lines = lines

    async def leaves(self, request: MovesHead, tip: LineTip, *, opens: bool) -> bool:
        """Return whether a request asks for a step beside HEAD. `opens` says that it opens a branch in a conflict."""
        if tip.point is None or request.moves_head:
            return False
        if request.new_branch or (opens and request.keeps_head):
            return True
        if tip.is_only_branch or not isinstance(request.parent, OnBranch):
            return False
        head = await self._lines.latest_step(request.line)
        return head is not None and head.branch != await self._lines.branch(request.line, request.parent.name)

    async def place(
        self, request: MovesHead, tip: LineTip, parent: StepRef | None, number: int | None, *, opens: bool
    ) -> tuple[int, bool]:
        """Return the column `beside` of a step in a line that was forked, and whether HEAD moves to another branch.

        `parent` is the step that it follows, `number` that of the branch which the request names.
        """
        leaves = bool(request.new_branch or (opens and request.keeps_head))
        if not leaves and (parent is None or request.parent is None):
            return AT_HEAD, False
        if tip.is_only_branch and not opens:
            return AT_HEAD, False
        head = await self._lines.latest_step(request.line)
        if head is None:
            return AT_HEAD, False
        if leaves or parent is None:
            return head.branch, False
        if number is not None:
            return (AT_HEAD if number == head.branch else head.branch), False
        if parent.branch == head.branch:
            return AT_HEAD, False
        graph = await self._lines.branch_graph(request.line)
        return (AT_HEAD, True) if is_in_history(graph, head, parent) else (head.branch, False)
