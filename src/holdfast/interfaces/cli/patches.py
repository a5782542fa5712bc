"""What differs between two states, in colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.interfaces.cli.formatting import safe
from holdfast.interfaces.cli.output import Output

if TYPE_CHECKING:
    from holdfast.history.diff_text import Line

_STYLES: dict[str, tuple[str, ...]] = {
    "path": ("cyan",),
    "old": ("red",),
    "new": ("green",),
    "old word": ("red", "bold"),
    "new word": ("green", "bold"),
}


def painted(out: Output, line: Line) -> str:
    """A line of a difference, as a terminal shows it."""
    return "".join(out.style(safe(text), *_STYLES.get(style, ())) for style, text in line)
