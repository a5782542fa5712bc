"""A line on stderr that says how far long work has got. Only people see it."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Self

from holdfast.interfaces.cli.formatting import cut, safe
from holdfast.interfaces.cli.output import COLUMNS, on_terminal

_INTERVAL = 0.1
_BAR = 24


class ProgressBar:
    """A callback `progress(done, total, what)` that draws a bar; used in a `with` block, at whose end it is wiped.

    It draws ten times a second at most, and nothing at all unless stderr is a terminal.
    """

    def __init__(self, title: str, *, shown: bool = True) -> None:
        self._title = title
        self._shown = shown and on_terminal(sys.stderr)
        self._drawn = 0.0
        self._began = time.monotonic()
        self.done = 0
        """How many are done, as it was last told."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Wipe the bar, since something else is to be written. It is drawn again."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, done: int, total: int | None = None, what: str = "") -> None:
        """Tell that so many are done."""
        self.done = done
        now = time.monotonic()
        if not self._shown or (now - self._drawn < _INTERVAL and done != total):
            return
        self._drawn = now
        sys.stderr.write(f"\r{cut(self._text(done, total, what, now - self._began), _columns() - 1)}\x1b[K")
        sys.stderr.flush()

    def _text(self, done: int, total: int | None, what: str, seconds: float) -> str:
        if not total:
            return f"{self._title}: {done:,} {safe(what)}"
        part = min(done / total, 1.0)
        full = int(part * _BAR)
        left = f", {_span(seconds / part - seconds)} left" if 0 < part < 1 and seconds > 2 else ""
        return f"{self._title} [{'#' * full}{'.' * (_BAR - full)}] {part:4.0%} {done:,}/{total:,}{left} {safe(what)}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):
        return COLUMNS
