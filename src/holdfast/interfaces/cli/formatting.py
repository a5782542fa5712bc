"""Text for a terminal: escaped, measured, cut and padded; times and sizes as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from typing import Any

_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters
    "\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # these change the direction of text, or break lines
    "\ud800-\udfff"  # halves of surrogate pairs cannot be written
)
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}

_NEAR = 0.75
"""How similar a name must be to be suggested: 1 is equal, and one letter of four that differs is 0.75."""

_SPANS = (
    (365 * 86400, "year"),
    (30 * 86400, "month"),
    (7 * 86400, "week"),
    (86400, "day"),
    (3600, "hour"),
    (60, "minute"),
)


def safe(text: str, *, lines: bool = False) -> str:
    """Escape the control characters of a text, as in `\\x1b`, so that they cannot affect a terminal.

    With `lines`, ends of lines and tabs are kept.
    """
    if text.isascii() and text.isprintable():
        return text
    return _unsafe(lines).sub(_escape, text)


@cache  # compiled when needed: that takes long, and most text is plain
def _unsafe(lines: bool) -> re.Pattern[str]:
    return re.compile(f"[{_UNSAFE}]" if lines else f"[{_UNSAFE}\t\n]")


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    number = ord(character)
    return _SHORT.get(character) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")


def width(text: str) -> int:
    """Return the number of columns of a text."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def cut(text: str, columns: int) -> str:
    """Cut a text to a number of columns, with an ellipsis."""
    if width(text) <= columns:
        return text
    if columns < 1:
        return ""
    if text.isascii():
        return text[: columns - 1] + "…"
    start, room = [], columns - 1
    for each in text:
        room -= width(each)
        if room < 0:
            break
        start.append(each)
    return "".join(start) + "…"


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Pad a text to a number of columns."""
    space = " " * (columns - width(text))
    return space + text if right else text + space


def near(name: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return the names that differ from one by little, such as by a typing error, or that begin with it."""
    from difflib import get_close_matches

    plain, typed = {each.strip("-"): each for each in names}, name.strip("-")
    longer = [each for each in plain if len(typed) > 2 and each.startswith(typed)]
    found = dict.fromkeys([*get_close_matches(typed, plain, most, _NEAR), *longer])
    return [plain[each] for each in found][:most]


def first_line(text: str) -> str:
    """Return the first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def plural(count: int, noun: str) -> str:
    """Format a number of things: `1 step`, `2 branches`."""
    if count == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "ch", "sh", "x")) else "s"
    return f"{count:,} {noun}{ending}"


def line_counts(counts: Any) -> str:
    """Format how many lines of each kind a report counts: `2 threads, 1 agent`."""
    named = ((getattr(counts, f"{kind}s", 0), kind) for kind in ("thread", "agent", "scope", "session"))
    parts = [plural(count, kind) for count, kind in (*named, (counts.system, "system line")) if count]
    return ", ".join(parts) or "no threads"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """Format how long ago a time was: `2 hours ago`."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < 0:
        return "in the future" if seconds < -60 else "now"
    for span, noun in _SPANS:
        if seconds >= span:
            return f"{plural(int(seconds // span), noun)} ago"
    return f"{plural(int(seconds), 'second')} ago"


def local(moment: datetime) -> str:
    """Format a time in the local zone, as git does."""
    return f"{moment.astimezone():%a %b %d %H:%M:%S %Y %z}"


def clock(moment: datetime) -> str:
    """Format a time in the local zone: `2026-11-01 10:30:00`."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def in_words(seconds: float) -> str:
    """Format a time span from now: `in 2h`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"in {int(seconds // size)}{unit}"
    return f"in {max(int(seconds), 0)}s"


def when(moment: datetime) -> str:
    """Format a time for a table: `2 hours ago`, or `in 2h`."""
    ahead = (moment - datetime.now(UTC)).total_seconds()
    return in_words(ahead) if ahead > 60 else ago(moment)
