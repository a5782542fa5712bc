"""Where a command's output goes: stdout, or a pager; with colours, or without."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING

from holdfast.interfaces.cli.formatting import cut, pad, safe, width

if TYPE_CHECKING:
    from subprocess import Popen

_STYLES = {
    "bold": 1,
    "dim": 2,
    "red": 31,
    "green": 32,
    "yellow": 33,
    "blue": 34,
    "magenta": 35,
    "cyan": 36,
}

COLUMNS = 80
"""How wide a terminal is that does not say."""

_LEAST = 16
"""How far the column of a table that is cut first is cut: names have to be told apart. Then others are cut."""


def on_terminal(stream: IO[str]) -> bool:
    """Whether people look at a stream."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def wants_color(setting: str, stream: IO[str]) -> bool:
    """Whether a stream gets colours. `NO_COLOR` counts for more than that it is a terminal, the option for all."""
    if setting != "auto":
        return setting == "always"
    return on_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Output:
    """Writes what a command has to say to stdout.

    On a terminal, and where the command asked for it, that is a pager, started when the first line is written: what is
    read from the store page by page is seen at once, and no more is read than is looked at.
    """

    def __init__(self, color: str = "auto", pager: bool = True) -> None:
        self._stream: IO[str] = sys.stdout
        self.color = wants_color(color, self._stream)
        self._pager = pager and on_terminal(self._stream)
        self._paged: Popen[str] | None = None

    @property
    def terminal(self) -> bool:
        """Whether people look at it."""
        return on_terminal(sys.stdout)

    @property
    def columns(self) -> int | None:
        """How many columns a line has; None where nobody has to fit lines into a terminal."""
        if not self.terminal:
            return None
        given = os.environ.get("COLUMNS", "")
        if given.isdigit() and int(given):
            return int(given)
        try:
            return os.get_terminal_size(sys.stdout.fileno()).columns or COLUMNS
        except (OSError, ValueError):
            return COLUMNS

    def page(self) -> None:
        """From here on, what is written goes through a pager, if anybody wants one."""
        if not self._pager or self._paged is not None:
            return
        from holdfast.interfaces.cli.pager import start_pager

        self._paged = start_pager()
        if self._paged is not None and self._paged.stdin is not None:
            self._stream = self._paged.stdin

    def line(self, text: str = "") -> None:
        """Write a line. Text that comes from a store has been through `safe`."""
        self._stream.write(f"{text}\n")

    def flush(self) -> None:
        """See to it that what was written is seen."""
        self._stream.flush()

    def close(self) -> None:
        """End the output: with a pager, wait until people have looked at it."""
        paged, self._paged = self._paged, None
        try:
            self._stream.flush()
        finally:
            if paged is not None:
                from holdfast.interfaces.cli.pager import end_pager

                self._stream = sys.stdout
                end_pager(paged)

    @property
    def paging(self) -> bool:
        """Whether a pager runs."""
        return self._paged is not None

    # For people -----------------------------------------------------------------------------------------------

    def style(self, text: str, *styles: str) -> str:
        """Text in a colour, where there are colours: `style(id, "yellow")`."""
        if not self.color or not text or not styles:
            return text
        codes = ";".join(str(_STYLES[style]) for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"

    def table(
        self,
        heads: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Sequence[str] = (),
        shrink: str = "",
        styles: dict[str, str] | None = None,
        widths: Sequence[int] = (),
    ) -> list[int]:
        """Write rows under headings, each column as wide as it must be. Returns the widths, for more rows to come.

        On a terminal a table is never wider than it: the column `shrink` (the first, if none is named) is cut as far
        as need be, then the last ones. Elsewhere nothing is cut. `right` names columns of numbers.
        """
        cells = [[safe(cell) for cell in row] for row in rows]
        fitted = list(widths) if widths else self._fit(heads, cells, shrink)
        if not widths and heads:
            cells.insert(0, list(heads))
        for number, row in enumerate(cells):
            parts = []
            for head, cell, columns in zip(heads, row, fitted, strict=True):
                if columns < 1:
                    continue
                text = cut(cell, columns) if self.terminal else cell
                last = head == heads[-1] and head not in right
                padded = text if last else pad(text, columns, right=head in right)
                is_head = not number and not widths
                style = ("bold",) if is_head else ((styles[head],) if styles and head in styles else ())
                parts.append(self.style(padded, *style))
            self.line("  ".join(parts).rstrip() if not self.color else "  ".join(parts))
        return fitted

    def _fit(self, heads: Sequence[str], cells: list[list[str]], shrink: str) -> list[int]:
        found = [max(map(width, column)) for column in zip(heads, *cells, strict=True)]
        room = self.columns
        if room is None:
            return found
        order = [heads.index(shrink) if shrink else 0, *range(len(heads) - 1, -1, -1)]
        least = [_LEAST, *[0] * len(heads)]
        for place, smallest in zip(order, least, strict=True):
            over = sum(found) + 2 * (sum(1 for each in found if each) - 1) - room
            if over <= 0:
                break
            found[place] = max(min(smallest, found[place]), found[place] - over)
        return found
