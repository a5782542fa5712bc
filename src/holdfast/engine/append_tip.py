"""The tip of a line that somebody may append to."""

from __future__ import annotations

from holdfast.backends.runtime.drivers import Pause
from holdfast.engine.lines import LineIndex, LineTip
from holdfast.engine.row_format import Line

_PAUSE_SECONDS, _MAX_PAUSES = 0.005, 400
"""How long to wait between two looks at a line on which a rewrite makes its last step, and how often at most."""


async def tip_to_append(lines: LineIndex, line: Line) -> LineTip | None:
    """Return the tip of a line to append to. Waits while a rewrite makes its last step. `ConflictError` if the line was
    restored in place since the store was opened."""
    tip = await lines.tip(line)
    for _ in range(_MAX_PAUSES):
        if tip is None or not tip.is_paused:
            break
        await Pause(_PAUSE_SECONDS)
        tip = await lines.load_tip(line)
    if tip is not None and tip.generation:
        await lines.generations.check(line, tip.generation)
    return tip


async def reload_tip(lines: LineIndex, line: Line) -> None:
    """Read the tip of a line again. `ConflictError` if it was restored in place since the store was opened."""
    tip = await lines.load_tip(line)
    if tip is not None and tip.generation:
        await lines.generations.check(line, tip.generation)
