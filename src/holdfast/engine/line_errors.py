"""Errors for lines and steps that are not there."""

from __future__ import annotations

from holdfast.engine.row_format import Line
from holdfast.errors import NotFoundError


def pruned_error(line: Line) -> NotFoundError:
    """Return the error for a step of which only a stub is left."""
    return NotFoundError(
        "the checkpoint was pruned", where=f"thread {line}", hint="See log() for the existing checkpoints"
    )


def missing_line_error(line: Line) -> NotFoundError:
    """Return the error for a line that does not exist."""
    return NotFoundError(
        "there is no such thread, or it has no checkpoint yet", where=f"thread {line}", hint="See threads()"
    )
