"""Schedules: what is written is what is meant, and the next time is the next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidError
from holdfast.maintenance.jobs.job import CronSchedule, PeriodicSchedule, parse_schedule
from tests.support.nightly import fewer_examples

MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2080, 1, 1), timezones=st.just(UTC))
ZONES = ["", "UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"]
DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
SPANS = st.lists(
    st.tuples(st.integers(1, 50), st.sampled_from("smhdw")), min_size=1, max_size=3, unique_by=lambda each: each[1]
).map(lambda parts: "every " + "".join(f"{count}{unit}" for count, unit in parts))


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    # A range of one number with a step is to cronsim as if it had no end.
    ranges = st.lists(number, min_size=2, max_size=2, unique=True).map(lambda each: f"{min(each)}-{max(each)}")
    steps = st.tuples(st.one_of(st.just("*"), ranges), st.integers(1, high)).map(lambda each: f"{each[0]}/{each[1]}")
    part = st.one_of(number.map(str), ranges, steps)
    return st.one_of(st.just("*"), st.lists(part, min_size=1, max_size=3).map(",".join))


@st.composite
def crons(draw: st.DrawFn) -> str:
    # The 28th and before: every month has those.
    fields = [draw(field(*bounds)) for bounds in ((0, 59), (0, 23), (1, 28), (1, 12), (0, 7))]
    return " ".join([*fields, draw(st.sampled_from(ZONES))]).strip()


@st.composite
def clocks(draw: st.DrawFn) -> str:
    at = f"at {draw(st.integers(0, 23)):02}:{draw(st.integers(0, 59)):02}"
    how = draw(st.sampled_from(["daily", "weekly", "monthly", "hourly"]))
    if how == "hourly":
        text = f"hourly at {draw(st.integers(0, 59))}"
    elif how == "daily":
        text = f"daily {at}"
    elif how == "weekly":
        days = draw(st.lists(st.sampled_from(DAYS), min_size=1, max_size=3))
        text = f"weekly on {','.join(days)} {at}"
    else:
        text = f"monthly on {draw(st.integers(1, 31))} {at}"
    return f"{text} {draw(st.sampled_from(ZONES))}".strip()


SCHEDULES = st.one_of(SPANS, crons(), clocks())


@given(SCHEDULES, MOMENTS)
def test_the_next_time_is_later_and_nothing_lies_between(text: str, moment: datetime) -> None:
    schedule = parse_schedule(text)
    due = schedule.next_after(moment)
    assert due > moment
    assert due.tzinfo is UTC
    if isinstance(schedule, CronSchedule):
        before = due - timedelta(seconds=1)
        if before >= moment:
            assert schedule.next_after(before) == due


@given(SCHEDULES, MOMENTS, st.timedeltas(timedelta(0), timedelta(days=40)))
def test_who_asks_later_is_told_no_earlier_time(text: str, moment: datetime, later: timedelta) -> None:
    schedule = parse_schedule(text)
    assert schedule.next_after(moment) <= schedule.next_after(moment + later)


@given(SCHEDULES)
def test_what_is_shown_means_the_same(text: str) -> None:
    schedule = parse_schedule(text)
    assert parse_schedule(str(schedule)) == schedule


@given(SCHEDULES, MOMENTS, st.integers(-12, 14))
def test_the_zone_that_the_moment_is_written_in_does_not_matter(text: str, moment: datetime, hours: int) -> None:
    elsewhere = moment.astimezone(timezone(timedelta(hours=hours)))
    assert parse_schedule(text).next_after(elsewhere) == parse_schedule(text).next_after(moment)


@fewer_examples()
@given(crons(), MOMENTS)
def test_cron_is_what_looking_at_every_minute_finds(text: str, moment: datetime) -> None:
    words = text.split()
    if len(words) > 5 and words[5] != "UTC":
        return
    schedule = parse_schedule(text)
    assert isinstance(schedule, CronSchedule)
    due = schedule.next_after(moment)
    minute = moment.replace(second=0, microsecond=0)
    for _ in range(2000):
        minute += timedelta(minutes=1)
        if minute > moment and _fits(schedule, minute):
            assert due == minute
            return
    assert due > minute


def _fits(schedule: CronSchedule, at: datetime) -> bool:
    """Whether a minute matches, by the rules of cron as its manual states them."""
    minutes, hours, days, months, weekdays = schedule.expression.split()
    by_day = at.day in _numbers(days, 1, 31)
    by_weekday = bool({at.isoweekday(), at.isoweekday() % 7} & _numbers(weekdays, 0, 7))
    both = days.startswith("*") or weekdays.startswith("*")
    on = by_day and by_weekday if both else by_day or by_weekday
    clock = (
        at.month in _numbers(months, 1, 12),
        at.hour in _numbers(hours, 0, 23),
        at.minute in _numbers(minutes, 0, 59),
    )
    return on and all(clock)


def _numbers(text: str, low: int, high: int) -> set[int]:
    found = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        start, end = (low, high) if span == "*" else (int(first), int(last) if dash else int(first))
        found |= set(range(start, end + 1, int(step or 1)))
    return found


@given(st.integers(0, 23), st.integers(0, 59), MOMENTS)
def test_words_and_cron_say_the_same(hour: int, minute: int, moment: datetime) -> None:
    at = f"at {hour:02}:{minute:02}"
    for words, cron in (
        (f"daily {at}", f"{minute} {hour} * * *"),
        (f"weekly on sun {at}", f"{minute} {hour} * * 0"),
        (f"weekly on sun {at}", f"{minute} {hour} * * 7"),
        (f"weekly on mon,fri {at}", f"{minute} {hour} * * mon,fri"),
        (f"monthly on 15 {at}", f"{minute} {hour} 15 * *"),
        (f"hourly at {minute}", f"{minute} * * * *"),
    ):
        assert parse_schedule(words).next_after(moment) == parse_schedule(cron).next_after(moment)


NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)  # a Sunday


EXAMPLES: list[tuple[str, str]] = [
    ("every 6h", "2026-11-15T18:00"),
    ("every 1d 12h", "2026-11-17T00:00"),
    ("EVERY 2W", "2026-11-29T12:00"),
    ("hourly", "2026-11-15T13:00"),
    ("hourly at :30", "2026-11-15T12:30"),
    ("daily", "2026-11-16T00:00"),
    ("daily at 03:00", "2026-11-16T03:00"),
    ("daily at 03:00 UTC", "2026-11-16T03:00"),
    ("daily at 03:00 Europe/Berlin", "2026-11-16T02:00"),
    ("weekly on sun at 12:00", "2026-11-22T12:00"),
    ("weekly on sun at 12:01", "2026-11-15T12:01"),
    ("monthly on 31 at 03:00", "2026-12-31T03:00"),
    ("0 0 13 * fri", "2026-11-20T00:00"),
    ("0 0 29 2 *", "2028-02-29T00:00"),
    ("0 0 * * fri-sun", "2026-11-20T00:00"),
    ("weekly on fri-sun at 12:01", "2026-11-15T12:01"),
    ("monthly on L at 03:00", "2026-11-30T03:00"),
    ("*/7 12 * * *", "2026-11-15T12:07"),
    ("5/20 * * jan-mar *", "2027-01-01T00:05"),
]


def test_examples(subtests: pytest.Subtests) -> None:
    for text, due in EXAMPLES:
        with subtests.test(text=text):
            assert parse_schedule(text).next_after(NOON) == datetime.fromisoformat(due).replace(tzinfo=UTC)


def test_a_skipped_time_comes_right_after_the_gap_and_one_that_occurs_twice_counts_once() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    nightly = parse_schedule("daily at 02:30 Europe/Berlin")
    spring = nightly.next_after(datetime(2026, 3, 28, 12, tzinfo=berlin))
    assert spring.astimezone(berlin).isoformat() == "2026-03-29T03:00:00+02:00"
    autumn = nightly.next_after(datetime(2026, 10, 24, 12, tzinfo=berlin))
    assert autumn.astimezone(berlin).isoformat() == "2026-10-25T02:30:00+02:00"
    assert nightly.next_after(autumn).astimezone(berlin).isoformat() == "2026-10-26T02:30:00+01:00"
    again = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 for the second time
    assert nightly.next_after(again).astimezone(berlin).isoformat() == "2026-10-26T02:30:00+01:00"


def test_a_schedule_with_a_star_comes_in_both_hours_when_the_clocks_are_set_back() -> None:
    often = parse_schedule("*/30 2 * * * Europe/Berlin")
    at, found = datetime(2026, 10, 24, 12, tzinfo=UTC), list[str]()
    for _ in range(5):
        at = often.next_after(at)
        found.append(f"{at:%d %H:%M}")
    assert found == ["25 00:00", "25 00:30", "25 01:00", "25 01:30", "26 01:00"]


def test_what_is_for_every_hour_comes_in_every_hour_also_when_clocks_change() -> None:
    hourly = parse_schedule("hourly Europe/Berlin")
    at = datetime(2026, 10, 24, 23, 30, tzinfo=UTC)
    for _ in range(5):
        due = hourly.next_after(at)
        assert due - at <= timedelta(hours=1)
        at = due


def test_spans_are_written_with_the_largest_units() -> None:
    assert str(parse_schedule("every 90m")) == "every 1h30m"
    assert parse_schedule("every 36h") == PeriodicSchedule(timedelta(days=1, hours=12))


UNREADABLE: list[tuple[Any, str]] = [
    ("", "string that says when"),
    ("   ", "string that says when"),
    (7, "string that says when"),
    ("often", "does not begin with 'often'"),
    ("every", "comes a duration"),
    ("every day", "comes a duration"),
    ("every 90", "comes a duration"),
    ("every 0s", "at least a second"),
    ("every 99999999999999999999w", "too far away"),
    ("every 11y", "at most ten years"),
    ("hourly at x", "from 0 to 59"),
    ("hourly at", "from 0 to 59"),
    ("daily at 25:00", "such as 03:00"),
    ("daily at", "such as 03:00"),
    ("daily 03:00", "no time zone"),
    ("weekly at 03:00", "comes a day: on sun"),
    ("monthly", "comes a day: on 1"),
    ("weekly on 1 at 03:00", "no day of the week"),
    ("monthly on sun", "'sun' is not a valid day-of-month"),
    ("monthly on 32", "'32' is not a valid day-of-month"),
    ("0 0 31 2 *", "'31' is not a valid day-of-month"),
    ("* * * *", "five fields"),
    ("61 * * * *", "'61' is not a valid minute"),
    ("0 0 * * funday", "'funday' is not a valid day-of-week"),
    ("0 0 * 13 *", "not a valid month"),
    ("5-1 * * * *", "'5-1' is not a valid minute"),
    ("*/0 * * * *", "'*/0' is not a valid minute"),
    ("daily at 03:00 Mars/Base", "no time zone has the name 'Mars/Base'"),
    ("daily at 03:00 ../etc/passwd", "no time zone"),
    ("daily at 03:00 UTC please", "nothing is to follow"),
]


def test_what_cannot_be_read_is_said(subtests: pytest.Subtests) -> None:
    for text, said in UNREADABLE:
        with subtests.test(text=text):
            with pytest.raises(InvalidError) as caught:
                parse_schedule(text)
            assert said in caught.value.what
            assert caught.value.hint
