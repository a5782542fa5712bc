"""Parses times as people write them: `2h`, `3 days ago`, `yesterday`, `2026-11-01T10:00`.

Used by revisions, queries and retention rules. A time without a zone is local.

- An *age* is a duration: `90s`, `1h30m`, `3 days`, `1 week 2 days`.
- A *moment* is an age, with or without `ago`; `now`; `yesterday`, which is one day ago; `today`, a date or a day of the
  week, which are the start of that day; a time of today, `10:30`; or a date and a time as in ISO 8601.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

from holdfast._durations import match_duration
from holdfast.errors import InvalidError

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(\d\d?):([0-5]\d)(?::([0-5]\d))?")
_FAR = "the time is too far away"


def parse_age(text: str) -> timedelta:
    """Parse a length of time: `2h`, `3 days`. Raises `InvalidError`."""
    result = match_duration(text.strip().lower())
    if result is None:
        raise InvalidError(
            f"{text!r} is no length of time", hint="Write 90s, 30m, 2h, 3d, 1w, 6mo, 1y, or several: 1h30m, 3 days"
        )
    return result


def parse_moment(text: str, now: datetime) -> datetime:
    """Parse a moment, relative to another one that has a time zone. Raises `InvalidError`."""
    plain = " ".join(text.lower().split())
    try:
        result = _moment(plain, now)
    except (OverflowError, ValueError):  # Python's error for a zone that lies before the year 1 depends on the platform
        raise InvalidError(_FAR, where=repr(text)) from None
    if result is None:
        raise InvalidError(
            f"{text!r} is no time",
            hint="Write 2h, 3 days ago, yesterday, monday, 10:30, 2026-11-01 or 2026-11-01T10:00+01:00",
        )
    return result


def _moment(plain: str, now: datetime) -> datetime | None:
    if plain == "now":
        return now
    if plain == "yesterday":
        return now - timedelta(days=1)
    age = match_duration(plain.removesuffix(" ago"))
    if age is not None:
        return now - age
    # In local time, so that a day is a day when daylight saving time starts or ends.
    today = datetime.combine(now.astimezone(), time())
    day = plain.removeprefix("last ")
    if plain == "today":
        return today.astimezone()
    if day in _DAYS:
        back = (today.weekday() - _DAYS.index(day)) % 7
        return (today - timedelta(days=back or 7)).astimezone()
    try:
        result = datetime.fromisoformat(plain.upper())
    except ValueError:
        clock = _CLOCK.fullmatch(plain)
        if clock is None or int(clock[1]) > 23:
            return None
        result = today.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0))
    return result.astimezone() if result.tzinfo is None else result
