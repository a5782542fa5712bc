"""Text for a terminal: made harmless, measured, cut, padded; times and sizes in words."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache

_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls: a terminal obeys them
    "\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # these turn the direction of what follows, or break lines
    "\ud800-\udfff"  # half of a character: cannot be written
)
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}

_SPANS = (
    (365 * 86400, "year"),
    (30 * 86400, "month"),
    (7 * 86400, "week"),
    (86400, "day"),
    (3600, "hour"),
    (60, "minute"),
)


def safe(text: str, *, lines: bool = False) -> str:
    """Text that does nothing to a terminal but stand there: control characters are shown as in `\\x1b`.

    It stays on its line, unless it may have `lines` and tabs.
    """
    if text.isascii() and text.isprintable():
        return text
    return _unsafe(lines).sub(_escaped, text)


@cache  # made when it is first needed: it takes long, and most text has nothing of it
def _unsafe(lines: bool) -> re.Pattern[str]:
    return re.compile(f"[{_UNSAFE}]" if lines else f"[{_UNSAFE}\t\n]")


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    number = ord(character)
    return _SHORT.get(character) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")


def width(text: str) -> int:
    """How many columns text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def cut(text: str, columns: int) -> str:
    """Text of so many columns at most; what was longer ends with an ellipsis."""
    if width(text) <= columns:
        return text
    if columns < 1:
        return ""
    if text.isascii():
        return text[: columns - 1] + "…"
    kept, room = [], columns - 1
    for each in text:
        room -= width(each)
        if room < 0:
            break
        kept.append(each)
    return "".join(kept) + "…"


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Text of just so many columns, if it has not more."""
    space = " " * (columns - width(text))
    return space + text if right else text + space


def first_line(text: str) -> str:
    """What stands on the first line that says anything."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def size(count: int) -> str:
    """A number of bytes in words: `1.2 MB`. Thousands are of 1000, as disks and `ls --si` have it."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.5:
            return f"{amount:.1f} {unit}" if amount < 99.95 else f"{amount:.0f} {unit}"
    return f"{amount / 1000:.1f} TB"


def plural(count: int, noun: str) -> str:
    """A number of things: `1 step`, `2 branches`."""
    if count == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "ch", "sh", "x")) else "s"
    return f"{count:,} {noun}{ending}"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """How long ago something was: `2 hours ago`."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < 0:
        return "in the future" if seconds < -60 else "now"
    for span, noun in _SPANS:
        if seconds >= span:
            return f"{plural(int(seconds // span), noun)} ago"
    return f"{plural(int(seconds), 'second')} ago"


def local(moment: datetime) -> str:
    """A time on this machine's clock, as git shows it."""
    return f"{moment.astimezone():%a %b %d %H:%M:%S %Y %z}"


def clock(moment: datetime) -> str:
    """The same, short: `2026-11-01 10:30:00`."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def in_words(seconds: float) -> str:
    """How long it is until then."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"in {int(seconds // size)}{unit}"
    return f"in {max(int(seconds), 0)}s"
