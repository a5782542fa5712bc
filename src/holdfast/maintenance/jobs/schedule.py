"""When a job is due: schedules as people write them.

::

    every 6h                                 again so long after the last time: s, m, h, d, w, or 1d12h
    hourly                                   hourly at 15: a quarter past
    daily at 03:00
    weekly on sun at 03:00                   weekly on mon,thu at 03:00
    monthly on 1 at 03:00
    0 3 * * mon-fri                          cron's five fields: minute, hour, day, month, day of the week

Times are in UTC, unless a zone is named at the end: `daily at 03:00 Europe/Berlin`. There a time that a change of the
clocks leaves out comes that much later, and one that comes twice counts once; what is meant for every hour comes in
every hour.

This module reads no clock: `next_after` is told the time.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.errors import InvalidError

FORMS = "every 6h, hourly, daily at 03:00, weekly on sun at 03:00, monthly on 1 at 03:00, or cron's 0 3 * * *"
"""The forms there are, for hints."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SPAN = re.compile(r"(?:\d+[smhdw])+")
_PART = re.compile(r"(\d+)([smhdw])")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
_LONGEST = timedelta(days=3660)

_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CRON_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

_EVERY_DAY = frozenset(range(1, 32))
_EVERY_MONTH = frozenset(range(1, 13))
_EVERY_WEEKDAY = frozenset(range(7))

_FAR = 366 * 8 + 2
"""After so many days every date has come: the 29th of February may be eight years away."""


@dataclass(frozen=True, slots=True)
class Every:
    """So long after the last time."""

    period: timedelta

    def next_after(self, moment: datetime) -> datetime:
        """When the next time is."""
        return moment.astimezone(UTC) + self.period

    def __str__(self) -> str:
        seconds, parts = int(self.period.total_seconds()), []
        for unit, size in sorted(_UNITS.items(), key=lambda each: -each[1]):
            count, seconds = divmod(seconds, size)
            if count:
                parts.append(f"{count}{unit}")
        return f"every {''.join(parts)}"


@dataclass(frozen=True, slots=True)
class Calendar:
    """At certain times of certain days. `text` is how it was written."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """As `date.weekday` counts them."""
    either: bool
    """Whether it is enough that the day or the weekday is one of those. That is cron's rule where both are given."""
    zone: str = ""

    def next_after(self, moment: datetime) -> datetime:
        """When the next time is."""
        zone: tzinfo = ZoneInfo(self.zone) if self.zone else UTC
        first = moment.astimezone(zone).date() - timedelta(days=1)
        found: datetime | None = None
        for ahead in range(_FAR):
            day = first + timedelta(days=ahead)
            if self._on(day):
                later = [each for each in self._times(day, zone) if each > moment]
                if found is not None:
                    later.append(found)  # where clocks change, the next day may be as early
                    return min(later)
                found = min(later, default=None)
            elif found is not None:
                return found
        raise InvalidError(f"the schedule {self.text!r} has no further time")

    def _on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.weekday() in self.weekdays
        return by_day or by_weekday if self.either else by_day and by_weekday

    def _times(self, day: date, zone: tzinfo) -> Iterator[datetime]:
        every_hour = len(self.hours) == 24
        for hour in self.hours:
            for minute in self.minutes:
                for fold in (0, 1) if every_hour else (0,):
                    found = datetime.combine(day, time(hour, minute, fold=fold), zone).astimezone(UTC)
                    if not every_hour or found.astimezone(zone).time() == time(hour, minute):
                        yield found

    def __str__(self) -> str:
        return self.text


Schedule = Every | Calendar


def parse(text: str) -> Schedule:
    """The schedule that is written so. `InvalidError` says what is wrong with it."""
    given: object = text
    if not isinstance(given, str) or not text.split():
        raise InvalidError("a schedule is text that says when", where=repr(text)[:80], hint=f"Write {FORMS}")
    words = text.split()
    if words[0][0].isdigit() or words[0][0] == "*":
        return _cron(text, words)
    words = text.lower().split()
    match words[0]:
        case "every":
            return _every(text, words[1:])
        case "hourly":
            return _hourly(text, text.split()[1:])
        case "daily" | "weekly" | "monthly":
            return _at_times(text, words[0], text.split()[1:])
    raise _wrong(text, f"a schedule does not begin with {words[0]!r}")


def _every(text: str, words: list[str]) -> Every:
    given = "".join(words)
    if not _SPAN.fullmatch(given):
        raise _wrong(text, "after `every` comes a span of time, such as 6h, 30m or 1d12h")
    # A number that is too large for a timedelta is too long as well.
    seconds = sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(given))
    if not 1 <= seconds <= _LONGEST.total_seconds():
        raise _wrong(text, "the span is at least a second, and at most ten years")
    return Every(timedelta(seconds=seconds))


def _hourly(text: str, words: list[str]) -> Calendar:
    minute = 0
    if words and words[0].lower() == "at":
        given = words[1].lstrip(":") if len(words) > 1 else ""
        if not given.isdecimal() or int(given) > 59:
            raise _wrong(text, "after `hourly at` comes a minute, from 0 to 59")
        minute, words = int(given), words[2:]
    return _calendar(text, {minute}, set(range(24)), zone=_zone(text, words))


def _at_times(text: str, how: str, words: list[str]) -> Calendar:
    days: Set[int] = _EVERY_DAY
    weekdays: Set[int] = _EVERY_WEEKDAY
    if how != "daily":
        if len(words) < 2 or words[0].lower() != "on":
            raise _wrong(text, f"after `{how}` comes a day: {'on sun' if how == 'weekly' else 'on 1'}")
        if how == "weekly":
            weekdays = _fields(text, words[1], 0, 6, _WEEKDAYS, "day of the week")
        else:
            days = _fields(text, words[1], 1, 31, (), "day of the month")
        words = words[2:]
    hour = minute = 0
    if words and words[0].lower() == "at":
        found = _CLOCK.fullmatch(words[1]) if len(words) > 1 else None
        if found is None or int(found[1]) > 23 or int(found[2]) > 59:
            raise _wrong(text, "after `at` comes a time of the day, such as 03:00")
        hour, minute, words = int(found[1]), int(found[2]), words[2:]
    return _calendar(text, {minute}, {hour}, days, weekdays=weekdays, zone=_zone(text, words))


def _cron(text: str, words: list[str]) -> Calendar:
    if len(words) < 5:
        raise _wrong(text, f"cron has five fields, and these are {len(words)}")
    minutes = _fields(text, words[0], 0, 59, (), "minute")
    hours = _fields(text, words[1], 0, 23, (), "hour")
    days = _fields(text, words[2], 1, 31, (), "day of the month")
    months = _fields(text, words[3], 1, 12, ("", *_MONTHS), "month")
    numbers = _fields(text, words[4], 0, 7, (*_CRON_DAYS, "sun"), "day of the week")
    weekdays = {(number - 1) % 7 for number in numbers}
    both = not words[2].startswith("*") and not words[4].startswith("*")
    return _calendar(text, minutes, hours, days, months, weekdays, both, _zone(text, words[5:]))


def _calendar(
    text: str,
    minutes: Set[int],
    hours: Set[int],
    days: Set[int] = _EVERY_DAY,
    months: Set[int] = _EVERY_MONTH,
    weekdays: Set[int] = _EVERY_WEEKDAY,
    either: bool = False,
    zone: str = "",
) -> Calendar:
    longest = max(29 if month == 2 else calendar.monthrange(2001, month)[1] for month in months)
    if min(days) > longest and not either:
        raise _wrong(text, f"none of those months has a day {min(days)}")
    return Calendar(
        " ".join(text.split()),
        frozenset(minutes),
        frozenset(hours),
        frozenset(days),
        frozenset(months),
        frozenset(weekdays),
        either,
        zone,
    )


def _fields(text: str, field: str, low: int, high: int, names: tuple[str, ...], what: str) -> set[int]:
    """The numbers that a field of cron stands for: `*`, `*/5`, `1,3`, `1-5`, `1-5/2`, `mon-fri`."""
    numbers: set[int] = set()
    for part in field.lower().split(","):
        span, slash, step = part.partition("/")
        if slash and (not step.isdecimal() or int(step) < 1):
            raise _wrong(text, f"{part!r} is no {what}: after the slash comes a number from 1 on")
        if span == "*":
            first, last = low, high if high != 7 else 6
        else:
            left, dash, right = span.partition("-")
            first = _number(text, left, low, high, names, what)
            last = _number(text, right, low, high, names, what) if dash else (high if slash else first)
            if dash and right == "sun" and high == 7:
                last = 7  # the week may end with it as well
            if last < first:
                raise _wrong(text, f"{part!r} goes backwards")
        numbers.update(range(first, last + 1, int(step) if slash else 1))
    return numbers


def _number(text: str, given: str, low: int, high: int, names: tuple[str, ...], what: str) -> int:
    if given and given in names:
        return names.index(given)
    if given.isdecimal() and low <= int(given) <= high and (what != "day of the week" or high == 7):
        return int(given)
    range_ = f"{low} to {high}" if not names else ", ".join(filter(None, dict.fromkeys(names)))
    raise _wrong(text, f"{given!r} is no {what}: it is one of {range_}")


def _zone(text: str, words: list[str]) -> str:
    """The zone that is named at the end."""
    if not words:
        return ""
    if len(words) > 1:
        raise _wrong(text, f"nothing is to follow here: {' '.join(words)!r}")
    if words[0].upper() in ("UTC", "Z"):
        return ""
    try:
        return ZoneInfo(words[0]).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise _wrong(
            text, f"no time zone has the name {words[0]!r}", "Write one such as Europe/Berlin, or UTC"
        ) from None


def _wrong(text: str, what: str, hint: str = "") -> InvalidError:
    return InvalidError(what, where=f"schedule {text!r}"[:200], hint=hint or f"Write {FORMS}")
