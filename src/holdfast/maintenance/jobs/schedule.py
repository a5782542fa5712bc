"""Schedules: when a job is due.

::

    every 6h                                 a duration after the last time: 90s, 30m, 1d12h
    hourly                                   hourly at 15: a quarter past
    daily at 03:00
    weekly on sun at 03:00                   weekly on mon,thu at 03:00
    monthly on 1 at 03:00                    monthly on L: the last day
    0 3 * * mon-fri                          cron's five fields: minute, hour, day, month, day of the week

Times are in UTC, unless a zone is named at the end: `daily at 03:00 Europe/Berlin`. When clocks change there, it is as
in Debian's cron: a time that is skipped comes right after the gap, and one that occurs twice counts once. A schedule
whose minute or hour begins with `*`, such as `hourly`, follows the clock, and so comes in both of the hours.

This module reads no clock: `next_after` takes the time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from holdfast.errors import InvalidError
from holdfast.time_parser import format_duration, parse_duration

FORMS = "every 6h, hourly, daily at 03:00, weekly on sun at 03:00, monthly on 1 at 03:00, or cron's 0 3 * * *"
"""The forms of a schedule, for hints."""

_FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_MINUTE = re.compile(r":?([0-5]?\d)")
_MIN_PERIOD, _MAX_PERIOD = timedelta(seconds=1), timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class PeriodicSchedule:
    """A duration after the last time."""

    period: timedelta

    def next_after(self, moment: datetime) -> datetime:
        """Return the next time, in UTC."""
        return moment.astimezone(UTC) + self.period

    def __str__(self) -> str:
        return f"every {format_duration(self.period)}"


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Times of certain days, as an expression of cron in a zone. `text` is the schedule as it was written."""

    text: str
    expression: str
    zone: str = ""

    def next_after(self, moment: datetime) -> datetime:
        """Return the next time, in UTC."""
        zone: tzinfo = ZoneInfo(self.zone) if self.zone else UTC
        moment = moment.astimezone(UTC)
        for due in CronSim(self.expression, moment.astimezone(zone)):
            # After a time that occurred twice, the first of them is not the next.
            if (found := due.astimezone(UTC)) > moment:
                return found
        raise InvalidError(f"the schedule {self.text!r} has no further time")

    def __str__(self) -> str:
        return self.text


Schedule = PeriodicSchedule | CronSchedule


def parse(text: str) -> Schedule:
    """Parse a schedule. `InvalidError` says what is wrong with it."""
    given: object = text
    if not isinstance(given, str) or not text.split():
        raise InvalidError("a schedule is text that says when", where=repr(text)[:80], hint=f"Write {FORMS}")
    words = text.split()
    if words[0][0].isdigit() or words[0][0] == "*":
        if len(words) < len(_FIELDS):
            raise _invalid(text, f"cron has five fields, and these are {len(words)}")
        return _cron(text, words[:5], words[5:])
    kind = words[0].lower()
    match kind:
        case "every":
            return _interval(text, " ".join(words[1:]))
        case "hourly":
            return _hourly(text, words[1:])
        case "daily" | "weekly" | "monthly":
            return _on_days(text, kind, words[1:])
    raise _invalid(text, f"a schedule does not begin with {kind!r}")


def _interval(text: str, duration: str) -> PeriodicSchedule:
    try:
        period = parse_duration(duration)
    except InvalidError as error:
        raise _invalid(text, f"after `every` comes a duration: {error.what}", error.hint) from None
    if not _MIN_PERIOD <= period <= _MAX_PERIOD:
        raise _invalid(text, "the duration is at least a second, and at most ten years")
    return PeriodicSchedule(period)


def _hourly(text: str, words: list[str]) -> CronSchedule:
    minute = "0"
    if words and words[0].lower() == "at":
        found = _MINUTE.fullmatch(words[1]) if len(words) > 1 else None
        if found is None:
            raise _invalid(text, "after `hourly at` comes a minute, from 0 to 59")
        minute, words = found[1], words[2:]
    return _cron(text, [minute, "*", "*", "*", "*"], words)


def _on_days(text: str, kind: str, words: list[str]) -> CronSchedule:
    day = weekday = "*"
    if kind != "daily":
        if len(words) < 2 or words[0].lower() != "on":
            raise _invalid(text, f"after `{kind}` comes a day: {'on sun' if kind == 'weekly' else 'on 1'}")
        if kind == "monthly":
            day = words[1]
        elif words[1][0].isdigit():  # cron's week begins on Sunday, a calendar's may not
            raise _invalid(text, f"{words[1]!r} is no day of the week: write mon, tue, wed, thu, fri, sat or sun")
        else:
            weekday = words[1]
        words = words[2:]
    hour = minute = "0"
    if words and words[0].lower() == "at":
        found = _CLOCK.fullmatch(words[1]) if len(words) > 1 else None
        if found is None:
            raise _invalid(text, "after `at` comes a time of the day, such as 03:00")
        hour, minute, words = found[1], found[2], words[2:]
    return _cron(text, [minute, hour, day, "*", weekday], words)


def _cron(text: str, fields: list[str], rest: list[str]) -> CronSchedule:
    # A week may end with Sunday as well: fri-sun.
    fields[4] = fields[4].lower().replace("-sun", "-7")
    expression = " ".join(fields)
    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        raise _invalid(text, f"{fields[_FIELDS.index(name)]!r} is no {name}") from None
    return CronSchedule(" ".join(text.split()), expression, _zone(text, rest))


def _zone(text: str, words: list[str]) -> str:
    if not words:
        return ""
    if len(words) > 1:
        raise _invalid(text, f"nothing is to follow here: {' '.join(words)!r}")
    if words[0].upper() in ("UTC", "Z"):
        return ""
    try:
        return ZoneInfo(words[0]).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise _invalid(
            text, f"no time zone has the name {words[0]!r}", "Write one such as Europe/Berlin, or UTC"
        ) from None


def _invalid(text: str, what: str, hint: str = "") -> InvalidError:
    return InvalidError(what, where=f"schedule {text!r}"[:200], hint=hint or f"Write {FORMS}")
