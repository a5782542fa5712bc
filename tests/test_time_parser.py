"""Times as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidError
from holdfast.time_parser import format_duration, parse_deadline, parse_duration, parse_time

NOW = datetime(2026, 11, 15, 14, 30, tzinfo=UTC)  # a Sunday


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An hour ahead of UTC in winter, two in summer."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


AGES: list[tuple[str, timedelta]] = [
    ("90s", timedelta(seconds=90)),
    ("30m", timedelta(minutes=30)),
    ("2h", timedelta(hours=2)),
    (" 3 Days ", timedelta(days=3)),
    ("1w", timedelta(weeks=1)),
    ("6mo", timedelta(days=180)),
    ("1 year", timedelta(days=365)),
    ("1h30m", timedelta(minutes=90)),
    ("1 week, 2 days", timedelta(days=9)),
    ("an hour", timedelta(hours=1)),
    ("0.5d", timedelta(hours=12)),
]


def test_ages(subtests: pytest.Subtests) -> None:
    for text, age in AGES:
        with subtests.test(text=text):
            assert parse_duration(text) == age
            assert parse_time(f"{text} ago", NOW) == parse_time(text, NOW) == NOW - age


MOMENTS: list[tuple[str, datetime]] = [
    ("now", NOW),
    ("yesterday", datetime(2026, 11, 14, 14, 30, tzinfo=UTC)),
    ("today", datetime(2026, 11, 14, 23, tzinfo=UTC)),
    ("Monday", datetime(2026, 11, 8, 23, tzinfo=UTC)),
    ("last sunday", datetime(2026, 11, 7, 23, tzinfo=UTC)),  # not today
    ("10:30", datetime(2026, 11, 15, 9, 30, tzinfo=UTC)),
    ("9:30:15", datetime(2026, 11, 15, 8, 30, 15, tzinfo=UTC)),
    ("2026-11-01", datetime(2026, 10, 31, 23, tzinfo=UTC)),
    ("2026-07-01T10:00", datetime(2026, 7, 1, 8, tzinfo=UTC)),  # in summer, and asked in winter
    ("2026-11-01 10:00:00.5", datetime(2026, 11, 1, 9, 0, 0, 500000, tzinfo=UTC)),
    ("2026-11-01t10:00z", datetime(2026, 11, 1, 10, tzinfo=UTC)),
    ("2026-11-01T10:00-05:00", datetime(2026, 11, 1, 10, tzinfo=timezone(timedelta(hours=-5)))),
]


def test_moments(subtests: pytest.Subtests) -> None:
    for text, moment in MOMENTS:
        with subtests.test(text=text):
            assert parse_time(text, NOW) == moment


def test_no_times(subtests: pytest.Subtests) -> None:
    for text in ["", "ago", "soon", "5", "-1h", "2 parsecs", "25:00", "10:75", "2026-13-01", "h"]:
        with subtests.test(text=text):
            with pytest.raises(InvalidError, match=r"is not a time.*Write 2h"):
                parse_time(text, NOW)
            with pytest.raises(InvalidError, match=r"is not a valid duration.*Write 90s"):
                parse_duration(text)


@pytest.mark.parametrize("text", ["9999y", "9" * 400 + "y", "9" * 30 + "s", "0001-01-01"])
def test_times_too_far_away(text: str) -> None:
    with pytest.raises(InvalidError, match="too far away"):
        parse_time(text, NOW)


@given(st.text())
def test_whatever_is_written(text: str) -> None:
    for parse in (parse_duration, lambda text: parse_time(text, NOW)):
        try:
            parse(text)
        except InvalidError:
            continue


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1, 1, 3), max_value=datetime(9998, 1, 1)))
def test_what_is_printed_is_read(moment: datetime) -> None:
    assert parse_time(moment.isoformat(), NOW) == parse_time(str(moment), NOW) == moment


@given(st.timedeltas(timedelta(), timedelta(days=100_000)))
def test_a_duration_is_parsed_as_it_is_formatted(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration
    assert parse_duration(duration) == duration
    assert parse_duration(duration.total_seconds()) == timedelta(seconds=duration.total_seconds())


def test_durations_are_formatted_in_the_largest_units() -> None:
    assert [format_duration(timedelta(seconds=each)) for each in (0, 0.5, 90, 129_600, 1_209_600)] == [
        "0s",
        "0.5s",
        "1m30s",
        "1d12h",
        "2w",
    ]


def test_durations_of_iso_8601() -> None:
    for text, duration in (
        ("PT2H", timedelta(hours=2)),
        ("p1dt12h30m", timedelta(days=1, hours=12, minutes=30)),
        ("P2W", timedelta(weeks=2)),
        ("P1Y2M", timedelta(days=425)),
        ("PT0.5S", timedelta(seconds=0.5)),
    ):
        assert parse_duration(text) == duration
    for text in ("P", "PT", "P2H", "PT2D", "P1DT", "2H PT"):
        with pytest.raises(InvalidError, match="is not a valid duration"):
            parse_duration(text)


def test_what_is_no_duration() -> None:
    for value in (None, True, b"2h", float("nan"), float("inf"), 10**30, "30", [1]):
        with pytest.raises(InvalidError, match="is not a valid delay.*number of seconds"):
            parse_duration(value, "delay")
    for outside in (-1, timedelta(seconds=-1), timedelta.max):
        with pytest.raises(InvalidError, match="not negative, and at most 300 years"):
            parse_duration(outside)
    with pytest.raises(InvalidError, match="longer than 0"):
        parse_duration("0s", positive=True)


def test_deadlines_are_durations_from_now_or_times_to_come() -> None:
    assert parse_deadline("2h", NOW) == parse_deadline(7200, NOW) == NOW + timedelta(hours=2)
    assert parse_deadline("2026-12-01T00:00Z", NOW) == datetime(2026, 12, 1, tzinfo=UTC)
    with pytest.raises(InvalidError, match="in the past"):
        parse_deadline("2026-11-01", NOW)


def test_times_that_are_no_text() -> None:
    assert parse_time(NOW, NOW) == parse_time(timedelta(0), NOW) == NOW
    for value in (12, None, True):
        with pytest.raises(InvalidError, match="is not a time"):
            parse_time(value, NOW)
    with pytest.raises(InvalidError, match="too far away"):
        parse_time(datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), NOW)
