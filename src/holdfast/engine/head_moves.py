"""Whether a step becomes HEAD of its line, or is saved beside it.

Without a parent a step follows HEAD, and becomes HEAD. What is saved to another branch by its name is beside HEAD. What
is saved after a certain step follows its example: after one that was saved beside HEAD it is beside HEAD, and after one
that was HEAD it becomes HEAD. So a graph can be run on a fork by the id of a checkpoint, and the line does not notice;
and a graph that returns to one of its own checkpoints, as in LangGraph, continues from there.

A switch draws a line: what was HEAD before is beside it from then on, so that a graph that was running does not undo
the switch. Of those steps, only what is in the history of HEAD can be returned to, except the one that HEAD was
switched away from: a graph that follows it was running.
"""

from __future__ import annotations

from typing import Protocol

from holdfast._named_tuple import NamedTuple
from holdfast.engine.line_head import is_in_history
from holdfast.engine.lines import At, LineIndex, LineTip
from holdfast.engine.row_format import AT_HEAD, Line, StepRef


class MovesHead(Protocol):
    """The effect of an `AppendRequest` on HEAD."""

    line: Line
    parent: At
    new_branch: str
    moves_head: bool
    keeps_head: bool
    stays_beside: bool


class HeadMove(NamedTuple):
    """The effect of a step on HEAD of its line."""

    beside: int = AT_HEAD
    """The column `beside` of the step."""
    to_other_branch: bool = False
    """Whether HEAD moves to another branch that exists. Whatever does that changes the version of the line, since a
    step beside HEAD names the branch that HEAD is on when it is stored."""
    switched_from: StepRef | None = None
    """What is HEAD before a switch."""


class HeadMoves:
    """Decides whether steps that are appended become HEAD."""

    def __init__(self, lines: LineIndex) -> None:
        self._lines = lines

    async def place(
        self,
        request: MovesHead,
        tip: LineTip,
        earlier: StepRef | None,
        parent: StepRef | None,
        number: int | None,
        *,
        opens: bool,
    ) -> HeadMove:
        """Return what a step does to HEAD.

        `earlier` is the HEAD that a step of the same batch becomes, `parent` the step that this one follows, and
        `number` that of the branch which the request names. `opens` says that it opens a branch.
        """
        if request.moves_head:
            left = None if opens else await self._lines.latest_step(request.line)
            return _FOLLOWS if left is not None and left.branch == number else HeadMove(AT_HEAD, True, left)
        leaves = bool(request.new_branch or (opens and request.keeps_head))
        if not leaves:
            if parent is None or request.parent is None:
                return _FOLLOWS
            # The usual case: it follows what was appended last, and HEAD is on the same branch as then.
            if (
                parent == tip.point
                and not request.stays_beside
                and (number is None or (number == parent.branch and parent.beside != AT_HEAD))
            ):
                return HeadMove(parent.beside)
        head = earlier or (tip.point if tip.is_only_branch else await self._lines.latest_step(request.line))
        if head is None:
            return _FOLLOWS
        if leaves or parent is None:
            return HeadMove(head.branch)
        if number is not None:
            return _FOLLOWS if number == head.branch else HeadMove(head.branch)
        if parent.branch == head.branch:
            return _FOLLOWS
        if request.stays_beside:
            return HeadMove(head.branch)
        switched_from = tip.info.switched_from
        if parent.beside == AT_HEAD and parent.id > switched_from:
            return HeadMove(AT_HEAD, True)
        if parent.id != switched_from and is_in_history(await self._lines.branch_graph(request.line), head, parent):
            return HeadMove(AT_HEAD, True)
        return HeadMove(head.branch)


_FOLLOWS = HeadMove()
