"""The output of a command: stdout or a pager, styles, tables, and a progress bar on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import IO, Any, Self

import click

from holdfast.interfaces.cli.formatting import cut, pad, safe, width

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

_DIFF_STYLES: dict[str, tuple[str, ...]] = {
    "place": ("cyan",),
    "old": ("red",),
    "new": ("green",),
    "old word": ("red", "bold"),
    "new word": ("green", "bold"),
}

_OUTCOME_HEADS = ("STATE", "STATUS", "OUTCOME")
_OUTCOMES = {
    **dict.fromkeys(("ok", "active", "running", "done"), "green"),
    **dict.fromkeys(("failed", "error", "denied", "findings", "killed", "firing", "damaged"), "red"),
    **dict.fromkeys(("paused", "pending", "expired", "stopped", "waiting"), "yellow"),
}
"""The colours of words in columns that say how something stands or ended."""

_PAGE = 200
_BAR = 24
_BARS_EVERY, _LINES_EVERY = 0.1, 5.0
"""The least number of seconds between two bars, and between two lines in a pipe."""

_LEAST = 16
"""The least width of the column of a table that is cut first, so that names stay distinct."""

_CUT = 8
"""The least width of the others, before the last ones are left out."""


def on_terminal(stream: IO[str]) -> bool:
    """Return whether a stream is a terminal."""
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def wants_color(setting: str, stream: IO[str]) -> bool:
    """Return whether a stream gets colours: by the option, else if it is a terminal and `NO_COLOR` is not set."""
    if setting != "auto":
        return setting == "always"
    return on_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns(stream: IO[str]) -> int:
    """Return the width of a terminal."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


class Output:
    """Writes the output of a command to stdout, or to a pager if the command asks for one and stdout is a terminal.

    The pager starts at once: output that is read from the store page by page appears as it is read, and no more is read
    than is looked at.
    """

    def __init__(self, color: str = "auto", pager: bool = True) -> None:
        self._stream: IO[str] = sys.stdout
        self.color: bool = wants_color(color, self._stream)
        self._pager = pager and on_terminal(self._stream)
        self._stack = ExitStack()
        self.paging: bool = False
        """Whether a pager runs."""

    @property
    def terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return on_terminal(sys.stdout)

    @property
    def columns(self) -> int | None:
        """The width of the terminal; None if stdout is none."""
        return columns(sys.stdout) if self.terminal else None

    def page(self) -> None:
        """Send the output from here on through a pager, if the user wants one."""
        command = os.environ.get("HOLDFAST_PAGER", os.environ.get("PAGER", "less"))
        if not self._pager or self.paging or command.strip() in ("", "cat"):
            return
        os.environ["PAGER"] = command
        os.environ.setdefault("LESS", "FRX")  # as git does: no pager for less than a screen, colours, no clearing
        self._stream = self._stack.enter_context(click.get_pager_file(self.color))
        self.paging = True

    def line(self, text: str = "") -> None:
        """Write a line. Text from a store must have been through `safe`."""
        self._stream.write(f"{text}\n")

    def flush(self) -> None:
        """Write what is buffered."""
        self._stream.flush()

    def close(self) -> None:
        """End the output, and wait until the pager is left."""
        self.paging = False
        try:
            self._stream.flush()
        finally:
            self._stream = sys.stdout
            self._stack.close()

    def style(self, text: str, *styles: str) -> str:
        """Return text in a style, if the output has colours: `style(id, "yellow")`."""
        if not self.color or not text or not styles:
            return text
        codes = ";".join(str(_STYLES[style]) for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"

    def diff_line(self, parts: Iterable[tuple[str, str]]) -> str:
        """Return a line of a diff, which consists of styled parts."""
        return "".join(self.style(safe(text), *_DIFF_STYLES.get(style, ())) for style, text in parts)

    def table(
        self,
        heads: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        right: Sequence[str] = (),
        widths: Sequence[int] = (),
    ) -> list[int]:
        """Write rows under headings. Returns the widths of the columns, for further rows.

        A table is never wider than the terminal: the widest column is cut, then the last ones, and what has no room is
        named below. In a pipe nothing is cut. `right` names the columns that are aligned to the right.
        """
        cells = [[safe(cell) for cell in row] for row in rows]
        fitted = list(widths) if widths else self._fit(heads, cells)
        if not widths and heads:
            cells.insert(0, list(heads))
        for number, row in enumerate(cells):
            parts: list[str] = []
            for head, cell, columns in zip(heads, row, fitted, strict=True):
                if columns < 1:
                    continue
                text = cut(cell, columns) if self.terminal else cell
                last = head == heads[-1] and head not in right
                padded = text if last else pad(text, columns, right=head in right)
                is_head = not number and not widths
                style = "bold" if is_head else _OUTCOMES.get(cell, "") if head in _OUTCOME_HEADS else ""
                parts.append(self.style(padded, *filter(None, [style or ("" if parts else "yellow")])))
            self.line("  ".join(parts).rstrip() if not self.color else "  ".join(parts))
        return fitted

    def long_table(self, heads: Sequence[str], rows: Iterable[Sequence[str]], **options: Any) -> bool:
        """Write a table page by page, while its rows are read. Returns whether it has any."""
        widths: list[int] = []
        rows = iter(rows)
        while page := list(islice(rows, _PAGE)):
            widths = self.table(heads, page, widths=widths, **options)
        if left_out := [head for head, width in zip(heads, widths, strict=False) if not width]:
            from textwrap import wrap  # not needed where there is room

            note = f"(no room for {', '.join(left_out)}: widen the terminal, or give --json)"
            for line in wrap(note, self.columns or len(note)):
                self.line(self.style(line, "dim"))
        return bool(widths)

    def _fit(self, heads: Sequence[str], cells: list[list[str]]) -> list[int]:
        found = [max(map(width, column)) for column in zip(heads, *cells, strict=True)]
        room = self.columns
        if room is None:
            return found
        last = range(len(heads) - 1, -1, -1)
        order = [found.index(max(found)), *last, *last]
        least = [_LEAST, *[_CUT] * len(heads), *[0] * len(heads)]
        for place, smallest in zip(order, least, strict=True):
            over = sum(found) + 2 * (sum(1 for each in found if each) - 1) - room
            if over <= 0:
                break
            found[place] = max(min(smallest, found[place]), found[place] - over)
        return found


class ProgressBar:
    """A callback `progress(done, total, what)` that shows progress on stderr, used in a `with` block.

    A terminal gets a bar, which is removed at the end. Elsewhere long work writes a line from time to time.
    """

    def __init__(self, title: str, *, hidden: bool = False) -> None:
        self._title = title
        self._hidden = hidden
        self._terminal = on_terminal(sys.stderr)
        self._next = time.monotonic() + (0 if self._terminal else _LINES_EVERY)
        self._bar: Any = None
        self._drawn = False
        self.done: int = 0
        """The number of the last call."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the bar, before other output. The next call draws it again."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K\x1b[?25h")  # and show the cursor, which click hides
            sys.stderr.flush()

    def __call__(self, done: int, total: int | None = None, what: str = "") -> None:
        """Show that so many of a total are done."""
        self.done = done
        now = time.monotonic()
        if self._hidden or (now < self._next and not (self._terminal and done == total)):
            return
        self._next = now + (_BARS_EVERY if self._terminal else _LINES_EVERY)
        if not self._terminal:
            click.echo(f"{self._title}: {done:,}{f' of {total:,}' if total else ''} {safe(what)}", err=True)
            return
        self._drawn = True
        room = columns(sys.stderr) - 1
        if not total or room < _BAR + 30:
            text = f"{self._title}: {done:,}{f'/{total:,}' if total else ''} {safe(what)}"
            sys.stderr.write(f"\r{cut(text, room)}\x1b[K")
            sys.stderr.flush()
            return
        if self._bar is None:
            self._bar = click.progressbar(
                length=total,
                label=self._title,
                width=_BAR,
                show_pos=True,
                item_show_func=lambda item: cut(safe(item or ""), max(0, columns(sys.stderr) - _BAR - 60)),
                file=sys.stderr,
            )
        self._bar.length = total
        self._bar.update(done - self._bar.pos, what)
