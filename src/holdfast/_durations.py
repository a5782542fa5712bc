"""Parses durations as people write them: `90s`, `1h30m`, `3 days`, `1 week 2 days`.

A number of seconds, minutes, hours, days, weeks, months (of 30 days) or years (of 365), or several of them.
"""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.errors import InvalidError

_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
    "mo": timedelta(days=30),
    "y": timedelta(days=365),
}
_WORDS = {
    "s": ("sec", "secs", "second", "seconds"),
    "m": ("min", "mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
    "w": ("week", "weeks"),
    "mo": ("month", "months"),
    "y": ("year", "years"),
}
_LENGTHS = _UNITS | {word: _UNITS[unit] for unit, words in _WORDS.items() for word in words}

_PART = re.compile(r"(\d+(?:\.\d+)?|an?(?=\s))\s*([a-z]+)[\s,]*")


def match_duration(text: str) -> timedelta | None:
    """Parse a duration; None if the text, in lower case, is something else."""
    total, at = timedelta(), 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _LENGTHS:
            return None
        try:
            total += _LENGTHS[part[2]] * (1.0 if part[1].startswith("a") else float(part[1]))
        except OverflowError:
            raise InvalidError("the time is too far away", where=repr(text)) from None
        at = part.end()
    return total if text else None
