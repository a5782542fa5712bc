"""The one parser of durations and times.

- A *duration* is a `timedelta`, a number of seconds, or text: a number of seconds, minutes, hours, days, weeks, months
  (of 30 days) or years (of 365), or several of them (`90s`, `1h30m`, `3 days`, `1 week 2 days`), or as in ISO 8601
  (`PT2H`, `P1DT12H`). Text needs a unit: `"30"` could mean anything.
- A *time* is a `datetime`, or text: a date and a time as in ISO 8601; a date or a day of the week, which are the start
  of that day; `today`; a time of today, `10:30`; `now`; `yesterday`, which is one day ago; or a duration before now,
  with or without `ago`. A time without a zone is local.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from typing import TypeAlias

from holdfast.errors import InvalidError

Duration: TypeAlias = str | float | timedelta
Time: TypeAlias = str | datetime | timedelta

DURATION_FORMS = "90s, 30m, 2h, 3d, 1w, 6mo or 1y, several of them (1h30m, 3 days), or PT2H"
TIME_FORMS = "2h, 3 days ago, yesterday, monday, 10:30, 2026-11-01 or 2026-11-01T10:00+01:00"

MAX_SECONDS = 10**10
"""The longest duration: some 317 years."""

_UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "mo": timedelta(days=30),
    "y": timedelta(days=365),
}
_FORMAT_UNITS = ("w", "d", "h", "m")
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
_ISO_DURATION = re.compile(r"p(?=[\dt])([\d.ymwd]*)(?:t(?=\d)([\d.hms]+))?")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_CLOCK = re.compile(r"(\d\d?):([0-5]\d)(?::([0-5]\d))?")
_TOO_FAR = "the time is too far away"


def parse_duration(value: object, what: str = "duration", *, positive: bool = False) -> timedelta:
    """Parse a duration: text, a timedelta, or a number of seconds. `what` names it in the `InvalidError`."""
    found: timedelta | None = None
    if isinstance(value, str):
        found = _duration(value.strip().lower())
    elif isinstance(value, timedelta):
        found = value
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_SECONDS:
        found = timedelta(seconds=value)
    if found is None:
        hint = f"Write {DURATION_FORMS}; or give a timedelta or a number of seconds"
        raise InvalidError(f"{value!r} is not a valid {what}"[:200], hint=hint)
    if found < timedelta() or (positive and not found) or found.total_seconds() > MAX_SECONDS:
        limit = "longer than 0" if positive else "not negative"
        raise InvalidError(f"the {what} is {limit}, and at most 300 years, not {value!r}"[:200])
    return found


def parse_seconds(value: object, what: str = "duration", *, positive: bool = False) -> float:
    """Parse a duration, in seconds."""
    if type(value) in (int, float) and 0 < value <= MAX_SECONDS:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]  # a timedelta has no nanoseconds
    return parse_duration(value, what, positive=positive).total_seconds()


def parse_nanoseconds(value: object, what: str = "duration", *, positive: bool = False) -> int:
    """Parse a duration, in nanoseconds."""
    return parse_duration(value, what, positive=positive) // timedelta(microseconds=1) * 1000


def format_duration(duration: timedelta) -> str:
    """Write a duration as `parse_duration` reads it, in the largest units: `1d12h`."""
    parts = []
    for unit in _FORMAT_UNITS:
        count, duration = divmod(duration, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    if duration or not parts:
        fraction = f".{duration.microseconds:06}".rstrip("0") if duration.microseconds else ""
        parts.append(f"{duration.seconds}{fraction}s")
    return "".join(parts)


def parse_time(value: object, now: datetime) -> datetime:
    """Parse a time, relative to `now`, which has a time zone; a timedelta is so long ago. Raises `InvalidError`."""
    try:
        if isinstance(value, str):
            found = _time(" ".join(value.lower().split()), now)
        elif isinstance(value, timedelta):
            found = now - value
        else:
            found = value if isinstance(value, datetime) else None
        if found is not None:
            found.astimezone(UTC)
            return found if found.tzinfo is not None else found.astimezone()
    except (OverflowError, ValueError):  # Python's error for a zone that lies before the year 1 depends on the platform
        raise InvalidError(_TOO_FAR, where=repr(value)[:80]) from None
    raise InvalidError(f"{value!r} is not a time"[:200], hint=f"Write {TIME_FORMS}, or give a datetime")


def parse_deadline(value: object, now: datetime) -> datetime:
    """Parse a time to come: a duration from now, or a time. Raises `InvalidError`, also for text in the past."""
    if isinstance(value, datetime):
        return parse_time(value, now)
    if not isinstance(value, str) or _duration(value.strip().lower()) is not None:
        return now + parse_duration(value, positive=True)
    found = parse_time(value, now)
    if found <= now:
        raise InvalidError(f"{value!r} is in the past", hint="Write 2h for two hours from now, or a time in the future")
    return found


def _duration(plain: str) -> timedelta | None:
    iso = _ISO_DURATION.fullmatch(plain)
    if iso is not None:
        plain = iso[1].replace("m", "mo") + (iso[2] or "")
    total, at = timedelta(), 0
    while at < len(plain):
        part = _PART.match(plain, at)
        if part is None or part[2] not in _LENGTHS:
            return None
        try:
            total += _LENGTHS[part[2]] * (1.0 if part[1].startswith("a") else float(part[1]))
        except OverflowError:
            raise InvalidError(_TOO_FAR, where=repr(plain)[:80]) from None
        at = part.end()
    return total if plain else None


def _time(plain: str, now: datetime) -> datetime | None:
    if plain == "now":
        return now
    if plain == "yesterday":
        return now - timedelta(days=1)
    age = _duration(plain.removesuffix(" ago"))
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
        return datetime.fromisoformat(plain.upper())
    except ValueError:
        clock = _CLOCK.fullmatch(plain)
        if clock is None or int(clock[1]) > 23:
            return None
        return today.replace(hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0))
