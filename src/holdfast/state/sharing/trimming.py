"""Giving back the room of how it went: the steps of a line of work that nobody asks about any more."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine import validation
from holdfast.engine.rewrite.rewriter import RewritePlan
from holdfast.engine.row_format import Branch, StepRef
from holdfast.state.sharing.resource import SharedResource

RETAINED_STEPS = 1000
"""How many steps are kept, unless told otherwise."""


async def trim_history(place: SharedResource, keep: int) -> int:
    """Drop all steps but the last ones; what they led to stays as it is. Returns how many went."""
    count = max(validation.require_count(keep, "number of steps to keep"), 1)
    await place.handle.guard.allow("write", place.scope, ())
    engine, line, dropped = place.handle.engine, place.handle.line(place.name), 0
    if await engine.lines.load_tip(line) is None:
        return 0

    async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:  # noqa: ARG001 - there are none
        nonlocal dropped
        gone = frozenset(point[:2] for point in points[:-count] if not point.pruned)
        dropped = len(gone)
        return RewritePlan(gone)

    await engine.rewriter.rewrite(line, choose)
    return dropped
